#include "delta/cost.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace weightcast::delta {
namespace {

TEST(CostTest, LogarithmIsExactAtPowersOfTwo) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    EXPECT_EQ(Log2Fixed(uint64_t{1} << bit), uint64_t{bit} << 16);
  }
}

TEST(CostTest, LogarithmIsNearAndNeverFalls) {
  uint64_t before = 0;
  for (uint64_t x = 1; x < uint64_t{1} << 62; x += 1 + x / 1000) {
    const uint64_t log = Log2Fixed(x);
    EXPECT_NEAR(static_cast<double>(log) / 65536, std::log2(static_cast<double>(x)), 1.0 / 16384);
    EXPECT_GE(log, before);
    before = log;
  }
}

TEST(CostTest, EntropyOfKnownDistributions) {
  EXPECT_EQ(EntropyBits(std::array<uint32_t, 3>{}), 0u);
  EXPECT_EQ(EntropyBits(std::array<uint32_t, 3>{0, 7, 0}), 0u);
  EXPECT_EQ(EntropyBits(std::array<uint32_t, 4>{8, 8, 8, 8}), 64u);
  EXPECT_EQ(EntropyBits(std::array<uint32_t, 3>{2, 1, 1}), 6u);
}

TEST(CostTest, MarksCostWhatTheyMust) {
  EXPECT_EQ(MarkBits(0, 100), 0u);
  EXPECT_EQ(MarkBits(100, 100), 0u);
  EXPECT_EQ(MarkBits(512, 1024), 1024u);
  for (const double all : {100.0, 5000.0, 1048576.0}) {
    for (const double share : {0.0001, 0.01, 0.0624, 0.0626, 0.3, 0.9}) {
      const double set = std::floor(all * share);
      if (set < 1) continue;
      const double want = set * std::log2(all / set) + (all - set) * std::log2(all / (all - set));
      const auto got = MarkBits(static_cast<uint64_t>(set), static_cast<uint64_t>(all));
      EXPECT_NEAR(static_cast<double>(got), want, 2 + want / 500) << set << " of " << all;
    }
  }
}

}  // namespace
}  // namespace weightcast::delta
