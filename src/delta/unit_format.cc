#include "delta/unit_format.h"

namespace weightcast::delta {
namespace {

constexpr UnitFormat Float(size_t bytes, int mantissa_bits) {
  const int magnitude_bits = 8 * static_cast<int>(bytes) - 1;
  return {bytes, true, mantissa_bits, uint32_t{1} << (magnitude_bits - mantissa_bits)};
}

}  // namespace

UnitFormat FormatOf(tensor::DType dtype) {
  using tensor::DType;
  switch (dtype) {
    case DType::kBf16:
      return Float(2, 7);
    case DType::kF16:
      return Float(2, 10);
    case DType::kF32:
      return Float(4, 23);
    case DType::kF64:
      return Float(8, 52);
    case DType::kF8E4M3:
    case DType::kF8E4M3Fnuz:
      return Float(1, 3);
    case DType::kF8E5M2:
    case DType::kF8E5M2Fnuz:
      return Float(1, 2);
    default:  // integers, booleans, and what has no single magnitude: pairs, bare exponents, packed
              // bits
      return {.bytes = static_cast<size_t>(tensor::UnitBytes(dtype))};
  }
}

}  // namespace weightcast::delta
