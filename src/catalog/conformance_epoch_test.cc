// Conformance: epochs and the beginning of attempts.
#include <gmock/gmock.h>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

EpochRequest ByToken(const Run& run, const std::string& token) {
  return {run.uid, token, std::nullopt, ToyPlan(2), {0, 1}};
}
EpochRequest ByNumber(const Run& run, int64_t number) {
  return {run.uid, "", Epoch{number}, ToyPlan(2), {0, 1}};
}

TEST_P(CatalogConformance, OneTokenGetsOneEpochAndANewTokenTheNext) {
  const Run run = MakeRun("policy");
  EXPECT_EQ(Must(db().OpenEpoch(ByToken(run, "job-1"))).value, 1);
  EXPECT_EQ(Must(db().OpenEpoch(ByToken(run, "job-1"))).value, 1);
  EXPECT_EQ(Must(db().OpenEpoch(ByToken(run, "job-2"))).value, 2);
  EXPECT_EQ(Must(db().OpenEpoch(ByToken(run, "job-2"))).value, 2);
}

TEST_P(CatalogConformance, AnOldTokenIsFenced) {
  const Run run = MakeRun("policy");
  MakeEpoch(run, "job-1");
  MakeEpoch(run, "job-2");
  EXPECT_THAT(Text(db().OpenEpoch(ByToken(run, "job-1"))),
              AllOf(StartsWith("conflict: epoch 1"), HasSubstr("fenced by epoch 2")));
}

TEST_P(CatalogConformance, AnEpochNumberJoinsOpensOrIsTooLow) {
  const Run run = MakeRun("policy");
  EXPECT_EQ(Must(db().OpenEpoch(ByNumber(run, 3))).value, 3);
  EXPECT_EQ(Must(db().OpenEpoch(ByNumber(run, 3))).value, 3);
  EXPECT_EQ(Must(db().OpenEpoch(ByNumber(run, 7))).value, 7);
  EXPECT_THAT(Text(db().OpenEpoch(ByNumber(run, 3))), HasSubstr("fenced by epoch 7"));
  EXPECT_THAT(Text(db().OpenEpoch(ByNumber(run, 5))), StartsWith("conflict"));
  EXPECT_EQ(Must(db().OpenEpoch(ByToken(run, "job"))).value, 8);
}

TEST_P(CatalogConformance, OneEpochHasOnePlanAndOneSetOfParticipants) {
  const Run run = MakeRun("policy");
  for (const EpochRequest& request : {ByToken(run, "job"), ByNumber(run, 1)}) {
    EXPECT_OK(db().OpenEpoch(request));
    EpochRequest other = request;
    other.plan = ToyPlan(9);
    EXPECT_THAT(
        Text(db().OpenEpoch(other)),
        AllOf(StartsWith("conflict"), HasSubstr(ToyPlan(2).hex()), HasSubstr(ToyPlan(9).hex())));
    other = request;
    other.participants = {0, 1, 2};
    EXPECT_THAT(Text(db().OpenEpoch(other)),
                AllOf(StartsWith("conflict"), HasSubstr("expected 0, 1; found 0, 1, 2")));
  }
}

TEST_P(CatalogConformance, EpochRequestsAreChecked) {
  const Run run = MakeRun("policy");
  EpochRequest both = ByToken(run, "job");
  both.number = Epoch{1};
  EpochRequest no_plan = ByToken(run, "job");
  no_plan.plan = {};
  EpochRequest nobody = ByToken(run, "job");
  nobody.participants = {};
  EpochRequest unsorted = ByToken(run, "job");
  unsorted.participants = {1, 0};
  EpochRequest twice = ByToken(run, "job");
  twice.participants = {1, 1};
  for (const EpochRequest& request :
       {both, ByToken(run, ""), ByNumber(run, 0), ByNumber(run, -4), no_plan, nobody, unsorted,
        twice, ByToken(run, "line\nbreak"), ByToken(run, "\xff")}) {
    EXPECT_THAT(Text(db().OpenEpoch(request)), StartsWith("invalid-argument"));
  }
  EXPECT_THAT(Text(db().OpenEpoch(ByToken(Run{}, "job"))), StartsWith("not-found"));
}

