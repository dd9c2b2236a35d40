#include "tensor/digest_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace weightcast::tensor {
namespace {

constexpr size_t kVectorWords = 8;
constexpr size_t kTileVectors = 4;
constexpr size_t kTileWords = kTileVectors * kVectorWords;
// Each word position of a vector pair feeds one 64-bit sum, twice a vector (even and odd words).
constexpr size_t kFoldWords = kDigestProductsMax / 2 * kVectorWords;

// Far enough ahead of one core that reads from memory at full speed.
constexpr size_t kPrefetchBytes = 2048;

// sums[l] += products of kVectors vectors. Lane l of vector i wants key vector i + l: a tile of
// several vectors loads each key once for up to five products.
template <size_t kVectors>
inline __attribute__((always_inline)) void AddTile(const uint32_t* key, const uint32_t* next,
                                                   const uint8_t* words, __m256i* sums) {
  __m256i even[kVectors];
  __m256i odd[kVectors];
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    even[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words) + i);
    odd[i] = _mm256_srli_epi64(even[i], 32);
  }
#pragma GCC unroll 8
  for (size_t k = 0; k < kVectors + kDigestLanes - 1; ++k) {
    const __m256i even_keys = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key) + k);
    const __m256i odd_keys = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next) + k);
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t l = k - i;  // wraps where k < i
      if (l >= kDigestLanes) continue;
      sums[l] = _mm256_add_epi64(sums[l], _mm256_mul_epu32(even[i], even_keys));
      sums[l] = _mm256_add_epi64(sums[l], _mm256_mul_epu32(odd[i], odd_keys));
    }
  }
}

inline Uint128 Total(__m256i low, __m256i high) {
  alignas(32) uint64_t a[4];
  alignas(32) uint64_t b[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(a), low);
  _mm256_store_si256(reinterpret_cast<__m256i*>(b), high);
  return Uint128{a[0] + a[1] + a[2] + a[3]} + (Uint128{b[0] + b[1] + b[2] + b[3]} << 32);
}

}  // namespace

void AddWordsAvx2(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                  Uint128* lanes) {
  const size_t vector_words = count / kVectorWords * kVectorWords;
  if (vector_words > 0) {
    const __m256i mask = _mm256_set1_epi64x(0xffffffff);
    __m256i low[kDigestLanes];
    __m256i high[kDigestLanes];
    for (size_t l = 0; l < kDigestLanes; ++l) low[l] = high[l] = _mm256_setzero_si256();
    for (size_t at = 0; at < vector_words;) {
      const size_t left = vector_words - at;
      const size_t end = at + (left < kFoldWords ? left : kFoldWords);
      __m256i sums[kDigestLanes];
      for (size_t l = 0; l < kDigestLanes; ++l) sums[l] = _mm256_setzero_si256();
      for (; at + kTileWords <= end; at += kTileWords) {
        const uint8_t* tile = words + 4 * at;
        AddTile<kTileVectors>(keys.key + first + at, keys.next + first + at, tile, sums);
        _mm_prefetch(reinterpret_cast<const char*>(tile) + kPrefetchBytes, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(tile) + kPrefetchBytes + 64, _MM_HINT_T0);
      }
      for (; at < end; at += kVectorWords) {
        AddTile<1>(keys.key + first + at, keys.next + first + at, words + 4 * at, sums);
      }
      for (size_t l = 0; l < kDigestLanes; ++l) {
        low[l] = _mm256_add_epi64(low[l], _mm256_and_si256(sums[l], mask));
        high[l] = _mm256_add_epi64(high[l], _mm256_srli_epi64(sums[l], 32));
      }
    }
    for (size_t l = 0; l < kDigestLanes; ++l) lanes[l] += Total(low[l], high[l]);
  }
  AddWordsPortable(keys, first + vector_words, words + 4 * vector_words, count - vector_words,
                   lanes);
}

}  // namespace weightcast::tensor
#endif
