// Element types of safetensors.
//
// A *unit* is what is compared, moved and counted alone: one element, or one byte where elements
// are smaller than a byte (F4, F6: opaque bytes).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weightcast::tensor {

// Values are part of our formats: never renumber, only append.
enum class DType : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kF8E4M3 = 3,
  kF8E5M2 = 4,
  kF8E8M0 = 5,
  kI16 = 6,
  kU16 = 7,
  kF16 = 8,
  kBf16 = 9,
  kI32 = 10,
  kU32 = 11,
  kF32 = 12,
  kI64 = 13,
  kU64 = 14,
  kF64 = 15,
  kC64 = 16,
  kF4 = 17,
  kF6E2M3 = 18,
  kF6E3M2 = 19,
  kF8E4M3Fnuz = 20,
  kF8E5M2Fnuz = 21,
};
inline constexpr int kDTypes = 22;

int BitsOf(DType dtype);                  // 4 ... 64
int UnitBytes(DType dtype);               // 1, 2, 4 or 8
std::string_view DTypeName(DType dtype);  // as in a safetensors header: "BF16"
std::optional<DType> DTypeFromName(std::string_view name);
std::optional<DType> DTypeFromWire(uint8_t value);

}  // namespace weightcast::tensor
