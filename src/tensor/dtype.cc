#include "tensor/dtype.h"

#include <algorithm>

#include "base/status.h"

namespace weightcast::tensor {
namespace {

struct Row {
  std::string_view name;
  int bits;
};

// By wire value.
constexpr Row kRows[kDTypes] = {
    {"BOOL", 8},        {"U8", 8},          {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8},     {"I16", 16},        {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},        {"F32", 32}, {"I64", 64},    {"U64", 64},
    {"F64", 64},        {"C64", 64},        {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

const Row& RowOf(DType dtype) {
  const auto value = static_cast<size_t>(dtype);
  WC_CHECK(value < kDTypes);
  return kRows[value];
}

}  // namespace

int BitsOf(DType dtype) { return RowOf(dtype).bits; }

int UnitBytes(DType dtype) { return std::max(1, RowOf(dtype).bits / 8); }

std::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  const auto* row = std::ranges::find(kRows, name, &Row::name);
  if (row == std::end(kRows)) return std::nullopt;
  return static_cast<DType>(row - kRows);
}

std::optional<DType> DTypeFromWire(uint8_t value) {
  if (value >= kDTypes) return std::nullopt;
  return static_cast<DType>(value);
}

}  // namespace weightcast::tensor
