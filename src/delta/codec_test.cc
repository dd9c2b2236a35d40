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
using testing::IsEmpty;

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

// ---- All small cases.

// Every base and next of `units` units over `alphabet`.
template <typename U>
void TryAll(DType dtype, size_t units, const std::vector<U>& alphabet) {
  Scratch scratch;
  size_t cases = 1;
  for (size_t i = 0; i < 2 * units; ++i) cases *= alphabet.size();
  for (size_t number = 0; number < cases; ++number) {
    std::vector<U> both(2 * units);
    for (size_t i = 0, rest = number; i < both.size(); ++i, rest /= alphabet.size()) {
      both[i] = alphabet[rest % alphabet.size()];
    }
    const auto middle = both.begin() + static_cast<int64_t>(units);
    RoundTrip(dtype, Pack(std::vector<U>(both.begin(), middle)),
              Pack(std::vector<U>(middle, both.end())), scratch);
    ASSERT_FALSE(testing::Test::HasFailure()) << "case " << number;
  }
}

TEST(CodecTest, RoundTripsAllTinyChunks) {
  TryAll<uint8_t>(DType::kU8, 2, {0, 1, 2, 127, 128, 254, 255});
  TryAll<uint8_t>(DType::kF8E4M3, 2, {0, 1, 8, 0x7e, 0x7f, 0x80, 0x81, 0xff});
  TryAll<uint16_t>(DType::kBf16, 2, {0, 1, 0x7f, 0x80, 0x3f80, 0x7fff, 0x8000, 0xffff});
  TryAll<uint16_t>(DType::kF16, 3, {0, 0x3ff, 0x400, 0x8000});
  TryAll<uint32_t>(DType::kF32, 2, {0, 0x3f800000, 0x80000000, 0xffffffff});
  TryAll<uint64_t>(DType::kF64, 2, {0, 1, 0x7fffffffffffffff, 0x8000000000000000, ~0ull});
  TryAll<uint64_t>(DType::kI64, 2, {0, 1, 0x7fffffffffffffff, 0x8000000000000000, ~0ull});
}

// ---- All dtypes, sizes around the groups of 64, densities, kinds of change.

enum class Change { kOneUp, kFewSteps, kAnyBits };

struct Chunk {
  Bytes base;
  Bytes next;
};

// Floats get magnitudes over many octaves. One in `rarity` units changes, never none.
Chunk MakeChunk(DType dtype, size_t units, uint32_t rarity, Change change, uint32_t seed) {
  std::mt19937_64 random(seed);
  const UnitFormat format = FormatOf(dtype);
  Chunk chunk;
  chunk.base.resize(units * format.bytes);
  for (uint8_t& byte : chunk.base) byte = static_cast<uint8_t>(random());
  chunk.next = chunk.base;
  WithUnit(format.bytes, [&]<typename U>() {
    for (size_t i = 0; i < units; ++i) {
      if (random() % rarity != 0 && i != units / 2) continue;
      const U old_unit = LoadUnit<U>(chunk.base, i);
      const U code = change == Change::kOneUp ? U{1} : static_cast<U>(random() % 50);
      const U new_unit =
          change == Change::kAnyBits ? static_cast<U>(random()) : ApplyStep(format, old_unit, code);
      StoreUnit(chunk.next, i, new_unit);
    }
  });
  return chunk;
}

class DTypeTest : public testing::TestWithParam<int> {
 protected:
  ~DTypeTest() override {
    ForceScanKernel(ScanKernel::kAvx512) || ForceScanKernel(ScanKernel::kAvx2);
  }

  const DType dtype_ = static_cast<DType>(GetParam());
  Scratch scratch_;
};

