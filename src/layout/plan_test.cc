#include "layout/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace weightcast::layout {
namespace {

using tensor::DType;

std::shared_ptr<const tensor::Inventory> Toy() {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make({{"a", DType::kBf16, {2, 3}},
                               {"b", DType::kF32, {}},
                               {"c", DType::kU8, {0, 4}},
                               {"d", DType::kF4, {2, 4}}})
          .value());
}

TEST(Identity, HoldsEveryTensorWholeAndCoversIt) {
  const Plan plan = IdentityPlan(Toy());
  EXPECT_EQ(plan.family, "hf");
  ASSERT_EQ(plan.ranks.size(), 1U);
  EXPECT_EQ(plan.ranks[0].params.size(), 4U);
  EXPECT_EQ(plan.ranks[0].slices.size(), 3U);  // the empty tensor needs none
  EXPECT_EQ(plan.ranks[0].params[1].key, "b");
  EXPECT_TRUE(ProveCoverage(plan).ok()) << ProveCoverage(plan).error().message;
}

TEST(Hash, IsEqualForEqualPlansAndWhatThePageSays) {
  EXPECT_EQ(IdentityPlan(Toy()).Hash(), IdentityPlan(Toy()).Hash());
  // docs/formats/plan.md, made from the page by another program.
  const auto two = std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make({{"a", DType::kBf16, {2, 3}}, {"b", DType::kF32, {}}}).value());
  EXPECT_EQ(IdentityPlan(two).Hash().hex(),
            "b901ba5962950f8ebb8f794a15a94f4da4f9ba008ca3883755ea72d1b57f4815");
}

TEST(Hash, DiffersOnAnyChange) {
  using Change = void (*)(Plan&);
  const Change changes[] = {
      [](Plan&) {},
      [](Plan& p) { p.family = "other"; },
      [](Plan& p) {
        p.inventory = std::make_shared<const tensor::Inventory>(
            tensor::Inventory::Make({{"a", DType::kBf16, {3, 2}}}).value());
      },
      [](Plan& p) { p.ranks.emplace_back(); },
      [](Plan& p) { p.ranks[0].params[0].key = "A"; },
      [](Plan& p) { p.ranks[0].params[0].dtype = DType::kF16; },
      [](Plan& p) { p.ranks[0].params[0].shape = {3, 2}; },
      [](Plan& p) { p.ranks[0].params[0].shape = {6}; },
      [](Plan& p) { p.ranks[0].params.pop_back(); },
      [](Plan& p) { p.ranks[0].ignored.push_back("*"); },
      [](Plan& p) { p.ranks[0].slices.pop_back(); },
      [](Plan& p) { p.ranks[0].slices[0].tensor = 9; },
      [](Plan& p) { p.ranks[0].slices[0].param = 9; },
      [](Plan& p) { p.ranks[0].slices[0].source = 9; },
      [](Plan& p) { p.ranks[0].slices[0].row_stride = 9; },
      [](Plan& p) { p.ranks[0].slices[0].col_stride = 9; },
      [](Plan& p) { p.ranks[0].slices[0].map = ValueMap::kAddOneBf16; },
      [](Plan& p) { p.ranks[0].slices[0].box.row = 9; },
      [](Plan& p) { p.ranks[0].slices[0].box.rows = 9; },
      [](Plan& p) { p.ranks[0].slices[0].box.row_step = 9; },
      [](Plan& p) { p.ranks[0].slices[0].box.col = 9; },
      [](Plan& p) { p.ranks[0].slices[0].box.cols = 9; },
      [](Plan& p) { p.ranks[0].slices[0].box.col_step = 9; },
  };
  std::set<std::string> hashes;
  for (const Change change : changes) {
    Plan plan = IdentityPlan(Toy());
    change(plan);
    hashes.insert(plan.Hash().hex());
  }
  EXPECT_EQ(hashes.size(), std::size(changes));
}

// [rows x cols] lie row by row, column by column, and every second row behind a gap.
TEST(WayBack, LeadsFromEveryUnitToWhereItCameFrom) {
  const auto inventory = std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make({{"a", DType::kBf16, {6, 4}}, {"b", DType::kBf16, {5}}}).value());
  const Slice slices[] = {
      {.tensor = 0, .box = {0, 6, 1, 0, 4, 1}, .param = 0, .source = 3, .row_stride = 4},
      {.tensor = 0,
       .box = {0, 6, 1, 0, 4, 1},
       .param = 0,
       .source = 0,
       .row_stride = 1,
       .col_stride = 6},
      {.tensor = 0, .box = {1, 3, 2, 0, 4, 1}, .param = 0, .source = 0, .row_stride = 9},
      {.tensor = 0, .box = {2, 1, 1, 1, 3, 1}, .param = 0, .source = 5, .row_stride = 4},
      {.tensor = 1,
       .box = {0, 1, 1, 0, 5, 1},
       .param = 0,
       .source = 2,
       .row_stride = 1,
       .col_stride = 1},
      {.tensor = 1, .box = {0, 5, 1, 0, 1, 1}, .param = 0, .source = 2, .row_stride = 1},
  };
  for (const Slice& s : slices) {
    Plan plan{.inventory = inventory, .family = "", .ranks = {RankPlan{.slices = {s}}}};
    int64_t found = 0;
    for (int64_t unit = 0; unit < 64; ++unit) {
      const auto at = FindTensorUnit(plan.ranks[0], 0, unit);
      if (!at) continue;
      ++found;
      const auto owner = FindOwner(plan, at->tensor, at->row, at->col);
      ASSERT_TRUE(owner.has_value());
      EXPECT_EQ(owner->unit, unit);
    }
    EXPECT_EQ(found, s.box.units());
    EXPECT_FALSE(FindTensorUnit(plan.ranks[0], 1, s.source).has_value());
  }
}

}  // namespace
}  // namespace weightcast::layout
