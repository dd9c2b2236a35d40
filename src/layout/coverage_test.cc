#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "layout/plan.h"

namespace weightcast::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<const tensor::Inventory> InventoryOf(std::vector<tensor::TensorSpec> specs) {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make(std::move(specs)).value());
}

// A plan of one tensor "w" [rows, cols] whose ranks own the given boxes, each read from a parameter
// as large as the tensor.
Plan PlanOf(int64_t rows, int64_t cols, const std::vector<std::vector<Box>>& ranks) {
  Plan plan;
  plan.inventory = InventoryOf({{"w", tensor::DType::kBf16, {rows, cols}}});
  plan.family = "test";
  for (const std::vector<Box>& boxes : ranks) {
    RankPlan& rank = plan.ranks.emplace_back();
    rank.params.push_back({"vp0/w", tensor::DType::kBf16, {rows, cols}});
    for (const Box& box : boxes) {
      Slice slice;
      slice.box = box;
      slice.row_stride = cols;
      rank.slices.push_back(slice);
    }
  }
  return plan;
}

std::string Fault(const Plan& plan) {
  const Status status = ProveCoverage(plan);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code, Code::kInvalidData);
  return status.error().message;
}

TEST(Coverage, HoldsForOneOwner) { EXPECT_EQ(Fault(PlanOf(4, 6, {{{0, 4, 1, 0, 6, 1}}})), ""); }

TEST(Coverage, HoldsForRowsColumnsAndBothCut) {
  EXPECT_EQ(Fault(PlanOf(4, 6, {{{0, 1, 1, 0, 6, 1}}, {{1, 3, 1, 0, 6, 1}}})), "");
  EXPECT_EQ(Fault(PlanOf(4, 6, {{{0, 4, 1, 0, 3, 1}}, {{0, 4, 1, 3, 3, 1}}})), "");
  EXPECT_EQ(Fault(PlanOf(4, 6, {{{0, 2, 1, 0, 3, 1}, {2, 2, 1, 0, 3, 1}}, {{0, 4, 1, 3, 3, 1}}})),
            "");
}

TEST(Coverage, HoldsForInterleavedRowsAndColumns) {
  EXPECT_EQ(Fault(PlanOf(4, 6, {{{0, 4, 1, 0, 3, 2}}, {{0, 4, 1, 1, 3, 2}}})), "");
  EXPECT_EQ(Fault(PlanOf(5, 1, {{{0, 3, 2, 0, 1, 1}}, {{1, 2, 2, 0, 1, 1}}})), "");
  EXPECT_EQ(Fault(PlanOf(6, 6, {{{0, 2, 3, 0, 6, 1}, {2, 2, 3, 0, 6, 1}}, {{1, 2, 3, 0, 6, 1}}})),
            "");
}

TEST(Coverage, EmptyTensorsNeedNoOwner) { EXPECT_EQ(Fault(PlanOf(0, 6, {{}})), ""); }

TEST(Coverage, NamesATensorWithoutOwner) {
  EXPECT_THAT(Fault(PlanOf(4, 6, {{}})), HasSubstr("w is covered in 0 of 24 units: no owner"));
}

TEST(Coverage, NamesRanksParametersAndBoxesOfAGap) {
  EXPECT_THAT(
      Fault(PlanOf(4, 6, {{{0, 2, 1, 0, 6, 1}}, {{3, 1, 1, 0, 6, 1}}})),
      AllOf(HasSubstr("covered in 18 of 24"), HasSubstr("rank 0 vp0/w"), HasSubstr("rank 1")));
}

TEST(Coverage, NamesBothOwnersOfADoublyCoveredUnit) {
  EXPECT_THAT(Fault(PlanOf(4, 6, {{{0, 3, 1, 0, 6, 1}}, {{2, 2, 1, 5, 1, 1}}})),
              AllOf(HasSubstr("w is doubly covered"), HasSubstr("rank 0"), HasSubstr("rank 1")));
}

TEST(Coverage, AGapIsNotHiddenByADoubleCoverOfTheSameSize) {
  EXPECT_THAT(Fault(PlanOf(4, 1, {{{0, 2, 1, 0, 1, 1}}, {{1, 2, 1, 0, 1, 1}}})),
              HasSubstr("doubly covered"));
}

TEST(Coverage, SameStepSameParityMeets) {
  EXPECT_THAT(Fault(PlanOf(1, 8, {{{0, 1, 1, 0, 4, 2}}, {{0, 1, 1, 2, 3, 2}}})),
              HasSubstr("doubly covered"));
  EXPECT_THAT(Fault(PlanOf(1, 12, {{{0, 1, 1, 0, 6, 2}}, {{0, 1, 1, 0, 4, 3}}})),
              HasSubstr("doubly covered"));
}

