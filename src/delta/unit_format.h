// How the codec looks at the units of a dtype: their ordered value, steps between them, octaves.
// docs/formats/part.md, "Order of units". Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/status.h"
#include "tensor/dtype.h"

namespace weightcast::delta {

struct UnitFormat {
  size_t bytes = 1;       // 1, 2, 4 or 8
  bool is_float = false;  // sign and magnitude; otherwise two's complement
  int mantissa_bits = 0;  // of floats
  uint32_t octaves = 1;   // magnitude >> mantissa_bits is below it; 1 for the others
};
inline constexpr uint32_t kOctavesMax = 2048;

UnitFormat FormatOf(tensor::DType dtype);

// Calls work.operator()<U>() with the unsigned integer U of `bytes` bytes.
template <typename Work>
decltype(auto) WithUnit(size_t bytes, Work&& work) {
  switch (bytes) {
    case 1:
      return work.template operator()<uint8_t>();
    case 2:
      return work.template operator()<uint16_t>();
    case 4:
      return work.template operator()<uint32_t>();
    default:
      WC_CHECK(bytes == 8);
      return work.template operator()<uint64_t>();
  }
}

template <typename U>
U MagnitudeOf(U bits) {
  return static_cast<U>(bits & (static_cast<U>(~U{0}) >> 1));
}

template <typename U>
uint32_t OctaveOf(const UnitFormat& format, U bits) {
  return format.is_float ? static_cast<uint32_t>(MagnitudeOf(bits) >> format.mantissa_bits) : 0;
}

// Bits to ordered value and back: it is its own inverse.
template <typename U>
U Ordered(const UnitFormat& format, U bits) {
  const bool flip = format.is_float && (bits >> (8 * sizeof(U) - 1)) != 0;
  return static_cast<U>(flip ? bits ^ (static_cast<U>(~U{0}) >> 1) : bits);
}

// The code of the step from `base` to `next`: 0 for one down, 1 for one up, 2 for two down, ...
//   Requires: base != next.
template <typename U>
U StepCode(const UnitFormat& format, U base, U next) {
  const auto step = static_cast<U>(Ordered(format, next) - Ordered(format, base));
  const bool negative = (step >> (8 * sizeof(U) - 1)) != 0;
  return static_cast<U>((static_cast<U>(step << 1) ^ (negative ? static_cast<U>(~U{0}) : U{0})) -
                        1);
}

//   Requires: code is not the largest U (a step of 0).
template <typename U>
U ApplyStep(const UnitFormat& format, U base, U code) {
  const auto z = static_cast<U>(code + 1);
  const auto step = static_cast<U>((z >> 1) ^ (z & 1 ? static_cast<U>(~U{0}) : U{0}));
  return Ordered(format, static_cast<U>(Ordered(format, base) + step));
}

}  // namespace weightcast::delta
