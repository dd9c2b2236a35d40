#include "tensor/digest_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace weightcast::tensor {
namespace {

constexpr size_t kVectorWords = 16;
constexpr size_t kTileVectors = 4;
constexpr size_t kTileWords = kTileVectors * kVectorWords;
// Each word position of a vector pair feeds one 64-bit sum, twice a vector (even and odd words).
constexpr size_t kFoldWords = kDigestProductsMax / 2 * kVectorWords;

// Far enough ahead of one core that reads from memory at full speed.
constexpr size_t kPrefetchBytes = 2048;

// sums[l] += products of kVectors vectors. Lane l of vector i wants the 16 keys at 8 * (2 i + l):
// a tile of several vectors loads each of them once for up to three products.
template <size_t kVectors>
inline __attribute__((always_inline)) void AddTile(const uint32_t* key, const uint32_t* next,
                                                   const uint8_t* words, __m512i* sums) {
  __m512i even[kVectors];
  __m512i odd[kVectors];
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    even[i] = _mm512_loadu_si512(words + 64 * i);
    odd[i] = _mm512_srli_epi64(even[i], 32);
  }
#pragma GCC unroll 16
  for (size_t k = 0; k < 2 * kVectors + kDigestLanes - 2; ++k) {
    const __m512i even_keys = _mm512_loadu_si512(key + 8 * k);
    const __m512i odd_keys = _mm512_loadu_si512(next + 8 * k);
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t l = k - 2 * i;  // wraps where k < 2 i
      if (l >= kDigestLanes) continue;
      sums[l] = _mm512_add_epi64(sums[l], _mm512_mul_epu32(even[i], even_keys));
      sums[l] = _mm512_add_epi64(sums[l], _mm512_mul_epu32(odd[i], odd_keys));
    }
  }
}

inline Uint128 Total(__m512i low, __m512i high) {
  alignas(64) uint64_t a[8];
  alignas(64) uint64_t b[8];
  _mm512_store_si512(a, low);
  _mm512_store_si512(b, high);
  uint64_t low_sum = 0;
  uint64_t high_sum = 0;
  for (int i = 0; i < 8; ++i) {
    low_sum += a[i];
    high_sum += b[i];
  }
  return Uint128{low_sum} + (Uint128{high_sum} << 32);
}

}  // namespace

void AddWordsAvx512(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                    Uint128* lanes) {
  const size_t vector_words = count / kVectorWords * kVectorWords;
  if (vector_words > 0) {
    const __m512i mask = _mm512_set1_epi64(0xffffffff);
    __m512i low[kDigestLanes];
    __m512i high[kDigestLanes];
    for (size_t l = 0; l < kDigestLanes; ++l) low[l] = high[l] = _mm512_setzero_si512();
    for (size_t at = 0; at < vector_words;) {
      const size_t left = vector_words - at;
      const size_t end = at + (left < kFoldWords ? left : kFoldWords);
      __m512i sums[kDigestLanes];
      for (size_t l = 0; l < kDigestLanes; ++l) sums[l] = _mm512_setzero_si512();
      for (; at + kTileWords <= end; at += kTileWords) {
        const uint8_t* tile = words + 4 * at;
        AddTile<kTileVectors>(keys.key + first + at, keys.next + first + at, tile, sums);
        for (size_t line = 0; line < kTileVectors; ++line) {
          _mm_prefetch(reinterpret_cast<const char*>(tile) + kPrefetchBytes + 64 * line,
                       _MM_HINT_T0);
        }
      }
      for (; at < end; at += kVectorWords) {
        AddTile<1>(keys.key + first + at, keys.next + first + at, words + 4 * at, sums);
      }
      for (size_t l = 0; l < kDigestLanes; ++l) {
        low[l] = _mm512_add_epi64(low[l], _mm512_and_si512(sums[l], mask));
        high[l] = _mm512_add_epi64(high[l], _mm512_srli_epi64(sums[l], 32));
      }
    }
    for (size_t l = 0; l < kDigestLanes; ++l) lanes[l] += Total(low[l], high[l]);
  }
  AddWordsPortable(keys, first + vector_words, words + 4 * vector_words, count - vector_words,
                   lanes);
}

}  // namespace weightcast::tensor
#endif