TEST_P(DTypeTest, RoundTripsAllSizesDensitiesAndChanges) {
  for (const size_t units : {1u, 2u, 63u, 64u, 65u, 127u, 500u, 4095u, 4097u, 9000u}) {
    for (const uint32_t rarity : {1u, 2u, 7u, 60u, 1000000u}) {
      for (const Change change : {Change::kOneUp, Change::kFewSteps, Change::kAnyBits}) {
        const Chunk chunk = MakeChunk(dtype_, units, rarity, change, 5);
        RoundTrip(dtype_, chunk.base, chunk.next, scratch_);
        ASSERT_FALSE(HasFailure())
            << units << " units, one of " << rarity << ", change " << static_cast<int>(change);
      }
    }
  }
}

TEST_P(DTypeTest, EveryMethodRoundTrips) {
  for (const MethodRow* row : {&kClassGapsMethod, &kBitmapMethod, &kXorPlanesMethod, &kRawMethod}) {
    for (const uint32_t rarity : {1u, 9u, 400u}) {
      const Chunk chunk = MakeChunk(dtype_, 3000, rarity, Change::kFewSteps, rarity);
      Bytes ignored;
      EncodeChunk(dtype_, chunk.base, chunk.next, scratch_, &ignored);
      Scratch::State& found = scratch_.state();  // of the changed units
      const std::vector<uint64_t> mask = found.mask;
      const std::vector<uint32_t> changed = found.changed;
      const Bytes old_units = found.old_units;
      const Bytes new_units = found.new_units;
      const UnitFormat format = FormatOf(dtype_);
      const ChunkDiff diff{format, 3000,    chunk.base, chunk.next,
                           mask,   changed, old_units,  new_units};
      const ChunkProfile profile = ProfileChunk(format, chunk.base, old_units, new_units);
      Bytes payload;
      row->encode(diff, profile, found, &payload);
      Bytes restored(chunk.next.size());
      const ChunkPayload in{format, 3000, changed.size(), chunk.base, payload};
      const Status status = row->decode(in, found, restored);
      ASSERT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(restored, chunk.next) << static_cast<int>(row->method);
      EXPECT_EQ(found.mask, mask);
    }
  }
}

