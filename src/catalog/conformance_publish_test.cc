// Conformance: announcements, READY, and the end of attempts.
#include <gmock/gmock.h>

#include <set>

#include "catalog/catalog_conformance.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST_P(CatalogConformance, TheLastAnnouncementMakesReady) {
  const Run run = MakeRun("policy");
  const Version seed = MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version begun = Must(db().BeginVersion(Request(run, epoch, 1)));
  const Announcement one = ToyAnnouncement(begun, 1, 0, 7);
  const Announcement zero = ToyAnnouncement(begun, 0, 0, 7);
  EXPECT_EQ(Must(db().Announce(one)).state, VersionState::kStaging);
  EXPECT_EQ(Must(db().FindVersion(run.uid, "latest")).uid, seed.uid);
  EXPECT_THAT(Text(db().GetDigests(begun.uid)), StartsWith("conflict"));
  const Version ready = Must(db().Announce(zero));
  EXPECT_EQ(ready.state, VersionState::kReady);
  EXPECT_EQ(ready.root, ToyRoot(7));
  EXPECT_EQ(ready.objects, (std::vector<ObjectRef>{zero.objects[0], one.objects[0]}));
  EXPECT_EQ(ready.stats, (PublishStats{200, 3, 1800, 2000}));
  EXPECT_EQ(ready.deadline_unix_ms, 0);
  EXPECT_EQ(Must(db().GetDigests(ready.uid)), ToyDigests(7));
  EXPECT_EQ(Must(db().GetAnnouncements(ready.uid)), (std::vector<Announcement>{zero, one}));
  EXPECT_EQ(Must(db().FindVersion(run.uid, "latest")).uid, ready.uid);
}

TEST_P(CatalogConformance, AVersionWithoutChangePublishes) {
  const Run run = MakeRun("policy");
  const Version seed = MakeSeed(run, 4);
  EXPECT_EQ(Publish(run, MakeEpoch(run, "job"), 1, 4, 4).root, seed.root);
}

TEST_P(CatalogConformance, TheFirstAnnouncementOfARankStands) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
  const Announcement zero = ToyAnnouncement(version, 0, 0, 1);
  EXPECT_EQ(Must(db().Announce(zero)).state, VersionState::kStaging);
  EXPECT_EQ(Must(db().Announce(zero)).state, VersionState::kStaging);
  Announcement another_put = zero;
  another_put.objects[0].key += "2";
  EXPECT_THAT(Text(db().Announce(another_put)), AllOf(StartsWith("conflict"), HasSubstr("first")));
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(version, 0, 0, 2))), StartsWith("conflict"));
  EXPECT_EQ(Must(db().GetAnnouncements(version.uid)), (std::vector<Announcement>{zero}));
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 1, 0, 1)));
  EXPECT_EQ(Must(db().Announce(zero)).state, VersionState::kReady) << "the same answer, later";
}

TEST_P(CatalogConformance, BeginAnswersReadyToAnEqualRequestAndRefusesAnyOther) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version two = Publish(run, epoch, 2, 0, 1);
  const Version four = Publish(run, epoch, 4, 1, 2, true);
  for (const char* job : {"job", "job-2"}) {  // also after a restart
    const Epoch e = MakeEpoch(run, job);
    BeginRequest request = Request(run, e, 2);
    EXPECT_EQ(Must(db().BeginVersion(request)).uid, two.uid);
    request.full = true;
    EXPECT_THAT(Text(db().BeginVersion(request)), StartsWith("conflict"));
    request.full = false;
    request.step_token = "another";
    EXPECT_THAT(Text(db().BeginVersion(request)),
                AllOf(StartsWith("conflict"), HasSubstr("step2")));
    EXPECT_THAT(Text(db().BeginVersion(Request(run, e, 4))), StartsWith("conflict"));
    request = Request(run, e, 4);
    request.full = true;
    EXPECT_EQ(Must(db().BeginVersion(request)).uid, four.uid);
    for (const int64_t number : {1, 3}) {
      EXPECT_THAT(Text(db().BeginVersion(Request(run, e, number))),
                  AllOf(StartsWith("conflict"), HasSubstr("not above the latest")));
    }
  }
}

