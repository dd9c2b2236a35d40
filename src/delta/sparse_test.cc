#include "delta/sparse.h"

#include <gtest/gtest.h>

#include <numeric>

namespace weightcast::delta {
namespace {

struct Case {
  const char* name;
  std::vector<uint32_t> positions;
};

const Case kCases[] = {
    {"None", {}},
    {"First", {0}},
    {"Last", {999}},
    {"Neighbours", {0, 1, 2, 998, 999}},
    {"LongGaps", {127, 128, 256, 900}},
};

class SparseTest : public testing::TestWithParam<std::tuple<Case, int>> {};

INSTANTIATE_TEST_SUITE_P(Cases, SparseTest,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(1, 2, 4, 8)),
                         [](const auto& row) {
                           return std::string(std::get<0>(row.param).name) +
                                  std::to_string(std::get<1>(row.param));
                         });

TEST_P(SparseTest, ScatterPutsBackJustTheUnitsThatWereTaken) {
  const auto& [row, unit_bytes] = GetParam();
  const auto size = static_cast<size_t>(unit_bytes);
  Bytes next(1000 * size);
  std::iota(next.begin(), next.end(), uint8_t{1});
  Bytes expected(next.size());
  for (const uint32_t position : row.positions) {
    CopyBytes(ByteSpan(next).subspan(position * size, size),
              MutableByteSpan(expected).subspan(position * size));
  }
  Bytes gaps;
  Bytes units;
  AppendGaps(row.positions, &gaps);
  AppendUnits(next, row.positions, unit_bytes, &units);
  EXPECT_EQ(units.size(), row.positions.size() * size);
  Bytes found(next.size());
  EXPECT_TRUE(ScatterUnits(unit_bytes, gaps, units, found));
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(ScatterUnits(unit_bytes, gaps, units, found));  // again does no harm
  EXPECT_EQ(found, expected);
}

TEST_P(SparseTest, PositionsAreReadBack) {
  const auto& [row, unit_bytes] = GetParam();
  Bytes gaps;
  AppendGaps(row.positions, &gaps);
  std::vector<uint32_t> found;
  EXPECT_TRUE(ReadGaps(gaps, row.positions.size(), 1000, &found));
  EXPECT_EQ(found, row.positions);
}

TEST(SparseTest, ReadsNoPositionsThatDoNotFit) {
  std::vector<uint32_t> found;
  EXPECT_TRUE(ReadGaps(Bytes{3}, 1, 4, &found));
  EXPECT_FALSE(ReadGaps(Bytes{4}, 1, 4, &found)) << "behind the end";
  EXPECT_FALSE(ReadGaps(Bytes{3, 0}, 2, 4, &found)) << "one more behind the last";
  EXPECT_FALSE(ReadGaps(Bytes{0xff, 0xff, 0xff, 0xff, 0x7f}, 1, 4, &found)) << "far behind";
  EXPECT_FALSE(ReadGaps(Bytes{0, 0}, 1, 4, &found)) << "more gaps than said";
  EXPECT_FALSE(ReadGaps(Bytes{}, 1, 4, &found)) << "fewer";
  EXPECT_FALSE(ReadGaps(Bytes{0x80}, 1, 4, &found)) << "a gap that ends early";
}

TEST(SparseTest, RefusesPositionsThatDoNotFit) {
  const Bytes one = {7};
  Bytes chunk(4);
  EXPECT_TRUE(ScatterUnits(1, Bytes{3}, one, chunk));
  EXPECT_FALSE(ScatterUnits(1, Bytes{4}, one, chunk)) << "behind the end";
  EXPECT_FALSE(ScatterUnits(1, Bytes{0xff, 0xff, 0xff, 0xff, 0x7f}, one, chunk)) << "far behind";
  EXPECT_FALSE(ScatterUnits(1, Bytes{0, 0}, one, chunk)) << "more gaps than units";
  EXPECT_FALSE(ScatterUnits(1, Bytes{}, one, chunk)) << "fewer gaps than units";
  EXPECT_FALSE(ScatterUnits(1, Bytes{0x80}, one, chunk)) << "a gap that ends early";
}

}  // namespace
}  // namespace weightcast::delta
