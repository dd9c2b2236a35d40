#include "delta/scan_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace weightcast::delta {
namespace {

struct Avx2 {
  template <int W>
  static constexpr size_t kVectors = size_t{2} * W;  // of a group

  template <int W>
  static __m256i Broadcast(int64_t value) {
    if constexpr (W == 1) return _mm256_set1_epi8(static_cast<char>(value));
    if constexpr (W == 2) return _mm256_set1_epi16(static_cast<short>(value));
    if constexpr (W == 4) return _mm256_set1_epi32(static_cast<int>(value));
    if constexpr (W == 8) return _mm256_set1_epi64x(value);
  }
  static __m256i LoadVector(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  template <int W>
  static __m256i Greater(__m256i a, __m256i b) {
    if constexpr (W == 1) return _mm256_cmpgt_epi8(a, b);
    if constexpr (W == 2) return _mm256_cmpgt_epi16(a, b);
    if constexpr (W == 4) return _mm256_cmpgt_epi32(a, b);
    if constexpr (W == 8) return _mm256_cmpgt_epi64(a, b);
  }
  template <int W>
  static __m256i Equal(__m256i a, __m256i b) {
    if constexpr (W == 1) return _mm256_cmpeq_epi8(a, b);
    if constexpr (W == 2) return _mm256_cmpeq_epi16(a, b);
    if constexpr (W == 4) return _mm256_cmpeq_epi32(a, b);
    if constexpr (W == 8) return _mm256_cmpeq_epi64(a, b);
  }

  // A bit a unit from 2 * W vectors whose lanes are all ones or all zeros; in the order of units,
  // or (cheaper for 16-bit lanes, and enough for counting) in any order.
  template <int W, bool InOrder, typename Lanes>
  static uint64_t Bits(Lanes lanes) {
    if constexpr (W == 2) {
      uint64_t bits = 0;
      for (size_t half = 0; half < 2; ++half) {
        __m256i bytes = _mm256_packs_epi16(lanes(2 * half), lanes(2 * half + 1));
        if constexpr (InOrder) bytes = _mm256_permute4x64_epi64(bytes, 0xd8);
        bits |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(bytes))} << (32 * half);
      }
      return bits;
    } else {
      uint64_t bits = 0;
      for (size_t v = 0; v < kVectors<W>; ++v)
        bits |= uint64_t{VectorBits<W>(lanes(v))} << (32 / W * v);
      return bits;
    }
  }
  template <int W>
  static uint32_t VectorBits(__m256i lanes) {
    if constexpr (W == 1) return static_cast<uint32_t>(_mm256_movemask_epi8(lanes));
    if constexpr (W == 4)
      return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
    if constexpr (W == 8)
      return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(lanes)));
  }

  template <int W>
  struct Limits {
    __m256i limit[7];
    explicit Limits(const ScanLimits& scan) {
      for (int k = 0; k < 7; ++k) limit[k] = Broadcast<W>(scan.limit[k + 1]);
    }
  };

  template <int W>
  struct Group {
    __m256i magnitude[kVectors<W>];

    static Group Load(const uint8_t* from) {
      const __m256i mask = Broadcast<W>(static_cast<int64_t>(~uint64_t{0} >> (64 - 8 * W + 1)));
      Group group;
      for (size_t v = 0; v < kVectors<W>; ++v) {
        group.magnitude[v] = _mm256_and_si256(LoadVector(from + 32 * v), mask);
      }
      return group;
    }
    uint64_t Above(int64_t limit) const {
      const __m256i limits = Broadcast<W>(limit);
      return Bits<W, true>([&](size_t v) { return Greater<W>(magnitude[v], limits); });
    }
    uint64_t CountsAbove(const Limits<W>& limits) const {
      uint64_t counts = 0;
      for (int k = 0; k < 7; ++k) {
        const __m256i limit = limits.limit[k];
        const uint64_t bits =
            Bits<W, false>([&](size_t v) { return Greater<W>(magnitude[v], limit); });
        counts |= uint64_t{CountOnes(bits)} << (8 * k);
      }
      return counts;
    }
  };

  template <int W>
  static uint64_t Differ(const uint8_t* base, const uint8_t* next) {
    return ~Bits<W, true>(
        [&](size_t v) { return Equal<W>(LoadVector(base + 32 * v), LoadVector(next + 32 * v)); });
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
    unsigned Hits(uint64_t bytes) const {
      const __m256i hits = _mm256_cmpgt_epi32(Widen(bytes), number);
      return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(hits)));
    }
  };
};

}  // namespace

const ScanKernels kScanAvx2 = MakeScanKernels<Avx2>();

}  // namespace weightcast::delta
#endif