TEST_P(CatalogConformance, FailedIsTerminalAndTheNextBeginIsANewAttempt) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version first = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_OK(db().Announce(ToyAnnouncement(first, 0, 0, 1)));
  EXPECT_OK(db().FailVersion(first.uid, "rank 1: disk full, said \xff\x01"));
  EXPECT_OK(db().FailVersion(first.uid, "again"));
  const Version failed = Must(db().GetVersion(first.uid));
  EXPECT_EQ(failed.state, VersionState::kFailed);
  EXPECT_FALSE(failed.failure.empty());
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(first, 1, 0, 1))),
              AllOf(StartsWith("conflict"), HasSubstr("fenced")));
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(first, 0, 0, 1))), HasSubstr("fenced"));
  const Version second = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_NE(second.uid, first.uid);
  for (const int32_t rank : {0, 1}) {
    EXPECT_OK(db().Announce(ToyAnnouncement(second, rank, 0, 1)));
  }
  EXPECT_THAT(Text(db().FailVersion(second.uid, "late")),
              AllOf(StartsWith("conflict"), HasSubstr("READY")));
  EXPECT_EQ(Must(db().ListVersions(run.uid)).size(), 3u);
}

TEST_P(CatalogConformance, ADeadlineFailsTheAttemptForWhoeverLooks) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job", 4);
  if (!home_->Advance(seconds(0))) GTEST_SKIP() << "the clock cannot be moved";
  BeginRequest request = Request(run, epoch, 1);
  request.staging_timeout = seconds(10);
  const std::string missing = "ranks that did not announce: 0, 1, 3";
  for (int look = 0; look < 4; ++look) {
    const Version version = Must(db().BeginVersion(request));
    EXPECT_OK(db().Announce(ToyAnnouncement(version, 2, 0, 1)));
    home_->Advance(milliseconds(9'999));
    EXPECT_EQ(Must(db().GetVersion(version.uid)).state, VersionState::kStaging);
    home_->Advance(milliseconds(1));
    if (look == 0) {
      EXPECT_THAT(Text(db().Announce(ToyAnnouncement(version, 0, 0, 1))),
                  AllOf(StartsWith("deadline-exceeded"), HasSubstr(missing)));
      EXPECT_THAT(Text(db().Announce(ToyAnnouncement(version, 0, 0, 1))), HasSubstr("fenced"));
    }
    if (look == 1) {
      EXPECT_EQ(Must(db().ListVersions(run.uid)).back().state, VersionState::kFailed);
    }
    if (look == 2) {
      EXPECT_NE(Must(db().BeginVersion(Request(run, epoch, 2))).uid, version.uid);
    }
    EXPECT_THAT(Must(db().GetVersion(version.uid)).failure, HasSubstr(missing));
    if (look == 2) {
      EXPECT_OK(db().FailVersion(Must(db().ListVersions(run.uid)).back().uid, "out of the way"));
    }
  }
}

TEST_P(CatalogConformance, TwoAttemptsNeverMix) {
  // One rank announces, all die, the job resumes with other weights under a new epoch and reaches
  // the same number.
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch old_epoch = MakeEpoch(run, "job-1");
  const Version old = Must(db().BeginVersion(Request(run, old_epoch, 1)));
  EXPECT_OK(db().Announce(ToyAnnouncement(old, 0, 0, 1)));
  const Epoch epoch = MakeEpoch(run, "job-2");
  const Version failed = Must(db().GetVersion(old.uid));
  EXPECT_EQ(failed.state, VersionState::kFailed);
  EXPECT_EQ(failed.failure, "fenced by epoch 2");
  const Version now = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_NE(now.uid, old.uid);

  // Zombies of the old epoch, in every way that they can speak.
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(old, 1, 0, 1))), HasSubstr("fenced"));
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(old, 0, 0, 1))), HasSubstr("fenced"));
  EXPECT_THAT(Text(db().BeginVersion(Request(run, old_epoch, 1))),
              AllOf(StartsWith("conflict"), HasSubstr("fenced by epoch 2")));
  Announcement disguised = ToyAnnouncement(now, 1, 0, 1);
  disguised.epoch = old_epoch;
  EXPECT_THAT(Text(db().Announce(disguised)), AllOf(StartsWith("conflict"), HasSubstr("fenced")));
  Announcement old_object = ToyAnnouncement(now, 1, 0, 1);
  old_object.objects = ToyAnnouncement(old, 1, 0, 1).objects;
  EXPECT_THAT(Text(db().Announce(old_object)), StartsWith("invalid-data"));

  EXPECT_OK(db().Announce(ToyAnnouncement(now, 1, 0, 2)));
  const Version ready = Must(db().Announce(ToyAnnouncement(now, 0, 0, 2)));
  EXPECT_EQ(ready.root, ToyRoot(2));
  EXPECT_EQ(Must(db().GetVersion(old.uid)).state, VersionState::kFailed);
}

