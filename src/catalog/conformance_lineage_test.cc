// Conformance: runs, seeds, forks, versions by name, aliases.
#include <gmock/gmock.h>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::shared_ptr<const tensor::Inventory> OtherInventory() {
  return std::make_shared<const tensor::Inventory>(Must(tensor::Inventory::Make(
      {{"bias", tensor::DType::kF32, {4}}, {"new", tensor::DType::kBf16, {2}}})));
}

TEST_P(CatalogConformance, OpenRunIsCreateOrGet) {
  const Run run = MakeRun("policy");
  EXPECT_FALSE(run.uid.empty());
  EXPECT_EQ(*run.inventory, *ToyInventory());
  EXPECT_TRUE(run.forked_from.empty());
  EXPECT_EQ(MakeRun("policy").uid, run.uid);
  EXPECT_EQ(Must(db().FindRun("policy")).uid, run.uid);
  EXPECT_EQ(Must(db().GetRun(run.uid)).name, "policy");
  EXPECT_NE(MakeRun("another").uid, run.uid);
  const std::vector<Run> runs = Must(db().ListRuns());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].name, "another");
  EXPECT_EQ(*runs[1].inventory, *ToyInventory());
}

TEST_P(CatalogConformance, ARunKeepsItsInventoryAndItsCarriedTensors) {
  MakeRun("policy", {kFrozen});
  EXPECT_THAT(Text(db().OpenRun({"policy", OtherInventory(), {}})),
              AllOf(StartsWith("conflict"), HasSubstr("weight"), HasSubstr("new")));
  EXPECT_THAT(Text(db().OpenRun({"policy", ToyInventory(), {}})),
              AllOf(StartsWith("conflict"), HasSubstr("expected frozen; found none")));
}

TEST_P(CatalogConformance, RunRequestsAreChecked) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string(".a"),
                                  std::string("a b"), std::string("\xff"), std::string(129, 'a')}) {
    EXPECT_THAT(Text(db().OpenRun({name, ToyInventory(), {}})), StartsWith("invalid-argument"));
  }
  EXPECT_OK(db().OpenRun({std::string(128, 'a'), ToyInventory(), {}}));
  EXPECT_THAT(Text(db().OpenRun({"a", nullptr, {}})), StartsWith("invalid-argument"));
  for (const std::vector<int32_t>& carried :
       std::vector<std::vector<int32_t>>{{4}, {-1}, {2, 1}, {1, 1}}) {
    EXPECT_THAT(Text(db().OpenRun({"a", ToyInventory(), carried})), StartsWith("invalid-argument"));
  }
}

