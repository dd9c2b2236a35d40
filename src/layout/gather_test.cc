#include "layout/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace weightcast::layout {
namespace {

using tensor::DType;
using tensor::Matrix;

Bytes Filled(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

int64_t Pick(std::mt19937& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

Box RandomBox(std::mt19937& random, const Box& frame, int64_t step_max) {
  const auto pick = [&](int64_t low, int64_t high) { return Pick(random, low, high); };
  Box b;
  b.row_step = pick(1, step_max);
  b.col_step = pick(1, step_max);
  b.row = frame.row + pick(0, frame.rows - 1);
  b.col = frame.col + pick(0, frame.cols - 1);
  b.rows = pick(1, (frame.row + frame.rows - 1 - b.row) / b.row_step + 1);
  b.cols = pick(1, (frame.col + frame.cols - 1 - b.col) / b.col_step + 1);
  return b;
}

// Every unit size and kind of box, against one memcpy a unit, at odd alignments.
TEST(Frames, GatherAndScatterAgreeWithUnitByUnit) {
  for (uint32_t seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int unit = 1 << (seed % 4);
    const Matrix m{Pick(random, 1, 40), Pick(random, 1, 40), unit};
    const Box frame = RandomBox(random, Box::All(m), 1);
    const Box box = RandomBox(random, frame, 3);
    const Bytes storage = Filled(static_cast<size_t>(frame.units() * unit) + 1, seed);
    const ByteSpan bytes = ByteSpan(storage).subspan(1);
    Bytes packed(static_cast<size_t>(box.units() * unit));
    GatherFromFrame(m, box, frame, bytes, packed);
    Bytes expected;
    for (int64_t r = 0; r < box.rows; ++r) {
      for (int64_t c = 0; c < box.cols; ++c) {
        const int64_t at = (box.row + r * box.row_step - frame.row) * frame.cols + box.col +
                           c * box.col_step - frame.col;
        const ByteSpan one =
            bytes.subspan(static_cast<size_t>(at * unit), static_cast<size_t>(unit));
        expected.insert(expected.end(), one.begin(), one.end());
      }
    }
    ASSERT_EQ(packed, expected);

    // Scattered over noise, the box reads back and nothing else has changed.
    Bytes noise = Filled(bytes.size(), seed + 1);
    Bytes after = noise;
    ScatterBox(m, box, packed, frame, after);
    Bytes again(packed.size());
    GatherFromFrame(m, box, frame, after, again);
    ASSERT_EQ(again, packed);
    Bytes old(packed.size());
    GatherFromFrame(m, box, frame, noise, old);
    ScatterBox(m, box, old, frame, after);
    ASSERT_EQ(after, noise);
  }
}

TEST(Frames, GatherBoxReadsTheWholeTensor) {
  const Matrix m{3, 4, 2};
  const Bytes canonical = Filled(24, 1);
  Bytes packed(4);
  GatherBox(m, {1, 2, 1, 3, 1, 1}, canonical, packed);
  EXPECT_EQ(packed, (Bytes{canonical[14], canonical[15], canonical[22], canonical[23]}));
}

Chunk ChunkOf(Box box, std::vector<Fragment> fragments) {
  Chunk chunk;
  chunk.box = box;
  chunk.fragments = std::move(fragments);
  return chunk;
}

Bytes Gathered(const tensor::TensorSpec& spec, const Chunk& chunk,
               const std::vector<ByteSpan>& params) {
  Bytes buffer;
  const ByteSpan units = GatherChunk(spec, chunk, params, &buffer);
  return {units.begin(), units.end()};
}

TEST(Shards, FragmentsOfSeveralParametersMakeOneChunk) {
  // Two columns from one parameter, one from another, which is stored transposed.
  const Bytes a = {0, 1, 2, 3}, b = {9, 8};
  const std::vector<ByteSpan> params = {a, b};
  EXPECT_EQ(
      Gathered({"w", DType::kU8, {2, 3}},
               ChunkOf({0, 2, 1, 0, 3, 1}, {{{0, 2, 1, 0, 2, 1}, 0, 0, 2, 1, ValueMap::kCopy},
                                            {{0, 2, 1, 2, 1, 1}, 1, 0, 1, 2, ValueMap::kCopy}}),
               params),
      (Bytes{0, 1, 9, 2, 3, 8}));
}

TEST(Shards, EverySecondElementAndATransposedMatrixArriveInLogicalOrder) {  // D2
  const Bytes shard = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<ByteSpan> params = {shard};
  Bytes out = Gathered(
      {"w", DType::kU8, {4}},
      ChunkOf({0, 4, 1, 0, 1, 1}, {{{0, 4, 1, 0, 1, 1}, 0, 1, 2, 1, ValueMap::kCopy}}), params);
  EXPECT_EQ(out, (Bytes{1, 3, 5, 7}));
  out = Gathered({"w", DType::kU8, {4, 2}},
                 ChunkOf({0, 4, 1, 0, 2, 1}, {{{0, 4, 1, 0, 2, 1}, 0, 0, 1, 4, ValueMap::kCopy}}),
                 params);
  EXPECT_EQ(out, (Bytes{0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST(Shards, ScalarsAndOneElementTensorsMove) {  // D3
  const Bytes shard = {1, 2, 3, 4};
  const std::vector<ByteSpan> params = {shard};
  Bytes out = Gathered(
      {"s", DType::kF32, {}},
      ChunkOf({0, 1, 1, 0, 1, 1}, {{{0, 1, 1, 0, 1, 1}, 0, 0, 1, 1, ValueMap::kCopy}}), params);
  EXPECT_EQ(out, shard);
}

TEST(Shards, AChunkThatIsOneRunIsReadWhereItLies) {
  const Bytes shard = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<ByteSpan> params = {shard};
  const tensor::TensorSpec spec{"w", DType::kU8, {4, 2}};
  const Box rows{1, 3, 1, 0, 2, 1};
  Bytes buffer(8);  // never moves
  const auto at = [&](Fragment f) {
    return GatherChunk(spec, ChunkOf(f.box, {f}), params, &buffer).data();
  };
  EXPECT_EQ(at({rows, 0, 2, 2, 1, ValueMap::kCopy}), shard.data() + 2);
  EXPECT_EQ(at({{0, 1, 1, 0, 2, 1}, 0, 6, 99, 1, ValueMap::kCopy}), shard.data() + 6);  // one row
  EXPECT_EQ(at({{0, 3, 1, 1, 1, 1}, 0, 4, 1, 99, ValueMap::kCopy}),
            shard.data() + 4);  // one column
  EXPECT_EQ(buffer.size(), 8U);
  EXPECT_EQ(at({{0, 2, 1, 0, 2, 1}, 0, 0, 3, 1, ValueMap::kCopy}), buffer.data());  // gaps
  EXPECT_EQ(at({{0, 2, 1, 0, 2, 1}, 0, 0, 1, 2, ValueMap::kCopy}), buffer.data());  // transposed
}

TEST(Shards, ScatterSliceIsTheDirectWayOfGatherChunk) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Matrix m{Pick(random, 1, 20), Pick(random, 1, 20), 2};
    Slice s;
    s.box = RandomBox(random, Box::All(m), 3);
    const bool transposed = random() % 2 == 0;
    s.row_stride = transposed ? 1 : s.box.cols;
    s.col_stride = transposed ? s.box.rows : 1;
    s.source = Pick(random, 0, 2);
    const Bytes shard = Filled(static_cast<size_t>((s.source + s.box.units()) * 2), seed);
    const std::vector<ByteSpan> params = {shard};
    const tensor::TensorSpec spec{"w", DType::kBf16, {m.rows, m.cols}};
    const Bytes packed = Gathered(
        spec, ChunkOf(s.box, {{s.box, 0, s.source, s.row_stride, s.col_stride, s.map}}), params);
    Bytes via_chunk(static_cast<size_t>(m.bytes())), direct(via_chunk.size());
    ScatterBox(m, s.box, packed, Box::All(m), via_chunk);
    ScatterSlice(m, s, shard, direct);
    ASSERT_EQ(via_chunk, direct);
  }
}

template <typename Out>
std::vector<Out> Mapped(ValueMap map, DType dtype, const std::vector<uint16_t>& in) {
  const int64_t n = static_cast<int64_t>(in.size());
  Bytes shard(in.size() * 2);
  std::memcpy(shard.data(), in.data(), shard.size());
  const std::vector<ByteSpan> params = {shard};
  const Bytes out =
      Gathered({"w", dtype, {n}},
               ChunkOf({0, n, 1, 0, 1, 1}, {{{0, n, 1, 0, 1, 1}, 0, 0, 1, 1, map}}), params);
  std::vector<Out> values(in.size());
  std::memcpy(values.data(), out.data(), out.size());
  return values;
}

TEST(Maps, AddOneIsComputedInBf16WithTiesToEven) {
  // 0 -> 1; 1 -> 2; -1 -> 0; 2^-8 -> tie, down to 1; 3 * 2^-8 -> tie, up to 1 + 2^-6;
  // 2^-8 + a bit -> 1 + 2^-7; inf stays; NaN stays a NaN.
  EXPECT_THAT(
      Mapped<uint16_t>(ValueMap::kAddOneBf16, DType::kBf16,
                       {0x0000, 0x3f80, 0xbf80, 0x3b80, 0x3c40, 0x3b81, 0x7f80, 0xff81}),
      ::testing::ElementsAre(0x3f80, 0x4000, 0x0000, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0xffc1));
}

TEST(Maps, WideningKeepsEveryBit) {
  EXPECT_THAT(
      Mapped<uint32_t>(ValueMap::kWidenToF32, DType::kF32, {0x8000, 0x7f81, 0x3f80, 0x0001}),
      ::testing::ElementsAre(0x80000000U, 0x7f810000U, 0x3f800000U, 0x00010000U));
}

}  // namespace
}  // namespace weightcast::layout