TEST_P(CatalogConformance, AWrongBaselineIsCaughtAndNamed) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1)));
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(version, 1, 5, 1))),
              AllOf(StartsWith("data-loss"), HasSubstr("bias"), HasSubstr("weight"),
                    HasSubstr(ToyDigests(0)[kBias].hex())));
  const Version failed = Must(db().GetVersion(version.uid));
  EXPECT_EQ(failed.state, VersionState::kFailed);
  EXPECT_THAT(failed.failure, HasSubstr("baseline"));
  EXPECT_EQ(Must(db().FindVersion(run.uid, "latest")).number, 0);
  EXPECT_EQ(Publish(run, epoch, 1, 0, 1).root, ToyRoot(1)) << "a retry is a new attempt";
}

TEST_P(CatalogConformance, ARankWithoutABaselineSendsRaw) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
  Announcement raw = ToyAnnouncement(version, 0, 0, 1);
  for (TensorPartial& partial : raw.partials) {
    partial.base = {};
    partial.raw = true;
  }
  EXPECT_OK(db().Announce(raw));
  EXPECT_EQ(Must(db().Announce(ToyAnnouncement(version, 1, 0, 1))).root, ToyRoot(1));
}

TEST_P(CatalogConformance, MissingAndDoublyCoveredUnitsFailTheVersion) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  struct Case {
    const char* text;
    void (*change)(Announcement&);
  };
  const Case cases[] = {
      {"not fully covered: weight (4 of 8 units)",
       [](Announcement& a) {
         std::erase_if(a.partials, [](auto& p) { return p.tensor == kWeight; });
       }},
      {"not fully covered: bias (3 of 4 units)",
       [](Announcement& a) { a.partials[0].next.units = a.partials[0].base.units = 1; }},
      {"doubly covered: bias",
       [](Announcement& a) { a.partials[0].next.units = a.partials[0].base.units = 3; }},
      {"doubly covered: bias, empty",
       [](Announcement& a) {
         for (int i : {0, 1}) {
           a.partials[static_cast<size_t>(i)].next.units = INT64_MAX;
           a.partials[static_cast<size_t>(i)].base.units = INT64_MAX;
         }
       }},
      {"not fully covered: bias (2 of 4 units), frozen (1 of 3 units), weight (4 of 8 units)",
       [](Announcement& a) { a.partials.clear(); }},
  };
  for (const Case& c : cases) {
    const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
    Announcement one = ToyAnnouncement(version, 1, 0, 1);
    c.change(one);
    EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1)));
    EXPECT_THAT(Text(db().Announce(one)), AllOf(StartsWith("invalid-data"), HasSubstr(c.text)));
    EXPECT_THAT(Must(db().GetVersion(version.uid)).failure, HasSubstr(c.text));
  }
}

