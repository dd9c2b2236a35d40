// Conformance: replay plans, leases, pins, release.
#include <gmock/gmock.h>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ReplayRequest To(const VersionUid& target, const VersionUid& have = {},
                 std::optional<Root> seed = std::nullopt) {
  return {target, have, seed, "host 3 pid 812", seconds(600)};
}

// "seed 0 -> 1 2"
std::string PlanText(const ReplayPlan& plan) {
  constexpr const char* kStarts[] = {"image", "seed", "full"};
  std::string text = std::string(kStarts[static_cast<size_t>(plan.start)]) + " " +
                     std::to_string(plan.start_version.number);
  for (const Version& step : plan.steps) text += " -> " + std::to_string(step.number);
  return text;
}

TEST_P(CatalogConformance, AReplayBeginsWhereItIsCheapest) {
  // v0 <- v1 <- v2 (full) <- v3; a delta costs 2000 bytes, a full version 10000.
  const Run run = MakeRun("policy");
  const Version v0 = MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version v1 = Publish(run, epoch, 1, 0, 1);
  const Version v2 = Publish(run, epoch, 2, 1, 2, true);
  const Version v3 = Publish(run, epoch, 3, 2, 3);
  struct Case {
    const char* expected;
    int64_t bytes;
    ReplayRequest request;
  };
  const Case cases[] = {
      {"image 3", 0, To(v3.uid, v3.uid)},
      {"image 2 -> 3", 2000, To(v3.uid, v2.uid)},
      {"image 0 -> 1 -> 2 -> 3", 6000, To(v3.uid, v0.uid)},
      {"seed 0 -> 1 -> 2 -> 3", 6000, To(v3.uid, {}, v0.root)},
      {"image 1 -> 2 -> 3", 4000, To(v3.uid, v1.uid, v0.root)},
      {"full 2 -> 3", 12000, To(v3.uid)},
      {"full 2 -> 3", 12000, To(v3.uid, {}, ToyRoot(9))},
      {"full 2", 10000, To(v2.uid, v3.uid)},  // an image that is ahead does not help
      {"seed 3", 0, To(v3.uid, v1.uid, v3.root)},
      {"seed 0", 0, To(v0.uid, {}, v0.root)},
      {"seed 0 -> 1", 2000, To(v1.uid, v3.uid, v0.root)},
  };
  for (const Case& c : cases) {
    const ReplayPlan plan = Must(db().PlanReplay(c.request));
    EXPECT_EQ(PlanText(plan), c.expected);
    EXPECT_EQ(plan.bytes, c.bytes) << c.expected;
    EXPECT_FALSE(plan.lease.empty());
  }
}

TEST_P(CatalogConformance, AnUnreachableVersionSaysWhatItNeeds) {
  const Run run = MakeRun("policy");
  const Version v0 = MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version v1 = Publish(run, epoch, 1, 0, 1);
  EXPECT_THAT(Text(db().PlanReplay(To(v1.uid))),
              AllOf(StartsWith("unavailable"), HasSubstr("version 1"),
                    HasSubstr("the seed checkpoint of version 0 (root " + v0.root.hex() + ")"),
                    HasSubstr("a full version")));
  EXPECT_THAT(
      Text(db().PlanReplay(To(v0.uid, v1.uid, ToyRoot(8)))),
      AllOf(StartsWith("unavailable"), HasSubstr(v1.uid.hex()), HasSubstr(ToyRoot(8).hex())));
  EXPECT_THAT(Text(db().PlanReplay(To({}))), StartsWith("not-found"));
  const Version staging = Must(db().BeginVersion(Request(run, epoch, 2)));
  EXPECT_THAT(Text(db().PlanReplay(To(staging.uid))),
              AllOf(StartsWith("conflict"), HasSubstr("STAGING")));
}

TEST_P(CatalogConformance, AReplayCrossesForks) {
  const Run run = MakeRun("policy");
  const Version v0 = MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version v1 = Publish(run, epoch, 1, 0, 1);
  Publish(run, epoch, 2, 1, 2);
  const Run fork = Must(db().ForkRun("fork", v1.uid));
  const Version f0 = Must(db().FindVersion(fork.uid, "0"));
  const Version f1 = Publish(fork, MakeEpoch(fork, "job"), 1, 1, 7);
  const ReplayPlan from_seed = Must(db().PlanReplay(To(f1.uid, {}, v0.root)));
  EXPECT_EQ(PlanText(from_seed), "seed 0 -> 1 -> 0 -> 1");
  EXPECT_EQ(from_seed.bytes, 4000) << "a fork's v0 moves nothing";
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(f1.uid, v1.uid)))), "image 1 -> 0 -> 1");
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(f1.uid, f0.uid)))), "image 0 -> 1");
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(f1.uid, {}, f0.root)))), "seed 0 -> 1");
}

