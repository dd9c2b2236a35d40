#include "bridge/shard_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast::bridge {
namespace {

using layout::RankPlan;
using tensor::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RankPlan Rank() {
  RankPlan rank;
  rank.params = {{"vp0/a", DType::kBf16, {2, 3}}, {"vp0/b", DType::kF32, {4}}};
  rank.ignored = {"*._extra_state"};
  return rank;
}

TEST(ShardKeys, AcceptsExactlyThePlanInAnyOrderAndReportsWhatItIgnores) {
  const auto ignored = CheckShardKeys(Rank(),
                                      {{"vp0/b", DType::kF32, {4}},
                                       {"vp0/x._extra_state", DType::kU8, {7}},
                                       {"vp0/a", DType::kBf16, {2, 3}}},
                                      RankId{3});
  ASSERT_TRUE(ignored.ok()) << ignored.error().message;
  EXPECT_THAT(*ignored, ElementsAre("vp0/x._extra_state"));
}

// N4: an extra buffer on one rank is a named complaint, never a silent skip.
TEST(ShardKeys, NamesEveryUnknownMissingAndDifferentParameterAndTheRank) {
  const auto result = CheckShardKeys(Rank(),
                                     {{"vp0/a", DType::kBf16, {3, 2}},
                                      {"vp0/router.expert_bias", DType::kF32, {8}},
                                      {"vp0/zz", DType::kF32, {8}}},
                                     RankId{3});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::kInvalidData);
  EXPECT_THAT(
      result.error().message,
      AllOf(HasSubstr("rank 3"), HasSubstr("unknown: vp0/router.expert_bias, vp0/zz"),
            HasSubstr("missing: vp0/b"), HasSubstr("vp0/a is BF16 [3, 2], expected BF16 [2, 3]")));
}

TEST(ShardKeys, ADtypeIsNotNarrowedSilently) {
  const auto result = CheckShardKeys(
      Rank(), {{"vp0/a", DType::kBf16, {2, 3}}, {"vp0/b", DType::kBf16, {4}}}, RankId{0});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("vp0/b is BF16 [4], expected F32 [4]"), Not(HasSubstr("missing"))));
}

TEST(ShardKeys, AnEmptyShardMissesAll) {
  const auto result = CheckShardKeys(Rank(), {}, RankId{0});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("missing: vp0/a, vp0/b"));
}

TEST(ShardKeys, OfTheNamesOfOneTensorThoseThatThePlanDoesNotKnowAreDropped) {
  const std::vector<tensor::TensorSpec> shard = {
      {"vp0/a", DType::kBf16, {2, 3}},   {"vp0/a_again", DType::kBf16, {2, 3}},
      {"vp0/b_first", DType::kF32, {4}}, {"vp0/b", DType::kF32, {4}},
      {"vp0/c", DType::kF32, {1}},       {"vp0/c_again", DType::kF32, {1}}};
  const SameTensor same = {
      {"vp0/a_again", "vp0/a"}, {"vp0/b", "vp0/b_first"}, {"vp0/c_again", "vp0/c"}};
  std::vector<std::string> names;
  for (const auto& spec : WithoutAliases(Rank(), shard, same)) names.push_back(spec.name);
  // The plan knows neither c: both stay, to be complained about.
  EXPECT_THAT(names, ElementsAre("vp0/a", "vp0/b", "vp0/c", "vp0/c_again"));
}

}  // namespace
}  // namespace weightcast::bridge