TEST_P(CatalogConformance, AMalformedAnnouncementIsRefusedAndTheAttemptGoesOn) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Version version = Must(db().BeginVersion(Request(run, MakeEpoch(run, "job"), 1)));
  struct Case {
    const char* text;
    void (*change)(Announcement&);
  };
  const Case cases[] = {
      {"conflict: rank 2", [](Announcement& a) { a.rank = RankId{2}; }},
      {"conflict: rank -1", [](Announcement& a) { a.rank = RankId{-1}; }},
      {"conflict: rank 1", [](Announcement& a) { a.plan = ToyPlan(9); }},
      {"conflict: rank 1", [](Announcement& a) { a.epoch = Epoch{2}; }},
      {"not-found: version", [](Announcement& a) { a.version = {}; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects.clear(); }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects.push_back(a.objects[0]); }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].role = ObjectRole::kFull; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].role = ObjectRole::kCarried; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].key = "elsewhere"; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].key += "\n"; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].footer_bytes = 0; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].footer_bytes = 1001; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].bytes = -1; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.objects[0].footer_sha256 = {}; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.partials[0].tensor = 4; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.partials[0].tensor = -1; }},
      {"invalid-data: rank 1", [](Announcement& a) { std::swap(a.partials[0], a.partials[1]); }},
      {"invalid-data: rank 1", [](Announcement& a) { a.partials.push_back(a.partials[3]); }},
      {"invalid-data: rank 1", [](Announcement& a) { a.partials[0].next.units = -1; }},
      {"invalid-data: rank 1", [](Announcement& a) { ++a.partials[0].base.units; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.stats.wire_bytes = -1; }},
      {"invalid-data: rank 1", [](Announcement& a) { a.stats.elements = INT64_MAX; }},
  };
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1)));
  for (const Case& c : cases) {
    Announcement one = ToyAnnouncement(version, 1, 0, 1);
    c.change(one);
    EXPECT_THAT(Text(db().Announce(one)), StartsWith(c.text)) << &c - cases;
    EXPECT_EQ(Must(db().GetVersion(version.uid)).state, VersionState::kStaging);
  }
  EXPECT_EQ(Must(db().Announce(ToyAnnouncement(version, 1, 0, 1))).state, VersionState::kReady);
}

TEST_P(CatalogConformance, AFullVersionAlsoCarriesItsDelta) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  BeginRequest request = Request(run, MakeEpoch(run, "job"), 1);
  request.full = true;
  const Version version = Must(db().BeginVersion(request));
  for (const ObjectRole left_out : {ObjectRole::kDelta, ObjectRole::kFull}) {
    Announcement zero = ToyAnnouncement(version, 0, 0, 1);
    std::erase_if(zero.objects, [&](const ObjectRef& o) { return o.role == left_out; });
    EXPECT_THAT(Text(db().Announce(zero)),
                HasSubstr("0 " + std::string(RoleName(left_out)) + " objects, expected 1"));
  }
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1)));
  const Version ready = Must(db().Announce(ToyAnnouncement(version, 1, 0, 1)));
  EXPECT_EQ(ready.objects.size(), 4u);
}

TEST_P(CatalogConformance, CarriedTensorsCountFromTheSeed) {
  const Run run = MakeRun("policy", {kFrozen});
  const Epoch epoch = MakeEpoch(run, "job");
  EXPECT_THAT(Text(db().BeginVersion(Request(run, epoch, 1))),
              AllOf(StartsWith("conflict"), HasSubstr("seed")));
  MakeSeed(run, 0);
  const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(version, 0, 0, 1))),
              AllOf(StartsWith("invalid-data"), HasSubstr("doubly covered")));
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1, {kFrozen})));
  const Version ready = Must(db().Announce(ToyAnnouncement(version, 1, 0, 1, {kFrozen})));
  std::vector<tensor::TensorDigest> digests = ToyDigests(1);
  digests[kFrozen] = ToyDigests(0)[kFrozen];
  EXPECT_EQ(Must(db().GetDigests(ready.uid)), digests);
  EXPECT_EQ(ready.root, tensor::ComputeRoot(*ToyInventory(), digests));
}