TEST_P(CatalogConformance, WhatIsNotThereIsNotFound) {
  const Run run = MakeRun("policy");
  EXPECT_THAT(Text(db().FindRun("other")), AllOf(StartsWith("not-found"), HasSubstr("policy")));
  EXPECT_THAT(Text(db().GetRun({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().GetVersion({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().GetDigests({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().GetAnnouncements({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().ListVersions({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().ListAliases({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().FailVersion({}, "why")), StartsWith("not-found"));
  EXPECT_THAT(Text(db().SetPin({}, true)), StartsWith("not-found"));
  EXPECT_THAT(Text(db().BeginRelease({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().FinishRelease({})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().ForkRun("fork", {})), StartsWith("not-found"));
  EXPECT_THAT(Text(db().FindVersion(run.uid, "latest")), StartsWith("not-found"));
  EXPECT_TRUE(Must(db().ListVersions(run.uid)).empty());
}

TEST_P(CatalogConformance, TheSeedBecomesVersionZeroWithoutBytes) {
  const Run run = MakeRun("policy");
  const Version seed = MakeSeed(run, 3);
  EXPECT_EQ(seed.number, 0);
  EXPECT_EQ(KindName(seed.kind), "seed");
  EXPECT_EQ(seed.state, VersionState::kReady);
  EXPECT_EQ(seed.root, ToyRoot(3));
  EXPECT_TRUE(seed.objects.empty());
  EXPECT_TRUE(seed.base.empty());
  EXPECT_EQ(seed.side_files.size(), 2u);
  EXPECT_EQ(Must(db().GetDigests(seed.uid)), ToyDigests(3));
  EXPECT_TRUE(Must(db().GetAnnouncements(seed.uid)).empty());
  EXPECT_EQ(MakeSeed(run, 3).uid, seed.uid) << "an equal root gets the same answer";
  EXPECT_THAT(
      Text(db().RegisterSeed({run.uid, ToyDigests(4), {}, ""})),
      AllOf(StartsWith("conflict"), HasSubstr(ToyRoot(3).hex()), HasSubstr(ToyRoot(4).hex())));
  Publish(run, MakeEpoch(run, "job"), 1, 3, 5);
  EXPECT_EQ(MakeSeed(run, 3).uid, seed.uid) << "also later";
}

TEST_P(CatalogConformance, ASeedMustFitAndComeFirst) {
  const Run run = MakeRun("policy");
  std::vector<tensor::TensorDigest> short_one = ToyDigests(0);
  short_one.pop_back();
  EXPECT_THAT(Text(db().RegisterSeed({run.uid, short_one, {}, ""})), StartsWith("invalid-data"));
  EXPECT_THAT(Text(db().RegisterSeed({run.uid, ToyDigests(0), {{"../x", 1, {}}}, ""})),
              StartsWith("invalid-data"));
  const Epoch epoch = MakeEpoch(run, "job");
  const Version attempt = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_THAT(Text(db().RegisterSeed({run.uid, ToyDigests(0), {}, ""})), StartsWith("conflict"));
  EXPECT_OK(db().FailVersion(attempt.uid, "out of the way"));
  Publish(run, epoch, 1, 0, 1);
  EXPECT_THAT(Text(db().RegisterSeed({run.uid, ToyDigests(0), {}, ""})),
              AllOf(StartsWith("conflict"), HasSubstr("without a seed")));
}

TEST_P(CatalogConformance, AForkBeginsWithAVersionOfAnotherRun) {
  const Run run = MakeRun("policy", {kFrozen});
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version begun = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_THAT(Text(db().ForkRun("fork", begun.uid)),
              AllOf(StartsWith("conflict"), HasSubstr("STAGING")));
  for (const int32_t rank : {0, 1}) {
    EXPECT_OK(db().Announce(ToyAnnouncement(begun, rank, 0, 1, {kFrozen})));
  }
  const Version one = Must(db().GetVersion(begun.uid));
  const Run fork = Must(db().ForkRun("fork", one.uid));
  EXPECT_NE(fork.uid, run.uid);
  EXPECT_EQ(fork.forked_from, one.uid);
  EXPECT_EQ(fork.carried, run.carried);
  EXPECT_EQ(*fork.inventory, *run.inventory);
  const Version zero = Must(db().FindVersion(fork.uid, "0"));
  EXPECT_EQ(KindName(zero.kind), "seed");
  EXPECT_EQ(zero.root, one.root);
  EXPECT_EQ(zero.base, one.uid);
  EXPECT_EQ(zero.base_run, run.uid);
  EXPECT_EQ(zero.store_url, one.store_url);
  EXPECT_EQ(Must(db().GetDigests(zero.uid)), Must(db().GetDigests(one.uid)));
  EXPECT_EQ(Must(db().ForkRun("fork", one.uid)).uid, fork.uid);
  EXPECT_THAT(Text(db().ForkRun("fork", zero.uid)), StartsWith("conflict"));
  EXPECT_THAT(Text(db().ForkRun("policy", one.uid)),
              AllOf(StartsWith("conflict"), HasSubstr("not forked")));
  EXPECT_THAT(Text(db().ForkRun("a b", one.uid)), StartsWith("invalid-argument"));
  EXPECT_EQ(Must(db().OpenRun({"fork", ToyInventory(), {kFrozen}})).uid, fork.uid);
  // Numbers and epochs are the fork's own.
  const Version next = Must(db().BeginVersion(Request(fork, MakeEpoch(fork, "job"), 1)));
  EXPECT_EQ(next.base, zero.uid);
  EXPECT_EQ(next.epoch.value, 1);
}

TEST_P(CatalogConformance, VersionsAreFoundByLatestNumberUidAndAlias) {
  const Run run = MakeRun("policy");
  const Run other = MakeRun("other");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version failed = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_OK(db().FailVersion(failed.uid, "why"));
  const Version one = Publish(run, epoch, 1, 0, 1);
  const Version three = Publish(run, epoch, 3, 1, 2);
  EXPECT_OK(db().SetAlias(run.uid, "best", one.uid));
  const auto find = [&](const std::string& text) { return db().FindVersion(run.uid, text); };
  EXPECT_EQ(Must(find("latest")).uid, three.uid);
  EXPECT_EQ(Must(find("3")).uid, three.uid);
  EXPECT_EQ(Must(find("1")).uid, one.uid) << "failed attempts do not count";
  EXPECT_EQ(Must(find("01")).uid, one.uid);
  EXPECT_EQ(Must(find("0")).number, 0);
  EXPECT_EQ(Must(find(one.uid.hex())).uid, one.uid);
  EXPECT_EQ(Must(find(failed.uid.hex())).state, VersionState::kFailed) << "by uid in any state";
  EXPECT_EQ(Must(find("best")).uid, one.uid);
  for (const char* text : {"2", "4", "99999999999999999999", "", "worst", "-1", "1x",
                           "00000000000000000000000000000000"}) {
    EXPECT_THAT(Text(find(text)), StartsWith("not-found")) << text;
  }
  EXPECT_THAT(Text(db().FindVersion(other.uid, one.uid.hex())),
              AllOf(StartsWith("not-found"), HasSubstr(run.uid.hex())));
}

TEST_P(CatalogConformance, AliasesNameReadyVersionsOfTheirRun) {
  const Run run = MakeRun("policy");
  const Run other = MakeRun("other");
  const Version seed = MakeSeed(run, 0);
  const Version attempt = Must(db().BeginVersion(Request(run, MakeEpoch(run, "job"), 1)));
  EXPECT_OK(db().SetAlias(run.uid, "best", seed.uid));
  EXPECT_OK(db().SetAlias(run.uid, "best", seed.uid));
  EXPECT_OK(db().SetAlias(run.uid, "eval", seed.uid));
  EXPECT_EQ(Must(db().ListAliases(run.uid)),
            (std::map<std::string, VersionUid>{{"best", seed.uid}, {"eval", seed.uid}}));
  EXPECT_TRUE(Must(db().ListAliases(other.uid)).empty());
  EXPECT_THAT(Text(db().SetAlias(run.uid, "a", attempt.uid)),
              AllOf(StartsWith("conflict"), HasSubstr("STAGING")));
  EXPECT_THAT(Text(db().SetAlias(other.uid, "a", seed.uid)), StartsWith("conflict"));
  for (const char* alias : {"", "7", "latest", "0123456789abcdef0123456789ABCDEF", "a/b"}) {
    EXPECT_THAT(Text(db().SetAlias(run.uid, alias, seed.uid)), StartsWith("invalid-argument"));
  }
  EXPECT_OK(db().RemoveAlias(run.uid, "best"));
  EXPECT_THAT(Text(db().RemoveAlias(run.uid, "best")), StartsWith("not-found"));
  EXPECT_EQ(Must(db().ListAliases(run.uid)).size(), 1u);
}

TEST_P(CatalogConformance, ListVersionsShowsEveryAttemptByNumberThenCreation) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version failed_two = Must(db().BeginVersion(Request(run, epoch, 2)));
  EXPECT_OK(db().FailVersion(failed_two.uid, "why"));
  const Version one = Publish(run, epoch, 1, 0, 1);
  const Version two = Publish(run, epoch, 2, 1, 2);
  std::vector<VersionUid> uids;
  for (const Version& version : Must(db().ListVersions(run.uid))) uids.push_back(version.uid);
  EXPECT_THAT(uids, testing::ElementsAre(testing::_, one.uid, failed_two.uid, two.uid));
}

TEST_P(CatalogConformance, TheIncarnationStays) {
  const std::string incarnation = Must(db().Incarnation());
  EXPECT_EQ(incarnation.size(), 32u);
  MakeRun("policy");
  EXPECT_EQ(Must(db().Incarnation()), incarnation);
  EXPECT_NE(Must(GetParam()()->handle(0).Incarnation()), incarnation);
}

}  // namespace
}  // namespace weightcast::catalog
