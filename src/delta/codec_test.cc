#include "delta/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "delta/adam_sim.h"
#include "delta/method.h"
#include "delta/scan.h"

namespace weightcast::delta {
namespace {

using tensor::DType;
using testing::ElementsAreArray;
using testing::IsEmpty;

constexpr ScanKernel kKernels[] = {ScanKernel::kPortable, ScanKernel::kAvx2, ScanKernel::kAvx512};

template <typename U>
Bytes Pack(const std::vector<U>& units) {
  Bytes bytes(units.size() * sizeof(U));
  if (!bytes.empty()) std::memcpy(bytes.data(), units.data(), bytes.size());
  return bytes;
}

std::vector<uint32_t> ChangedUnits(size_t unit_bytes, ByteSpan base, ByteSpan next) {
  std::vector<uint32_t> changed;
  for (size_t i = 0; i * unit_bytes < base.size(); ++i) {
    if (!std::ranges::equal(base.subspan(i * unit_bytes, unit_bytes),
                            next.subspan(i * unit_bytes, unit_bytes))) {
      changed.push_back(static_cast<uint32_t>(i));
    }
  }
  return changed;
}

struct Encoded {
  ChunkInfo info;
  Bytes payload;
};

// Encodes, decodes, and expects the same units back, with all that goes with them.
Encoded RoundTrip(DType dtype, const Bytes& base, const Bytes& next, Scratch& scratch) {
  Encoded encoded;
  encoded.info = EncodeChunk(dtype, base, next, scratch, &encoded.payload);
  const auto unit_bytes = static_cast<size_t>(tensor::UnitBytes(dtype));
  const bool has_base = !base.empty();
  const std::vector<uint32_t> changed =
      has_base ? ChangedUnits(unit_bytes, base, next) : std::vector<uint32_t>();
  EXPECT_EQ(scratch.changed(), changed);
  EXPECT_LE(encoded.payload.size(), next.size());
  if (encoded.info.method == Method::kAbsent) {
    EXPECT_EQ(base, next);
    EXPECT_THAT(encoded.payload, IsEmpty());
    return encoded;
  }
  EXPECT_EQ(static_cast<size_t>(encoded.info.changed_units),
            has_base ? changed.size() : next.size() / unit_bytes);
  Bytes restored(next.size(), 0xa5);
  const Status status = DecodeChunk(encoded.info.method, dtype, encoded.info.changed_units,
                                    encoded.payload, base, scratch, restored);
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(restored, next);
  EXPECT_EQ(scratch.changed(), changed);
  return encoded;
}

struct Case {
  const char* name;
  DType dtype;
  Bytes base;
  Bytes next;
};

std::vector<Case> BoundaryCases() {
  using U16 = std::vector<uint16_t>;
  using U32 = std::vector<uint32_t>;
  using U64 = std::vector<uint64_t>;
  const auto bf16 = [](const char* name, const U16& base, const U16& next) {
    return Case{name, DType::kBf16, Pack(base), Pack(next)};
  };
  return {
      bf16("OneUnit", {0x3f80}, {0x3f81}),
      bf16("NothingChanged", {0x3f80, 1, 2}, {0x3f80, 1, 2}),
      bf16("PlusZeroToMinusZero", {0x0000, 0, 0}, {0x8000, 0, 0}),
      bf16("MinusZeroToPlusZero", {0x8000, 0, 0}, {0x0000, 0, 0}),
      bf16("NanPayload", {0x7fc0, 0x7f80}, {0x7fc1, 0x7f80}),
      bf16("NegativeNanPayload", {0xffff, 0xff80}, {0xfffe, 0xff80}),
      bf16("InfinityToNan", {0x7f80}, {0x7f81}),
      bf16("CarryIntoExponent", {0x3fff, 0x407f}, {0x4000, 0x4080}),
      bf16("BorrowFromExponent", {0x4000, 0xc080}, {0x3fff, 0xc07f}),
      bf16("SignFlips", {0x3f80, 0xbf80, 0x0001}, {0xbf80, 0x3f80, 0x8001}),
      bf16("Denormals", {0x0001, 0x007f, 0x8001}, {0x0002, 0x0080, 0x8000}),
      bf16("ExtremeSteps", {0x0000, 0xffff, 0x7fff}, {0x7fff, 0x7fff, 0xffff}),
      bf16("AllChanged", U16(1000, 0x3f80), U16(1000, 0x3f7f)),
      bf16("LastUnitOfAGroup", U16(64, 0x3f80),
           [] {
             U16 v(64, 0x3f80);
             v[63] = 1;
             return v;
           }()),
      bf16("FirstUnitOfTheLastGroup", U16(65, 0x3f80),
           [] {
             U16 v(65, 0x3f80);
             v[64] = 1;
             return v;
           }()),
      {"Bool", DType::kBool, {0, 1, 1, 0}, {1, 1, 0, 0}},
      {"SmallestFloat8", DType::kF8E4M3, {0x00, 0x80, 0x7f, 0xff}, {0x80, 0x00, 0xff, 0x7f}},
      {"PackedFloat4", DType::kF4, {0x12, 0x34}, {0x13, 0x34}},
      {"SignedWrap", DType::kI8, {0x7f, 0x80}, {0x80, 0x7f}},
      {"UnsignedWrap32", DType::kU32, Pack(U32{0, ~0u}), Pack(U32{~0u, 0})},
      {"Float32", DType::kF32, Pack(U32{0x3f800000, 0x80000000}), Pack(U32{0x3f800001, 0})},
      {"Signed64", DType::kI64, Pack(U64{1, ~0ull, 1ull << 63}), Pack(U64{~0ull, 1, 0})},
      {"Float64", DType::kF64, Pack(U64{0x3ff0000000000000}), Pack(U64{0xbff0000000000001})},
      {"Complex64", DType::kC64, Pack(U64{0x3f8000003f800000}), Pack(U64{0x3f8000003f800001})},
  };
}

class BoundaryTest : public testing::TestWithParam<Case> {};

TEST_P(BoundaryTest, RoundTrips) {
  const Case& row = GetParam();
  Scratch scratch;
  RoundTrip(row.dtype, row.base, row.next, scratch);
  RoundTrip(row.dtype, {}, row.next, scratch);
}

INSTANTIATE_TEST_SUITE_P(Boundaries, BoundaryTest, testing::ValuesIn(BoundaryCases()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace weightcast::delta