TEST_P(CatalogConformance, AFullVersionNamesTheObjectOfCarriedTensorsOnce) {
  const Run run = MakeRun("policy", {kFrozen});
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  std::string carried_key;
  for (const int carriers : {0, 1, 2, 1}) {
    BeginRequest request = Request(run, epoch, carried_key.empty() ? 1 : 2);
    request.full = true;
    const Version version = Must(db().BeginVersion(request));
    Result<Version> last = version;
    for (const int32_t rank : {0, 1}) {
      Announcement a = ToyAnnouncement(version, rank, carried_key.empty() ? 0 : 1, 1, {kFrozen});
      if (rank < carriers) {
        a.objects.push_back(ToyObject(version, rank, ObjectRole::kCarried));
        // The second full version names the first one's object.
        if (!carried_key.empty() && carriers == 1) a.objects.back().key = carried_key;
      }
      last = db().Announce(a);
    }
    if (carriers != 1) {
      EXPECT_THAT(Text(last), AllOf(StartsWith("invalid-data"), HasSubstr("expected 1")));
      continue;
    }
    EXPECT_EQ(Must(std::move(last)).state, VersionState::kReady);
    carried_key = PartKey(run.uid, version.uid, epoch, RankId{0}, "put1", ObjectRole::kCarried);
  }
  EXPECT_EQ(Must(db().FindVersion(run.uid, "latest")).number, 2);
}

// V3: after a resume the counter must not begin at 1 again.
TEST_P(CatalogConformance, NumbersGoOnAcrossEpochs) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch first = MakeEpoch(run, "job-1");
  for (int n = 1; n <= 9; ++n) Publish(run, first, n, n - 1, n);
  const Epoch second = MakeEpoch(run, "job-2", 3);
  BeginRequest again = Request(run, second, 1);
  again.step_token = "1 of the resumed job";
  EXPECT_THAT(Text(db().BeginVersion(again)),
              AllOf(StartsWith("conflict"), HasSubstr("the latest of run"), HasSubstr("is 9")));
  const Version ten = Publish(run, second, 10, 9, 10);
  EXPECT_EQ(ten.epoch, second);
  EXPECT_EQ(ten.participants.size(), 3u) << "another layout";
}

// X2: a delta is refused when base, epoch, plan, step or coverage differ; each with its own words.
TEST_P(CatalogConformance, FiveWrongFieldsGiveFiveRefusals) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job");
  const Version version = Must(db().BeginVersion(Request(run, epoch, 1)));
  EXPECT_OK(db().Announce(ToyAnnouncement(version, 0, 0, 1)));

  Announcement wrong_epoch = ToyAnnouncement(version, 1, 0, 1);
  wrong_epoch.epoch = Epoch{9};
  Announcement wrong_plan = ToyAnnouncement(version, 1, 0, 1);
  wrong_plan.plan = ToyPlan(9);
  Announcement wrong_layout = ToyAnnouncement(version, 1, 0, 1);
  wrong_layout.partials.back().tensor = 99;
  Announcement wrong_object = ToyAnnouncement(version, 1, 0, 1);
  wrong_object.objects[0].footer_sha256 = {};
  const Announcement wrong_base = ToyAnnouncement(version, 1, 3, 1);
  std::set<std::string> texts;
  for (const Announcement& a : {wrong_epoch, wrong_plan, wrong_layout, wrong_object, wrong_base}) {
    const std::string text = Text(db().Announce(a));
    EXPECT_NE(text, "ok");
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 5u) << testing::PrintToString(texts);
}

// T4: a flag that stays set after a failure must not refuse all later starts.
TEST_P(CatalogConformance, ADeadSessionDoesNotBlockTheNext) {
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Version stuck = Must(db().BeginVersion(Request(run, MakeEpoch(run, "job-1"), 1)));
  EXPECT_OK(db().Announce(ToyAnnouncement(stuck, 0, 0, 1)));
  const Version next = Publish(run, MakeEpoch(run, "job-2"), 1, 0, 2);
  EXPECT_THAT(Text(db().Announce(ToyAnnouncement(stuck, 1, 0, 1))), HasSubstr("fenced"));
  EXPECT_EQ(Must(db().FindVersion(run.uid, "1")).uid, next.uid);
}

}  // namespace
}  // namespace weightcast::catalog
