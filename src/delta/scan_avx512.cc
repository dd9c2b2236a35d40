#include "delta/scan_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace weightcast::delta {
namespace {

struct Avx512 {
  template <int W>
  static __m512i Broadcast(int64_t value) {
    if constexpr (W == 1) return _mm512_set1_epi8(static_cast<char>(value));
    if constexpr (W == 2) return _mm512_set1_epi16(static_cast<short>(value));
    if constexpr (W == 4) return _mm512_set1_epi32(static_cast<int>(value));
    if constexpr (W == 8) return _mm512_set1_epi64(value);
  }
  template <int W>
  static uint64_t Greater(__m512i a, __m512i b) {
    if constexpr (W == 1) return _mm512_cmpgt_epi8_mask(a, b);
    if constexpr (W == 2) return _mm512_cmpgt_epi16_mask(a, b);
    if constexpr (W == 4) return _mm512_cmpgt_epi32_mask(a, b);
    if constexpr (W == 8) return _mm512_cmpgt_epi64_mask(a, b);
  }
  template <int W>
  static uint64_t Different(__m512i a, __m512i b) {
    if constexpr (W == 1) return _mm512_cmpneq_epi8_mask(a, b);
    if constexpr (W == 2) return _mm512_cmpneq_epi16_mask(a, b);
    if constexpr (W == 4) return _mm512_cmpneq_epi32_mask(a, b);
    if constexpr (W == 8) return _mm512_cmpneq_epi64_mask(a, b);
  }

  template <int W>
  struct Limits {
    __m512i limit[7];
    explicit Limits(const ScanLimits& scan) {
      for (int k = 0; k < 7; ++k) limit[k] = Broadcast<W>(scan.limit[k + 1]);
    }
  };

  template <int W>
  struct Group {
    __m512i magnitude[static_cast<size_t>(W)];

    static Group Load(const uint8_t* from) {
      const __m512i mask = Broadcast<W>(static_cast<int64_t>(~uint64_t{0} >> (64 - 8 * W + 1)));
      Group group;
      for (size_t v = 0; v < W; ++v) {
        group.magnitude[v] = _mm512_and_si512(_mm512_loadu_si512(from + 64 * v), mask);
      }
      return group;
    }
    uint64_t Above(__m512i limit) const {
      uint64_t bits = 0;
      for (size_t v = 0; v < W; ++v) bits |= Greater<W>(magnitude[v], limit) << (64 / W * v);
      return bits;
    }
    uint64_t Above(int64_t limit) const { return Above(Broadcast<W>(limit)); }
    uint64_t CountsAbove(const Limits<W>& limits) const {
      uint64_t counts = 0;
      for (int k = 0; k < 7; ++k) counts |= uint64_t{CountOnes(Above(limits.limit[k]))} << (8 * k);
      return counts;
    }
  };

  template <int W>
  static uint64_t Differ(const uint8_t* base, const uint8_t* next) {
    uint64_t bits = 0;
    for (size_t v = 0; v < W; ++v) {
      bits |= Different<W>(_mm512_loadu_si512(base + 64 * v), _mm512_loadu_si512(next + 64 * v))
              << (64 / W * v);
    }
    return bits;
  }

  struct Counts {
    __m256i number;

    explicit Counts(const uint32_t* from)
        : number(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))) {}
    static __m256i Widen(uint64_t bytes) {
      return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
    }
    void Add(uint64_t bytes) { number = _mm256_add_epi32(number, Widen(bytes)); }
    void Subtract(uint64_t bytes) { number = _mm256_sub_epi32(number, Widen(bytes)); }
    void Store(uint32_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), number); }
    unsigned Hits(uint64_t bytes) const { return _mm256_cmpgt_epi32_mask(Widen(bytes), number); }
  };
};

}  // namespace

const ScanKernels kScanAvx512 = MakeScanKernels<Avx512>();

}  // namespace weightcast::delta
#endif
