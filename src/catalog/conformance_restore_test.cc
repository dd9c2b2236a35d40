// Conformance: version.json and the catalog that is rebuilt from it.
#include <gmock/gmock.h>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// What a store holds of every READY version, as anyone would write it.
std::vector<std::string> Documents(Catalog& catalog) {
  std::vector<std::string> documents;
  for (const Run& run : Must(catalog.ListRuns())) {
    for (const Version& version : Must(catalog.ListVersions(run.uid))) {
      if (version.state != VersionState::kReady) continue;
      documents.push_back(EncodeVersionJson({run, version, Must(catalog.GetDigests(version.uid))}));
    }
  }
  return documents;
}

Status RestoreText(Catalog& catalog, const std::string& text) {
  const VersionDocument d = WC_TRY(ParseVersionJson(text));
  return catalog.Restore(d.run, d.version, d.digests);
}

TEST_P(CatalogConformance, ARebuiltCatalogHasTheSameVersions) {
  const Run run = MakeRun("policy", {kFrozen});
  MakeSeed(run, 0);
  MakeEpoch(run, "job-1");
  const Epoch epoch = MakeEpoch(run, "job-2");
  BeginRequest request = Request(run, epoch, 3);
  request.labels = {{"reward", "0.25"}, {"\u00fcber", "\"quoted\" \\ text"}};
  const Version begun = Must(db().BeginVersion(request));
  for (const int32_t rank : {0, 1}) {
    EXPECT_OK(db().Announce(ToyAnnouncement(begun, rank, 0, 1, {kFrozen})));
  }
  const Run fork = Must(db().ForkRun("fork", begun.uid));
  const std::vector<std::string> documents = Documents(db());
  ASSERT_EQ(documents.size(), 3u);

  const auto rebuilt = GetParam()();
  Catalog& other = rebuilt->handle(0);
  for (int again = 0; again < 2; ++again) {
    for (const std::string& document : documents) EXPECT_OK(RestoreText(other, document));
  }
  EXPECT_EQ(Documents(other), documents);
  EXPECT_EQ(Must(other.GetRun(fork.uid)).forked_from, begun.uid);
  EXPECT_NE(Must(other.Incarnation()), Must(db().Incarnation()));
  for (const auto& run_uid : {run.uid, fork.uid}) {
    EXPECT_EQ(Must(other.FindVersion(run_uid, "latest")).uid,
              Must(db().FindVersion(run_uid, "latest")).uid);
  }
  // Restoring into the catalog they came from changes nothing either.
  for (const std::string& document : documents) EXPECT_OK(RestoreText(db(), document));
  EXPECT_EQ(Documents(db()), documents);
}

TEST_P(CatalogConformance, ARebuiltRunGoesOnUnderANewEpoch) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch old = MakeEpoch(run, "job-1");
  const Version one = Publish(run, old, 1, 0, 1);
  const auto rebuilt = GetParam()();
  Catalog& other = rebuilt->handle(0);
  for (const std::string& document : Documents(db())) EXPECT_OK(RestoreText(other, document));

  // Sessions of the lost catalog are refused, whichever way they speak.
  EXPECT_THAT(Text(other.BeginVersion(Request(run, old, 2))),
              AllOf(StartsWith("conflict"), HasSubstr("rebuild")));
  EXPECT_THAT(Text(other.OpenEpoch({run.uid, "", old, ToyPlan(2), {0, 1}})),
              AllOf(StartsWith("conflict"), HasSubstr("rebuild")));
  const Epoch epoch = Must(other.OpenEpoch({run.uid, "job-1", std::nullopt, ToyPlan(2), {0, 1}}));
  EXPECT_EQ(epoch.value, 2);
  const Version equal = Must(other.BeginVersion(Request(run, epoch, 1)));
  EXPECT_EQ(equal.uid, one.uid) << "what is READY stays READY";
  const Version two = Must(other.BeginVersion(Request(run, epoch, 2)));
  EXPECT_EQ(two.base, one.uid);
  for (const int32_t rank : {0, 1}) EXPECT_OK(other.Announce(ToyAnnouncement(two, rank, 1, 2)));
  EXPECT_EQ(Must(other.GetVersion(two.uid)).state, VersionState::kReady);
}

