// Sizes in bits, in integers: an encoder that decides by them gives equal bytes on every CPU, which
// floating-point logarithms do not. Pure.
#pragma once

#include <cstdint>
#include <span>

namespace weightcast::delta {

// Bits * 2^16: log2 of x >= 1, exact to 2^-14 (2^-16 each for the table and the interpolation).
uint64_t Log2Fixed(uint64_t x);

// The least bits in which an order-0 code writes symbols that occur so often.
uint64_t EntropyBits(std::span<const uint32_t> counts);

// The least bits in which `set` of `all` places can be marked.
//   Requires: set <= all < 2^24.
uint64_t MarkBits(uint64_t set, uint64_t all);

}  // namespace weightcast::delta
