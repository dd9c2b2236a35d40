#include "layout/owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace weightcast::layout {
namespace {

using ::testing::ElementsAre;

Slice Of(const Box& box, int64_t source, int64_t row_stride, int64_t col_stride = 1) {
  Slice s;
  s.box = box;
  s.source = source;
  s.row_stride = row_stride;
  s.col_stride = col_stride;
  return s;
}

Box Rows(int64_t row, int64_t rows, int64_t step = 1) { return {row, rows, step, 0, 8, 1}; }

// In any order: what is merged is a set.
std::vector<Slice> Shuffled(std::vector<Slice> slices, uint32_t seed) {
  std::mt19937 random(seed);
  std::ranges::shuffle(slices, random);
  return slices;
}

TEST(Merging, RowsThatGoOnInTensorAndShardBecomeOneSlice) {
  const std::vector<Slice> cut = {Of(Rows(4, 2), 0, 8), Of(Rows(6, 1), 16, 8),
                                  Of(Rows(7, 3), 24, 8)};
  for (uint32_t seed = 0; seed < 6; ++seed) {
    EXPECT_THAT(Merged(Shuffled(cut, seed)), ElementsAre(Of(Rows(4, 6), 0, 8)));
  }
}

TEST(Merging, ColumnsThatGoOnBecomeOneSlice) {
  // Rows become columns: unit (i, j) is unit j * 5 + i of the shard.
  EXPECT_THAT(Merged({Of({0, 5, 1, 2, 3, 1}, 0, 1, 5), Of({0, 5, 1, 5, 4, 1}, 15, 1, 5)}),
              ElementsAre(Of({0, 5, 1, 2, 7, 1}, 0, 1, 5)));
}

TEST(Merging, ARectangleIsOneSliceHoweverItWasCut) {
  const auto part = [](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    return Of({row, rows, 1, col, cols, 1}, row * 8 + col, 8);
  };
  for (uint32_t seed = 0; seed < 10; ++seed) {
    EXPECT_THAT(Merged(Shuffled({part(0, 2, 0, 8), part(2, 1, 0, 4), part(2, 1, 4, 4)}, seed)),
                ElementsAre(part(0, 3, 0, 8)));
    EXPECT_THAT(Merged(Shuffled({part(0, 3, 0, 5), part(0, 1, 5, 3), part(1, 2, 5, 3)}, seed)),
                ElementsAre(part(0, 3, 0, 8)));
  }
}

TEST(Merging, RowsThatAlternateAreMergedEachWithItsOwn) {
  const std::vector<Slice> cut = {Of(Rows(0, 2, 2), 0, 8), Of(Rows(4, 3, 2), 16, 8),
                                  Of(Rows(1, 1, 2), 40, 8), Of(Rows(3, 4, 2), 48, 8)};
  for (uint32_t seed = 0; seed < 10; ++seed) {
    EXPECT_THAT(Merged(Shuffled(cut, seed)),
                ElementsAre(Of(Rows(0, 5, 2), 0, 8), Of(Rows(1, 5, 2), 40, 8)));
  }
}

TEST(Merging, WhatDoesNotGoOnInBothStaysApart) {
  const auto stay = [](Slice a, Slice b) { return Merged({a, b}).size() == 2; };
  const Slice first = Of(Rows(0, 2), 0, 8);
  EXPECT_TRUE(stay(first, Of(Rows(2, 2), 24, 8))) << "elsewhere in the shard";
  EXPECT_TRUE(stay(first, Of(Rows(3, 2), 16, 8))) << "elsewhere in the tensor";
  EXPECT_TRUE(stay(first, Of(Rows(2, 2), 16, 16))) << "another stride";
  EXPECT_TRUE(stay(first, Of({2, 2, 1, 0, 7, 1}, 16, 8))) << "other columns";
  Slice other = Of(Rows(2, 2), 16, 8);
  other.tensor = 1;
  EXPECT_TRUE(stay(first, other)) << "another tensor";
  other = Of(Rows(2, 2), 16, 8);
  other.map = ValueMap::kAddOneBf16;
  EXPECT_TRUE(stay(first, other)) << "other values";
}

TEST(Merging, ALoneRowOrColumnHasOneSpelling) {
  EXPECT_EQ(Merged({Of({3, 1, 2, 0, 8, 1}, 5, 77)}), Merged({Of({3, 1, 1, 0, 8, 1}, 5, 8)}));
  EXPECT_EQ(Merged({Of({3, 4, 1, 2, 1, 3}, 5, 1, 9)}), Merged({Of({3, 4, 1, 2, 1, 1}, 5, 1, 1)}));
}

// A tensor of several cells that four ranks hold, and many equal small ones.
struct Held {
  tensor::Inventory inventory;
  std::vector<SharedShard> shards;

  Held() : inventory(tensor::Inventory::Make(Specs()).value()) {
    for (size_t t = 0; t < inventory.size(); ++t) {
      SharedShard shard;
      const tensor::Matrix matrix = inventory[t].matrix();
      const int64_t half = matrix.rows / 2;
      for (const int64_t row : {int64_t{0}, half}) {
        Slice s = Of({row, half, 1, 0, matrix.cols, 1}, row * matrix.cols, matrix.cols);
        s.tensor = static_cast<int32_t>(t);
        shard.slices.push_back(s);
      }
      for (int32_t r = 0; r < 4; ++r) shard.places.push_back({r, static_cast<int32_t>(t)});
      shards.push_back(shard);
    }
  }
  static std::vector<tensor::TensorSpec> Specs() {
    std::vector<tensor::TensorSpec> specs = {{"large", tensor::DType::kBf16, {2048, 2048}}};
    for (int i = 0; i < 17; ++i) {
      specs.push_back({"norm" + std::to_string(i), tensor::DType::kBf16, {16}});
    }
    return specs;
  }
  std::vector<RankPlan> Assigned() const {
    std::vector<RankPlan> ranks(4);
    AssignOwners(inventory, shards, &ranks);
    return ranks;
  }
};

TEST(Owners, DoNotDependOnTheOrderOfShardsPlacesOrSlices) {
  Held held;
  const std::vector<RankPlan> first = held.Assigned();
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    std::ranges::shuffle(held.shards, random);
    for (SharedShard& shard : held.shards) {
      std::ranges::shuffle(shard.places, random);
      std::ranges::shuffle(shard.slices, random);
    }
    EXPECT_EQ(held.Assigned(), first);
  }
}

TEST(Owners, DoNotDependOnHowFinelySlicesWereCut) {
  Held held;
  const std::vector<RankPlan> first = held.Assigned();
  for (SharedShard& shard : held.shards) {
    Slice half = shard.slices[0];
    half.box.rows /= 2;
    Slice rest = half;
    rest.box.row += half.box.rows;
    rest.source += half.box.rows * half.row_stride;
    shard.slices = {rest, shard.slices[1], half};
  }
  EXPECT_EQ(held.Assigned(), first);
}

TEST(Owners, LargePiecesAreCutAtCellRowsAndSpreadEvenly) {
  for (const RankPlan& rank : Held().Assigned()) {
    int64_t units = 0;
    for (const Slice& s : rank.slices) {
      units += s.box.units();
      const bool large = s.tensor == 0;
      EXPECT_TRUE(!large || s.box.row % 512 == 0) << s.box.row;
    }
    EXPECT_NEAR(static_cast<double>(units), 2048.0 * 2048 / 4 + 17.0 * 16 / 4, 16);
  }
}

}  // namespace
}  // namespace weightcast::layout