TEST_P(CatalogConformance, ARebuildStandsWithoutWhatWasReleased) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  Publish(run, epoch, 1, 0, 1);
  const Version two = Publish(run, epoch, 2, 1, 2, true);
  const Version three = Publish(run, epoch, 3, 2, 3);
  EXPECT_OK(db().BeginRelease(Must(db().FindVersion(run.uid, "1")).uid));
  const auto rebuilt = GetParam()();
  Catalog& other = rebuilt->handle(0);
  for (const std::string& document : Documents(db())) EXPECT_OK(RestoreText(other, document));
  EXPECT_EQ(Must(other.ListVersions(run.uid)).size(), 3u);
  const ReplayRequest request{three.uid, {}, std::nullopt, "host", seconds(1)};
  EXPECT_EQ(Must(other.PlanReplay(request)).start_version.uid, two.uid);
  const ReplayRequest seeded{three.uid, {}, ToyRoot(0), "host", seconds(1)};
  EXPECT_EQ(Must(other.PlanReplay(seeded)).start_version.uid, two.uid);
  // What cannot be reached says whose base is unknown.
  EXPECT_OK(other.BeginRelease(Must(other.FindVersion(run.uid, "0")).uid));
}

TEST_P(CatalogConformance, ARestoreThatDiffersIsAConflict) {
  const Run run = MakeRun("policy");
  const Version seed = MakeSeed(run, 0);
  const Version one = Publish(run, MakeEpoch(run, "job"), 1, 0, 1);
  const auto restore = [&](const std::function<void(VersionDocument&)>& change) {
    VersionDocument d{run, one, ToyDigests(1)};
    change(d);
    return Text(db().Restore(d.run, d.version, d.digests));
  };
  EXPECT_EQ(restore([](auto&) {}), "ok");
  EXPECT_THAT(restore([](auto& d) { d.version.labels["a"] = "b"; }), StartsWith("conflict"));
  EXPECT_THAT(restore([](auto& d) { d.version.stats.elements += 1; }), StartsWith("conflict"));
  EXPECT_THAT(restore([](auto& d) { d.run.carried = {0}; }), StartsWith("conflict"));
  EXPECT_THAT(restore([](auto& d) {
                d.run.uid.value[0] ^= 1, d.version.run = d.run.uid, d.version.base_run = d.run.uid;
              }),
              AllOf(StartsWith("conflict"), HasSubstr("policy")));
  EXPECT_THAT(restore([](auto& d) { d.run.name = "renamed"; }), StartsWith("conflict"));
  EXPECT_THAT(restore([](auto& d) { d.version.uid.value[0] ^= 1; }),
              AllOf(StartsWith("conflict"), HasSubstr("has that number already")));
  EXPECT_THAT(restore([](auto& d) {
                d.version.uid.value[0] ^= 1;
                d.version.number = 2;
                d.version.plan = ToyPlan(9);
              }),
              AllOf(StartsWith("conflict"), HasSubstr(ToyPlan(9).hex())));
  EXPECT_THAT(restore([](auto& d) { d.digests[0] = {}; }),
              AllOf(StartsWith("data-loss"), HasSubstr("root")));
  EXPECT_THAT(restore([](auto& d) { d.digests.pop_back(); }), StartsWith("invalid-data"));
  EXPECT_THAT(restore([](auto& d) { d.version.state = VersionState::kStaging; }),
              StartsWith("invalid-data"));
  EXPECT_EQ(Must(db().ListVersions(run.uid)).size(), 2u);
  EXPECT_EQ(Must(db().FindVersion(run.uid, "0")).uid, seed.uid);
}

TEST_P(CatalogConformance, ARestoreFencesAnAttempt) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version one = Publish(run, epoch, 1, 0, 1);
  const Version attempt = Must(db().BeginVersion(Request(run, epoch, 2)));
  Version five = one;
  five.uid.value[0] ^= 1;
  five.number = 5;
  five.epoch = Epoch{3};
  EXPECT_OK(db().Restore(run, five, ToyDigests(1)));
  EXPECT_EQ(Must(db().GetVersion(attempt.uid)).state, VersionState::kFailed);
  EXPECT_EQ(Must(db().FindVersion(run.uid, "latest")).number, 5);
  EXPECT_EQ(MakeEpoch(run, "job-2").value, 4);
}

}  // namespace
}  // namespace weightcast::catalog