TEST_P(DTypeTest, AllKernelsGiveEqualBytes) {
  for (const size_t units : {1u, 100u, 5000u}) {
    for (const uint32_t rarity : {2u, 50u}) {
      const Chunk chunk = MakeChunk(dtype_, units, rarity, Change::kFewSteps, 3);
      ASSERT_TRUE(ForceScanKernel(ScanKernel::kPortable));
      const Bytes want = RoundTrip(dtype_, chunk.base, chunk.next, scratch_).payload;
      for (const ScanKernel kernel : {ScanKernel::kAvx2, ScanKernel::kAvx512}) {
        if (!ForceScanKernel(kernel)) continue;
        EXPECT_EQ(RoundTrip(dtype_, chunk.base, chunk.next, scratch_).payload, want);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DTypeTest, testing::Range(0, tensor::kDTypes), [](const auto& row) {
  return std::string(DTypeName(static_cast<DType>(row.param)));
});

// ---- Class gaps with every number of classes, wherever they lie.

TEST(ClassGapsTest, AnyClassesComeBack) {
  std::mt19937_64 random(11);
  Scratch scratch;
  for (size_t classes = 1; classes <= kClassesMax; ++classes) {
    for (int round = 0; round < 20; ++round) {
      const Chunk chunk = MakeChunk(DType::kBf16, 2000, 1 + static_cast<uint32_t>(random() % 40),
                                    Change::kFewSteps, static_cast<uint32_t>(random()));
      Bytes ignored;
      EncodeChunk(DType::kBf16, chunk.base, chunk.next, scratch, &ignored);
      Scratch::State& state = scratch.state();
      ChunkProfile profile;
      profile.classes.format = FormatOf(DType::kBf16);
      profile.classes.classes = classes;
      std::vector<uint32_t> octaves(255);
      std::ranges::generate(octaves, [n = uint32_t{0}]() mutable { return ++n; });
      std::ranges::shuffle(octaves, random);
      std::ranges::copy_n(octaves.begin(), static_cast<int64_t>(classes - 1),
                          profile.classes.first_octave.begin() + 1);
      std::ranges::sort(profile.classes.first_octave.begin() + 1,
                        profile.classes.first_octave.begin() + static_cast<int64_t>(classes));
      const std::vector<uint64_t> mask = state.mask;
      const std::vector<uint32_t> changed = state.changed;
      const ChunkDiff diff{
          profile.classes.format, 2000,           chunk.base, chunk.next, mask, changed,
          state.old_units,        state.new_units};
      Bytes payload;
      kClassGapsMethod.encode(diff, profile, state, &payload);
      EXPECT_EQ(payload[0], classes);
      Bytes restored(chunk.next.size());
      const Status status =
          DecodeChunk(Method::kClassGaps, DType::kBf16, static_cast<int64_t>(changed.size()),
                      payload, chunk.base, scratch, restored);
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_EQ(restored, chunk.next);
    }
  }
}

// ---- Untrusted payloads.

// Decodes what may be anything: it is refused, or keeps the promises of a chunk.
void ExpectRefusedOrWellFormed(Method method, DType dtype, size_t changed, const Bytes& payload,
                               const Bytes& base, Scratch& scratch) {
  Bytes next(base.size(), 0x77);
  const Status status =
      DecodeChunk(method, dtype, static_cast<int64_t>(changed), payload, base, scratch, next);
  if (!status.ok()) {
    EXPECT_EQ(status.error().code, Code::kDataLoss);
    return;
  }
  const std::vector<uint32_t> differing =
      ChangedUnits(static_cast<size_t>(tensor::UnitBytes(dtype)), base, next);
  EXPECT_EQ(differing.size(), changed);
  EXPECT_EQ(scratch.changed(), differing);
}

struct Damaged {
  const char* name;
  DType dtype;
  size_t units;
  uint32_t rarity;
  Change change;
  Method method;  // that the encoder chooses
};

class DamageTest : public testing::TestWithParam<Damaged> {
 protected:
  void SetUp() override {
    const Damaged& row = GetParam();
    chunk_ = MakeChunk(row.dtype, row.units, row.rarity, row.change, 1);
    encoded_ = RoundTrip(row.dtype, chunk_.base, chunk_.next, scratch_);
    ASSERT_EQ(encoded_.info.method, row.method);
  }
  Status Decode(const Bytes& payload, int64_t changed) {
    Bytes next(chunk_.next.size());
    return DecodeChunk(encoded_.info.method, GetParam().dtype, changed, payload, chunk_.base,
                       scratch_, next);
  }

  Scratch scratch_;
  Chunk chunk_;
  Encoded encoded_;
};

TEST_P(DamageTest, RejectsEveryTruncationAndAnythingAppended) {
  Bytes payload = encoded_.payload;
  payload.push_back(0);
  EXPECT_EQ(Decode(payload, encoded_.info.changed_units).error().code, Code::kDataLoss);
  for (size_t n = 0; n < encoded_.payload.size(); ++n) {
    payload.assign(encoded_.payload.begin(), encoded_.payload.begin() + static_cast<int64_t>(n));
    EXPECT_EQ(Decode(payload, encoded_.info.changed_units).error().code, Code::kDataLoss) << n;
  }
}

TEST_P(DamageTest, RejectsAnyOtherNumberOfChanges) {
  const int64_t units = static_cast<int64_t>(GetParam().units);
  for (const int64_t changed : {int64_t{-1}, int64_t{0}, encoded_.info.changed_units - 1,
                                encoded_.info.changed_units + 1, units + 1, int64_t{1} << 40}) {
    EXPECT_EQ(Decode(encoded_.payload, changed).error().code, Code::kDataLoss) << changed;
  }
}

TEST_P(DamageTest, FlippedBitsAreRefusedOrWellFormed) {
  for (size_t bit = 0; bit < 8 * encoded_.payload.size(); ++bit) {
    Bytes flipped = encoded_.payload;
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ExpectRefusedOrWellFormed(encoded_.info.method, GetParam().dtype,
                              static_cast<size_t>(encoded_.info.changed_units), flipped,
                              chunk_.base, scratch_);
    ASSERT_FALSE(HasFailure()) << "bit " << bit;
  }
}

TEST_P(DamageTest, IsNoOtherMethod) {
  for (const Method method : {Method::kAbsent, Method::kClassGaps, Method::kBitmap,
                              Method::kXorPlanes, Method::kRaw, Method{5}, Method{255}}) {
    if (method == encoded_.info.method) continue;
    ExpectRefusedOrWellFormed(method, GetParam().dtype,
                              static_cast<size_t>(encoded_.info.changed_units), encoded_.payload,
                              chunk_.base, scratch_);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Payloads, DamageTest,
    testing::Values(
        Damaged{"StoredGaps", DType::kBf16, 300, 20, Change::kOneUp, Method::kClassGaps},
        Damaged{"CompressedGaps", DType::kBf16, 900, 4, Change::kOneUp, Method::kClassGaps},
        Damaged{"GapsWithTail", DType::kF32, 800, 20, Change::kFewSteps, Method::kClassGaps},
        Damaged{"GapsWithoutClasses", DType::kI32, 1500, 30, Change::kOneUp, Method::kClassGaps},
        Damaged{"Bitmap", DType::kI16, 500, 3, Change::kAnyBits, Method::kBitmap},
        Damaged{"Raw", DType::kF64, 40, 1, Change::kAnyBits, Method::kRaw}),
    [](const auto& row) { return row.param.name; });

TEST(CodecTest, PayloadsThatOverflowTheirNumbersAreRefused) {
  // One class, one changed unit of four: count 1, shift 0, one low bit, no tail, stored symbol.
  const Bytes base = Pack<uint16_t>({1, 2, 3, 4});
  const struct {
    const char* name;
    Bytes payload;
    bool ok;
  } rows[] = {
      {"Good", {1, 1, 0, 1, 0, 0, 3}, true},
      {"NoClass", {0, 1, 0, 1, 0, 0, 3}, false},
      {"NineClasses", {9, 1, 0, 1, 0, 0, 3}, false},
      {"TwoClasses", {2, 1, 1, 0, 0, 1, 0, 0, 3}, true},
      {"RankBeyondItsClass", {2, 1, 0, 1, 0, 1, 0, 0, 3}, false},
      {"ThresholdZero", {2, 0, 1, 0, 0, 1, 0, 0, 3}, false},
      {"ThresholdBehindTheOctaves", {2, 0x80, 0x02, 1, 0, 0, 1, 0, 0, 3}, false},
      {"NoChange", {1, 0, 0, 0, 0}, false},
      {"ShiftTooLarge", {1, 1, 21, 1, 0, 0, 0, 0, 3}, false},
      {"SpareBits", {1, 1, 0, 3, 0, 0, 3}, false},
      {"LongVarint", {1, 0x81, 0x00, 0, 1, 0, 0, 3}, false},
      {"GapOutOfTheChunk", {1, 1, 0, 1, 0, 0, 4}, false},
      {"GapOutOfTheWorld",
       {1, 1, 20, 0xff, 0xff, 0x1f, 10, 0, 15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        1},
       false},
      {"TailUnused", {1, 1, 0, 1, 1, 0, 3, 0}, false},
      {"TailMissing", {1, 1, 0, 1, 0, 0, 15}, false},
      {"LargestStepUp", {1, 1, 0, 1, 3, 0, 0xf0, 0xef, 0xff, 1}, true},
      {"StepUpTooFar", {1, 1, 0, 1, 3, 0, 0xf0, 0xf0, 0xff, 1}, false},
      {"LargestStepDown", {1, 1, 0, 0, 3, 0, 0xf0, 0xf0, 0xff, 1}, true},
      {"StepDownTooFar", {1, 1, 0, 0, 3, 0, 0xf0, 0xf1, 0xff, 1}, false},
  };
  Scratch scratch;
  for (const auto& row : rows) {
    Bytes large_base = base;  // room for payloads that are longer than eight bytes
    large_base.resize(64);
    Bytes next(64);
    const bool small = std::string_view(row.name) == "GapOutOfTheChunk";
    const MutableByteSpan out = MutableByteSpan(next).first(small ? 8 : 64);
    const Status status = DecodeChunk(Method::kClassGaps, DType::kBf16, 1, row.payload,
                                      ByteSpan(large_base).first(out.size()), scratch, out);
    EXPECT_EQ(status.ok(), row.ok) << row.name << (status.ok() ? "" : status.error().message);
  }
}

TEST(CodecTest, WithoutBaseOnlyPlanesAndRawDecode) {
  Scratch scratch;
  Bytes next(8);
  const Bytes payload(8, 1);
  for (const Method method : {Method::kAbsent, Method::kClassGaps, Method::kBitmap}) {
    EXPECT_EQ(DecodeChunk(method, DType::kBf16, 4, payload, {}, scratch, next).error().code,
              Code::kDataLoss);
  }
  EXPECT_TRUE(DecodeChunk(Method::kRaw, DType::kBf16, 4, payload, {}, scratch, next).ok());
  EXPECT_FALSE(DecodeChunk(Method::kRaw, DType::kBf16, 3, payload, {}, scratch, next).ok());
}

// ---- Sizes.

struct Training {
  const char* name;
  float learning_rate;
  int steps;
  double bytes_per_changed_max;
};

class TrainingTest : public testing::TestWithParam<Training> {};

TEST_P(TrainingTest, TakesFewBytes) {
  const Training& row = GetParam();
  AdamSim sim({.learning_rate = row.learning_rate}, 1 << 20);
  for (int i = 1; i < row.steps; ++i) sim.Step();
  const Bytes base = Pack(sim.weights());
  sim.Step();
  Scratch scratch;
  const Encoded encoded = RoundTrip(DType::kBf16, base, Pack(sim.weights()), scratch);
  const double per_changed =
      static_cast<double>(encoded.payload.size()) / static_cast<double>(encoded.info.changed_units);
  EXPECT_LT(per_changed, row.bytes_per_changed_max);
  EXPECT_EQ(encoded.info.method, Method::kClassGaps);
}

// Limits are what was measured and 2 %; docs/design/codec.md has the table.
INSTANTIATE_TEST_SUITE_P(Densities, TrainingTest,
                         testing::Values(Training{"Sparse", 1e-7f, 30, 0.97},
                                         Training{"FirstStep", 1e-6f, 1, 0.28},
                                         Training{"Usual", 1e-6f, 30, 0.82},
                                         Training{"Dense", 1e-5f, 30, 0.72},
                                         Training{"VeryDense", 5e-5f, 30, 0.61}),
                         [](const auto& row) { return row.param.name; });

TEST(CodecTest, TenChangesCostLittle) {
  AdamSim sim({}, 1 << 20);
  const Bytes base = Pack(sim.weights());
  Bytes next = base;
  for (size_t i = 0; i < 10; ++i) next[i * 200000] ^= 1;
  Scratch scratch;
  EXPECT_LE(RoundTrip(DType::kBf16, base, next, scratch).payload.size(), 45u);  // 23 at the least
}

TEST(CodecTest, FullChunksShrink) {
  AdamSim sim({}, 1 << 20);
  Scratch scratch;
  const Encoded encoded = RoundTrip(DType::kBf16, {}, Pack(sim.weights()), scratch);
  EXPECT_EQ(encoded.info.method, Method::kXorPlanes);
  EXPECT_LT(encoded.payload.size(), size_t{2 << 20} * 70 / 100);
}

}  // namespace
}  // namespace weightcast::delta
