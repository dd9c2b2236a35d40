// Conformance: rounds.
#include <gmock/gmock.h>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr RoundState kAllStates[] = {RoundState::kPreparing, RoundState::kApplying,
                                     RoundState::kCommitted, RoundState::kFailed};

RoundRequest RoundOf(const Run& run, const Version& version) {
  return {run.uid, version.uid, {"http://a:1", "http://b:2"}, seconds(10)};
}
// The first engine is proven, the second was left out.
std::vector<RoundEngine> OneProven(const Version& version) {
  return {{"http://a:1", "proven", "1f", version.uid, true, ""},
          {"http://b:2", "kept", "2e", {}, false, "disk full"}};
}

TEST_P(CatalogConformance, ARoundGoesFromPreparingToCommitted) {
  const Line line = MakeLine();
  const Round begun = Must(db().BeginRound(RoundOf(line.run, line.v[4])));
  EXPECT_FALSE(begun.uid.empty());
  EXPECT_EQ(begun.run, line.run.uid);
  EXPECT_EQ(begun.version, line.v[4].uid);
  EXPECT_EQ(begun.state, RoundState::kPreparing);
  ASSERT_EQ(begun.engines.size(), 2u);
  EXPECT_EQ(begun.engines[1], RoundEngine{.url = "http://b:2"});
  EXPECT_EQ(Must(db().GetRound(begun.uid)), begun);
  const auto engines = OneProven(line.v[4]);
  const Round applying = Must(
      db().UpdateRound(begun.uid, RoundState::kPreparing, RoundState::kApplying, begun.engines));
  EXPECT_EQ(applying.state, RoundState::kApplying);
  EXPECT_OK(db().UpdateRound(begun.uid, RoundState::kApplying, RoundState::kCommitted, engines));
  const Round committed = Must(db().GetRound(begun.uid));
  EXPECT_EQ(committed.state, RoundState::kCommitted);
  EXPECT_EQ(committed.engines, engines);
  EXPECT_EQ(committed.created_unix_ms, begun.created_unix_ms);
}

TEST_P(CatalogConformance, ARoundMovesOnlyFromTheStateThatWasExpected) {
  const Line line = MakeLine();
  const auto engines = OneProven(line.v[4]);
  // Every state, every expectation, every next one.
  for (const RoundState state : kAllStates) {
    for (const RoundState expected : kAllStates) {
      for (const RoundState next : kAllStates) {
        const Round round = Must(db().BeginRound(RoundOf(line.run, line.v[4])));
        const auto to = [&](RoundState from, RoundState there) {
          return Text(db().UpdateRound(round.uid, from, there, engines));
        };
        if (state == RoundState::kApplying || state == RoundState::kCommitted) {
          EXPECT_EQ(to(RoundState::kPreparing, RoundState::kApplying), "ok");
        }
        if (state == RoundState::kCommitted) {
          EXPECT_EQ(to(RoundState::kApplying, state), "ok");
        }
        if (state == RoundState::kFailed) {
          EXPECT_EQ(to(RoundState::kPreparing, state), "ok");
        }
        const std::string answer = to(expected, next);
        const bool step = next == expected || (!Ended(expected) && next == RoundState::kFailed) ||
                          (expected == RoundState::kPreparing && next == RoundState::kApplying) ||
                          (expected == RoundState::kApplying && next == RoundState::kCommitted);
        EXPECT_THAT(answer, StartsWith(expected != state ? "aborted"
                                       : step            ? "ok"
                                                         : "invalid-argument"));
        const RoundState now = Must(db().GetRound(round.uid)).state;
        EXPECT_EQ(now, answer == "ok" ? next : state);
        if (!Ended(now)) {
          EXPECT_EQ(to(now, RoundState::kFailed), "ok");
        }
      }
    }
  }
}

TEST_P(CatalogConformance, NothingIsCommittedUnprovenOrInSilence) {
  const Line line = MakeLine();
  const Round round = Must(db().BeginRound(RoundOf(line.run, line.v[4])));
  auto engines = OneProven(line.v[4]);
  EXPECT_OK(db().UpdateRound(round.uid, RoundState::kPreparing, RoundState::kApplying, engines));
  const auto commit = [&] {
    return Text(
        db().UpdateRound(round.uid, RoundState::kApplying, RoundState::kCommitted, engines));
  };
  engines[1].reason = "";
  EXPECT_THAT(commit(), AllOf(StartsWith("conflict"), HasSubstr("http://b:2")));
  engines[1].reason = "unreachable";
  engines[0] = {"http://a:1", "fenced", "", {}, false, "hangs"};
  EXPECT_THAT(commit(), AllOf(StartsWith("conflict"), HasSubstr("no engine is proven")));
  engines[0].proven = true;
  std::swap(engines[0], engines[1]);
  EXPECT_THAT(commit(), StartsWith("invalid-argument"));
  engines.pop_back();
  EXPECT_THAT(commit(), StartsWith("invalid-argument"));
  EXPECT_EQ(Must(db().GetRound(round.uid)).state, RoundState::kApplying);
}