TEST(Coverage, ListsEveryFaultyTensor) {
  Plan plan;
  plan.inventory =
      InventoryOf({{"a", tensor::DType::kBf16, {2}}, {"b", tensor::DType::kBf16, {2}}});
  plan.ranks.resize(1);
  EXPECT_THAT(Fault(plan), AllOf(HasSubstr("a is covered"), HasSubstr("b is covered")));
}

struct Misfit {
  const char* name;
  void (*spoil)(Slice&);
  const char* says;
};

TEST(Coverage, RefusesSlicesThatDoNotFit) {
  const Misfit cases[] = {
      {"NoTensor", [](Slice& s) { s.tensor = 1; }, "no such tensor"},
      {"NegativeTensor", [](Slice& s) { s.tensor = -1; }, "no such tensor"},
      {"NoParam", [](Slice& s) { s.param = 1; }, "no such parameter"},
      {"Outside", [](Slice& s) { s.box.rows = 5; }, "outside the tensor"},
      {"ZeroStep", [](Slice& s) { s.box.row_step = 0; }, "outside the tensor"},
      {"Source", [](Slice& s) { s.source = 1; }, "outside the parameter"},
      {"NegativeSource", [](Slice& s) { s.source = -1; }, "outside the parameter"},
      {"Stride", [](Slice& s) { s.row_stride = 7; }, "outside the parameter"},
      {"HugeStride", [](Slice& s) { s.row_stride = INT64_MAX; }, "outside the parameter"},
      {"NegativeStride", [](Slice& s) { s.col_stride = -1; }, "outside the parameter"},
      {"Widen", [](Slice& s) { s.map = ValueMap::kWidenToF32; }, "tensor is BF16"},
  };
  for (const Misfit& c : cases) {
    SCOPED_TRACE(c.name);
    Plan plan = PlanOf(4, 6, {{{0, 4, 1, 0, 6, 1}}});
    c.spoil(plan.ranks[0].slices[0]);
    EXPECT_THAT(Fault(plan), HasSubstr(c.says));
  }
}

TEST(Coverage, RefusesAnotherDtype) {
  Plan plan = PlanOf(4, 6, {{{0, 4, 1, 0, 6, 1}}});
  plan.ranks[0].params[0].dtype = tensor::DType::kF16;
  EXPECT_THAT(Fault(plan), HasSubstr("parameter is F16, tensor is BF16"));
}

// Against counting every unit, on all kinds of small boxes.
TEST(Coverage, AgreesWithCountingOnRandomBoxes) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    const int64_t rows = pick(1, 5), cols = pick(1, 5);
    std::vector<std::vector<Box>> ranks(3);
    std::vector<int> count(static_cast<size_t>(rows * cols));
    const int64_t boxes = pick(1, 4);
    for (int64_t i = 0; i < boxes; ++i) {
      Box b;
      b.row = pick(0, rows - 1);
      b.row_step = pick(1, 3);
      b.rows = pick(1, (rows - 1 - b.row) / b.row_step + 1);
      b.col = pick(0, cols - 1);
      b.col_step = pick(1, 3);
      b.cols = pick(1, (cols - 1 - b.col) / b.col_step + 1);
      ranks[static_cast<size_t>(pick(0, 2))].push_back(b);
      for (int64_t r = 0; r < b.rows; ++r) {
        for (int64_t c = 0; c < b.cols; ++c) {
          ++count[static_cast<size_t>((b.row + r * b.row_step) * cols + b.col + c * b.col_step)];
        }
      }
    }
    Plan plan = PlanOf(rows, cols, ranks);
    for (RankPlan& rank : plan.ranks) {
      for (Slice& s : rank.slices) s.row_stride = s.col_stride = 0;  // only the boxes matter here
    }
    const std::set<int> counts(count.begin(), count.end());
    const std::string fault = Fault(plan);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + fault);
    if (counts == std::set<int>{1}) {
      EXPECT_EQ(fault, "");
    } else if (*counts.rbegin() > 1) {
      EXPECT_THAT(fault, HasSubstr("doubly covered"));
    } else {
      EXPECT_THAT(fault, AllOf(HasSubstr("is covered in"), Not(HasSubstr("doubly"))));
    }
  }
}

}  // namespace
}  // namespace weightcast::layout
