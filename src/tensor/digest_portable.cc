#include <string.h>

#include "tensor/digest_kernel.h"

namespace weightcast::tensor {

void AddWordsPortable(const DigestKeys& keys, size_t first, const uint8_t* words, size_t count,
                      Uint128* lanes) {
  while (count > 0) {
    const size_t n = count < kDigestProductsMax ? count : kDigestProductsMax;
    uint64_t sums[kDigestLanes] = {};
    for (size_t i = 0; i < n; ++i) {
      uint32_t word;
      memcpy(&word, words + 4 * i, sizeof word);
      for (size_t l = 0; l < kDigestLanes; ++l) {
        sums[l] += uint64_t{word} * keys.key[first + i + 8 * l];
      }
    }
    for (size_t l = 0; l < kDigestLanes; ++l) lanes[l] += sums[l];
    first += n;
    words += 4 * n;
    count -= n;
  }
}

}  // namespace weightcast::tensor