TEST_P(CatalogConformance, BeginIsCreateOrGetWithTheLatestAsBase) {
  const Run run = MakeRun("policy");
  const Version seed = MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  BeginRequest request = Request(run, epoch, 1);
  request.labels = {{"reward", "0.5"}};
  const Version first = Must(db().BeginVersion(request));
  EXPECT_EQ(first.base, seed.uid);
  EXPECT_EQ(first.base_run, run.uid);
  EXPECT_EQ(KindName(first.kind), "delta");
  EXPECT_EQ(StateName(first.state), "STAGING");
  EXPECT_EQ(first.labels, request.labels);
  EXPECT_EQ(first.plan, ToyPlan(2));
  EXPECT_EQ(first.participants, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(first.deadline_unix_ms - first.created_unix_ms, 3'600'000);
  EXPECT_EQ(first.side_files.size(), 2u) << "those of the base";
  EXPECT_EQ(Must(db().BeginVersion(request)).uid, first.uid);
  EXPECT_EQ(Must(db().GetVersion(first.uid)).uid, first.uid);
}

TEST_P(CatalogConformance, WithoutABaseAVersionIsFull) {
  const Run run = MakeRun("policy");
  const Epoch epoch = MakeEpoch(run, "job");
  BeginRequest request = Request(run, epoch, 5);
  const Version version = Must(db().BeginVersion(request));
  EXPECT_EQ(KindName(version.kind), "full");
  EXPECT_TRUE(version.base.empty());
  request.full = true;
  EXPECT_EQ(Must(db().BeginVersion(request)).uid, version.uid) << "it is what would come anyway";
}

TEST_P(CatalogConformance, BeginRequestsAreChecked) {
  const Run run = MakeRun("policy");
  const Epoch epoch = MakeEpoch(run, "job");
  const BeginRequest good = Request(run, epoch, 1);
  std::vector<std::pair<BeginRequest, std::string>> bad;
  const auto add = [&](const std::string& text, auto change) {
    BeginRequest request = good;
    change(request);
    bad.emplace_back(request, text);
  };
  add("invalid-argument: version 0", [](auto& r) { r.number = 0; });
  add("invalid-argument: version -1", [](auto& r) { r.number = -1; });
  add("invalid-argument: a version needs a step token", [](auto& r) { r.step_token = ""; });
  add("invalid-argument: a version needs", [](auto& r) { r.store_url = ""; });
  add("invalid-argument: step token", [](auto& r) { r.step_token = "\x80"; });
  add("invalid-argument: the staging timeout", [](auto& r) { r.staging_timeout = seconds(0); });
  add("invalid-argument: label", [](auto& r) { r.labels[""] = "x"; });
  add("invalid-argument: label", [](auto& r) { r.labels["k"] = std::string(5000, 'x'); });
  for (const char* name : {"", "/etc/passwd", "../up", "a/../b", "a//b", "a/", ".weightcast/state",
                           "sub/.hidden", "model.safetensors", "a\nb", "\xff"}) {
    add("invalid-data: side files",
        [&](auto& r) { r.side_files = {{name, 1, ToySideFiles()[0].sha256}}; });
  }
  add("invalid-data: side files",
      [](auto& r) { r.side_files = {ToySideFiles()[0], ToySideFiles()[0]}; });
  add("conflict: epoch 2 of run " + run.uid.hex() + " was never opened",
      [](auto& r) { r.epoch = Epoch{2}; });
  add("conflict: epoch 0", [](auto& r) { r.epoch = Epoch{0}; });
  add("not-found: run", [](auto& r) { r.run = {}; });
  for (const auto& [request, text] : bad) {
    EXPECT_THAT(Text(db().BeginVersion(request)), StartsWith(text));
  }
  EXPECT_OK(db().BeginVersion(good));
}

TEST_P(CatalogConformance, OneAttemptIsStagingAtATime) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const BeginRequest request = Request(run, epoch, 1);
  const Version version = Must(db().BeginVersion(request));
  BeginRequest other = request;
  other.number = 2;
  EXPECT_THAT(Text(db().BeginVersion(other)),
              AllOf(StartsWith("unavailable"), HasSubstr("3600 s more")));
  other = request;
  other.step_token = "another";
  EXPECT_THAT(Text(db().BeginVersion(other)), StartsWith("unavailable"));
  other = request;
  other.full = true;
  EXPECT_THAT(Text(db().BeginVersion(other)), StartsWith("conflict"));
  other = request;
  other.store_url = "file:/elsewhere";
  EXPECT_THAT(Text(db().BeginVersion(other)),
              AllOf(StartsWith("conflict"), HasSubstr("/elsewhere")));
  EXPECT_EQ(Must(db().GetVersion(version.uid)).state, VersionState::kStaging);
}

}  // namespace
}  // namespace weightcast::catalog
