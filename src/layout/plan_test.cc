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

}  // namespace
}  // namespace weightcast::layout