TEST_P(CatalogConformance, ALeaseHoldsEveryVersionOfItsPlan) {
  const Line line = MakeLine();
  const auto& v = line.v;
  EXPECT_OK(db().SetPin(v[0].uid, false));
  const ReplayPlan plan = Must(db().PlanReplay(To(v[2].uid, {}, v[0].root)));  // 0 -> 1 -> 2
  for (const size_t n : {0u, 1u, 2u}) {
    EXPECT_THAT(Text(db().BeginRelease(v[n].uid)),
                AllOf(StartsWith("conflict"), HasSubstr("lease of \"host 3 pid 812\"")));
  }
  EXPECT_THAT(Text(db().BeginRelease(v[3].uid)), Not(HasSubstr("lease of")));
  EXPECT_OK(db().EndLease(plan.lease));
  EXPECT_OK(db().EndLease(plan.lease));
  EXPECT_OK(db().EndLease({}));
  EXPECT_THAT(Text(db().BeginRelease(v[0].uid)), Not(HasSubstr("lease of")));
  EXPECT_THAT(Text(db().RenewLease(plan.lease, seconds(1))), StartsWith("not-found"));
}

TEST_P(CatalogConformance, LeasesExpireByTheDatabasesClock) {
  const Line line = MakeLine();
  if (!home_->Advance(seconds(0))) GTEST_SKIP() << "the clock cannot be moved";
  ReplayRequest request = To(line.v[4].uid, line.v[3].uid);
  request.lease = seconds(10);
  const ReplayPlan plan = Must(db().PlanReplay(request));
  Publish(line.run, line.epoch, 5, 4, 5, true);
  const auto held = [&] { return Text(db().BeginRelease(line.v[4].uid)); };
  home_->Advance(milliseconds(9'999));
  EXPECT_THAT(held(), HasSubstr("lease"));
  EXPECT_OK(db().RenewLease(plan.lease, seconds(10)));
  home_->Advance(milliseconds(9'999));
  EXPECT_THAT(held(), HasSubstr("lease"));
  home_->Advance(milliseconds(1));
  EXPECT_THAT(Text(db().RenewLease(plan.lease, seconds(10))),
              AllOf(StartsWith("not-found"), HasSubstr("expired")));
  EXPECT_EQ(held(), "ok");
}

TEST_P(CatalogConformance, LeaseRequestsAreChecked) {
  const Line line = MakeLine();
  ReplayRequest request = To(line.v[4].uid, line.v[3].uid);
  request.lease = seconds(0);
  EXPECT_THAT(Text(db().PlanReplay(request)), StartsWith("invalid-argument"));
  request.lease = seconds(1);
  request.holder = "\xff";
  EXPECT_THAT(Text(db().PlanReplay(request)), StartsWith("invalid-argument"));
  EXPECT_THAT(Text(db().RenewLease({}, seconds(1))), StartsWith("not-found"));
  EXPECT_THAT(Text(db().RenewLease({}, seconds(-1))), StartsWith("invalid-argument"));
}

TEST_P(CatalogConformance, LatestPinAndAliasHoldAVersion) {
  const Line line = MakeLine();
  const auto& v = line.v;
  EXPECT_THAT(Text(db().BeginRelease(v[4].uid)),
              AllOf(StartsWith("conflict"), HasSubstr("latest")));
  EXPECT_OK(db().SetPin(v[0].uid, true));
  EXPECT_OK(db().SetAlias(line.run.uid, "first", v[0].uid));
  EXPECT_THAT(Text(db().BeginRelease(v[0].uid)), AllOf(HasSubstr("pin"), HasSubstr("alias first")));
  EXPECT_OK(db().SetPin(v[0].uid, false));
  EXPECT_THAT(Text(db().BeginRelease(v[0].uid)), Not(HasSubstr("pin")));
  EXPECT_OK(db().RemoveAlias(line.run.uid, "first"));
  EXPECT_THAT(Text(db().BeginRelease(v[0].uid)), HasSubstr("version 1"));
}

// X5: nothing goes that a newer version needs to be restorable.
TEST_P(CatalogConformance, EveryReadyDescendantKeepsAChain) {
  const Line line = MakeLine();
  const auto& v = line.v;
  // v1 hangs on v0 alone; v3 and v4 hang on the full v2.
  EXPECT_THAT(Text(db().BeginRelease(v[0].uid)),
              AllOf(HasSubstr("version 1"), Not(HasSubstr("version 3"))));
  EXPECT_THAT(Text(db().BeginRelease(v[2].uid)),
              AllOf(HasSubstr("version 3"), HasSubstr("version 4")));
  EXPECT_THAT(Text(db().BeginRelease(v[3].uid)), HasSubstr("version 4"));
  EXPECT_OK(db().BeginRelease(v[1].uid));
  EXPECT_OK(db().BeginRelease(v[0].uid)) << "nothing hangs on it any more";

  const Run fork = Must(db().ForkRun("fork", v[3].uid));
  Publish(line.run, line.epoch, 5, 4, 5, true);
  EXPECT_OK(db().BeginRelease(v[4].uid));
  EXPECT_THAT(Text(db().BeginRelease(v[3].uid)),
              AllOf(HasSubstr("version 0"), HasSubstr("of run " + fork.uid.hex())));
  EXPECT_THAT(Text(db().BeginRelease(v[2].uid)), HasSubstr("of run " + fork.uid.hex()));
  EXPECT_TRUE(Must(db().ListRuns()).size() == 2);
}

TEST_P(CatalogConformance, ReleasingIsOneWay) {
  const Line line = MakeLine();
  const auto& v = line.v;
  EXPECT_THAT(Text(db().FinishRelease(v[1].uid)),
              AllOf(StartsWith("conflict"), HasSubstr("READY")));
  EXPECT_OK(db().BeginRelease(v[1].uid));
  EXPECT_OK(db().BeginRelease(v[1].uid)) << "a sweeper that died begins again";
  EXPECT_EQ(Must(db().GetVersion(v[1].uid)).state, VersionState::kReleasing);
  EXPECT_THAT(Text(db().FindVersion(line.run.uid, "1")),
              AllOf(StartsWith("not-found"), HasSubstr("RELEASING")));
  EXPECT_THAT(Text(db().SetPin(v[1].uid, true)), StartsWith("conflict"));
  EXPECT_THAT(Text(db().SetAlias(line.run.uid, "a", v[1].uid)), StartsWith("conflict"));
  EXPECT_THAT(Text(db().ForkRun("fork", v[1].uid)), StartsWith("conflict"));
  EXPECT_THAT(Text(db().PlanReplay(To(v[1].uid, v[0].uid))), StartsWith("conflict"));
  EXPECT_THAT(Text(db().FailVersion(v[1].uid, "why")), StartsWith("conflict"));
  EXPECT_OK(db().FinishRelease(v[1].uid));
  EXPECT_OK(db().FinishRelease(v[1].uid));
  const Version released = Must(db().GetVersion(v[1].uid));
  EXPECT_EQ(released.state, VersionState::kReleased);
  EXPECT_EQ(released.root, v[1].root) << "row, root and digests stay";
  EXPECT_EQ(Must(db().GetDigests(v[1].uid)), ToyDigests(1));
  EXPECT_THAT(Text(db().BeginRelease(v[1].uid)),
              AllOf(StartsWith("conflict"), HasSubstr("RELEASED")));
  // Its number stays taken.
  EXPECT_THAT(Text(db().BeginVersion(Request(line.run, line.epoch, 1))), StartsWith("conflict"));
}

TEST_P(CatalogConformance, AReplayNeverReadsAReleasedVersionButMayBeginAtItsImage) {
  const Line line = MakeLine();
  const auto& v = line.v;
  EXPECT_OK(db().BeginRelease(v[1].uid));
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(v[4].uid, v[1].uid)))), "image 1 -> 2 -> 3 -> 4");
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(v[4].uid, v[0].uid)))), "full 2 -> 3 -> 4");
  EXPECT_EQ(PlanText(Must(db().PlanReplay(To(v[4].uid, {}, v[0].root)))), "full 2 -> 3 -> 4");
}

}  // namespace
}  // namespace weightcast::catalog
