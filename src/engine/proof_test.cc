// Proofs of several workers, as one.
#include "engine/proof.h"

#include <gmock/gmock.h>

#include "engine/http_testing.h"

namespace weightcast::engine {
namespace {

using tensor::Partial;
using tensor::TensorDigest;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// "a" has 4 units and digest 10, "b" 2 units and digest 20, "none" no units.
tensor::Inventory Model() {
  auto model = tensor::Inventory::Make({{"a", tensor::DType::kBf16, {2, 2}},
                                        {"b", tensor::DType::kBf16, {2}},
                                        {"none", tensor::DType::kBf16, {0}}});
  WC_CHECK(model.ok());
  return *model;
}
const std::vector<TensorDigest> kDigests = {{10, 0}, {20, 0}, {}};
const std::vector<int32_t> kAllTensors = {0, 1, 2};

TensorProof Proof(const std::string& name, uint64_t digest, int64_t units, const std::string& span,
                  How how = How::kLive) {
  return {name, how, Partial{{digest, 0}, units}, span};
}

Verdict Of(std::vector<std::vector<TensorProof>> workers,
           const std::vector<int32_t>& wanted = kAllTensors) {
  std::vector<WorkerProof> proofs;
  for (auto& tensors : workers) proofs.push_back({{}, std::move(tensors)});
  return Compare(Model(), kDigests, wanted, proofs);
}

TEST(Proof, SpansAddUpAndReplicasCountOnce) {
  // "a" is cut in two, "b" is on both.
  const Verdict v = Of({{Proof("a", 3, 2, "0"), Proof("b", 20, 2, "w")},
                        {Proof("a", 7, 2, "1"), Proof("b", 20, 2, "w", How::kRepacked)}});
  EXPECT_EQ(Text(v.Check()), "ok");
  EXPECT_EQ(std::tuple(v.live, v.repacked, v.probed), std::tuple(1, 1, 0));
  EXPECT_EQ(Of({{Proof("a", 10, 4, "w", How::kProbed), Proof("b", 20, 2, "w")}}).probed, 1);
}

TEST(Proof, WhatDoesNotAddUpIsNamed) {
  struct Case {
    const char* expected;
    std::vector<std::vector<TensorProof>> workers;
  };
  const TensorProof b = Proof("b", 20, 2, "w");
  const Case cases[] = {
      {"a: digest", {{Proof("a", 11, 4, "w"), b}}},
      {"a: digest", {{Proof("a", 3, 2, "0"), b}, {Proof("a", 8, 2, "1")}}},
      {"a: workers hold 2 units, expected 4", {{Proof("a", 10, 2, "0"), b}}},
      {"a: workers hold 8 units", {{Proof("a", 10, 4, "0"), b}, {Proof("a", 0, 4, "1")}}},
      {"a: workers that hold the same units differ",
       {{Proof("a", 10, 4, "w"), b}, {Proof("a", 11, 4, "w")}}},
      {"a: workers that hold the same units differ",
       {{Proof("a", 10, 4, "w"), b}, {Proof("a", 10, 3, "w")}}},
      {"c: the version has no such tensor", {{Proof("a", 10, 4, "w"), b, Proof("c", 0, 0, "w")}}},
  };
  for (const Case& c : cases) {
    const Verdict v = Of(c.workers);
    EXPECT_EQ(v.bad.size(), 1u);
    EXPECT_THAT(Text(v.Check()), AllOf(StartsWith("data-loss"), HasSubstr(c.expected)));
    EXPECT_EQ(v.live, c.workers[0].size() == 3 ? 2 : 1);
  }
}

TEST(Proof, WhatIsUnprovenIsNamed) {
  const Verdict v = Of({{Proof("a", 99, 4, "w", How::kUnproven)}});
  EXPECT_THAT(v.unproven, ElementsAre("a", "b")) << "nobody spoke of b, and none has no units";
  EXPECT_THAT(Text(v.Check()), StartsWith("invalid-data: unproven: a, b"));
  // One worker of two is enough to be unproven.
  EXPECT_THAT(Of({{Proof("a", 3, 2, "0")}, {Proof("a", 7, 2, "1", How::kUnproven)}}, {0}).unproven,
              ElementsAre("a"));
}

TEST(Proof, OnlyWhatIsWantedMustBeThere) {
  EXPECT_EQ(Text(Of({{}}, {}).Check()), "ok");
  EXPECT_EQ(Text(Of({{Proof("b", 20, 2, "w")}}, {}).Check()), "ok");
  EXPECT_THAT(Text(Of({{Proof("b", 21, 2, "w")}}, {}).Check()), HasSubstr("b: digest"));
  EXPECT_THAT(Of({{Proof("b", 20, 2, "w")}}, {0}).unproven, ElementsAre("a"));
  EXPECT_THAT(Of({{Proof("a", 10, 4, "w")}}, {0, 2}).unproven, IsEmpty());
}

TEST(Proof, WorkersOfAnotherVersionAreRefused) {
  VersionUid one;
  one.value[0] = 1;
  EXPECT_EQ(Text(CheckVersion({{one, {}}, {one, {}}}, one)), "ok");
  EXPECT_THAT(Text(CheckVersion({{one, {}}, {{}, {}}}, one)), StartsWith("aborted"));
}

}  // namespace
}  // namespace weightcast::engine
