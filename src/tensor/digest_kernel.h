// Inside of the tensor digest: keys and the one primitive that every kernel implements.
//
// Kernels are compiled with flags of their own, so this header holds no template and no inline
// function: the linker might keep the copy that needs AVX-512 for everyone.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace weightcast::tensor {

__extension__ typedef unsigned __int128 Uint128;

inline constexpr size_t kDigestLanes = 5;
inline constexpr size_t kDigestBlockWords = 2048;
inline constexpr size_t kDigestBlockBytes = 4 * kDigestBlockWords;
inline constexpr size_t kDigestKeys = kDigestBlockWords + 8 * kDigestLanes;

// A product of a word and a key is below 2^58, so the sum of 64 of them fits 64 bits.
inline constexpr size_t kDigestProductsMax = 64;

struct DigestKeys {
  alignas(64) uint32_t key[kDigestKeys];   // K[i]
  alignas(64) uint32_t next[kDigestKeys];  // K[i + 1]: keys of odd words, where a vector wants them
};

// lanes[l] += sum over i < count of word[i] * K[first + i + 8 * l]. Words are little endian, at any
// address.
//   Requires: first + count <= kDigestBlockWords.
using AddWords = void (*)(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                          Uint128* lanes);
void AddWordsPortable(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                      Uint128* lanes);
#if defined(__x86_64__)
void AddWordsAvx2(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                  Uint128* lanes);
void AddWordsAvx512(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                    Uint128* lanes);
#endif

}  // namespace weightcast::tensor