TEST_P(CatalogConformance, OneRoundAtATimeInARun) {
  const Line line = MakeLine();
  const RoundRequest request = RoundOf(line.run, line.v[4]);
  const Round first = Must(db().BeginRound(request));
  EXPECT_THAT(Text(db().BeginRound(request)),
              AllOf(StartsWith("conflict"), HasSubstr(first.uid.hex()), HasSubstr("preparing")));
  const Run other = MakeRun("other");
  const Version seed = MakeSeed(other, 0);
  const Round elsewhere = Must(db().BeginRound(RoundOf(other, seed)));
  EXPECT_OK(
      db().UpdateRound(first.uid, RoundState::kPreparing, RoundState::kFailed, first.engines));
  const Round second = Must(db().BeginRound(request));
  EXPECT_NE(second.uid, first.uid);
  std::vector<RoundUid> uids;
  for (const Round& round : Must(db().ListRounds(line.run.uid))) uids.push_back(round.uid);
  EXPECT_THAT(uids, ElementsAre(first.uid, second.uid));
  EXPECT_EQ(Must(db().ListRounds(other.uid)).front(), elsewhere);
}

TEST_P(CatalogConformance, AnExpiredRoundIsFailedByTheNext) {
  const Line line = MakeLine();
  if (!home_->Advance(seconds(0))) GTEST_SKIP() << "the clock cannot be moved";
  const RoundRequest request = RoundOf(line.run, line.v[4]);
  const Round first = Must(db().BeginRound(request));
  home_->Advance(milliseconds(9'999));
  EXPECT_OK(
      db().UpdateRound(first.uid, RoundState::kPreparing, RoundState::kApplying, first.engines))
      << "renews the lease";
  home_->Advance(milliseconds(9'999));
  EXPECT_THAT(Text(db().BeginRound(request)), StartsWith("conflict"));
  home_->Advance(milliseconds(1));
  const Round second = Must(db().BeginRound(request));
  const Round failed = Must(db().GetRound(first.uid));
  EXPECT_EQ(failed.state, RoundState::kFailed);
  EXPECT_THAT(failed.failure, AllOf(HasSubstr("lease expired"), HasSubstr(second.uid.hex())));
  EXPECT_THAT(Text(db().UpdateRound(first.uid, RoundState::kApplying, RoundState::kCommitted,
                                    OneProven(line.v[4]))),
              AllOf(StartsWith("aborted"), HasSubstr(second.uid.hex())));
}

TEST_P(CatalogConformance, RoundRequestsAreChecked) {
  const Line line = MakeLine();
  const auto begin = [&](auto change) {
    RoundRequest request = RoundOf(line.run, line.v[4]);
    change(request);
    return Text(db().BeginRound(request));
  };
  EXPECT_THAT(begin([](auto& r) { r.engines.clear(); }), StartsWith("invalid-argument"));
  EXPECT_THAT(begin([](auto& r) { r.engines.push_back("http://a:1"); }),
              AllOf(StartsWith("invalid-argument"), HasSubstr("http://a:1")));
  EXPECT_THAT(begin([](auto& r) { r.engines = {"\n"}; }), StartsWith("invalid-argument"));
  EXPECT_THAT(begin([](auto& r) { r.lease = {}; }), StartsWith("invalid-argument"));
  EXPECT_THAT(begin([](auto& r) { r.run = {}; }), StartsWith("not-found"));
  EXPECT_THAT(begin([](auto& r) { r.version = {}; }), StartsWith("not-found"));
  const Run other = MakeRun("other");
  EXPECT_THAT(begin([&](auto& r) { r.run = other.uid; }), StartsWith("conflict"));
  const Version staging = Must(db().BeginVersion(Request(line.run, line.epoch, 5)));
  EXPECT_THAT(begin([&](auto& r) { r.version = staging.uid; }),
              AllOf(StartsWith("conflict"), HasSubstr("STAGING")));
  EXPECT_THAT(Text(db().GetRound({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().ListRounds({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().UpdateRound({}, RoundState::kPreparing, RoundState::kFailed, {})),
              StartsWith("not-found"));
}

}  // namespace
}  // namespace weightcast::catalog
