#include "agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/lay_beside.h"
#include "agent/testing.h"
#include "os/sim.h"
#include "os/temp_dir.h"
#include "store/wrappers.h"

namespace weightcast::agent {
namespace {

using catalog::VersionKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kImage = "/models/policy";
constexpr const char* kSeed = "/seed";

class AgentTest : public testing::Test {
 protected:
  // v0 seed, v1, v2 deltas, v3 full, v4, v5 deltas.
  void SetUp() override {
    line_.AddSeed({{"config.json", "{}"}, {"sub/tokenizer.json", "tokens"}});
    line_.Publish();
    line_.Publish();
    line_.Publish(50, VersionKind::kFull);
    line_.Publish();
    line_.Publish();
    line_.WriteSeed(fs(), kSeed);
    machine_.MakeDurable();
  }
  os::World& world() { return machine_.world(); }
  os::Fs& fs() { return world().fs; }

  PullReport PullOk(size_t number, const std::string& seed = "",
                    const AgentOptions& options = TestOptions()) {
    const auto report = Pull(world(), line_, number, kImage, seed, options);
    EXPECT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(Number(), number);
    return report.ok() ? *report : PullReport{};
  }
  Error PullFails(size_t number, const std::string& seed = "",
                  const AgentOptions& options = TestOptions()) {
    const auto report = Pull(world(), line_, number, kImage, seed, options);
    EXPECT_FALSE(report.ok());
    return report.ok() ? Error{} : report.error();
  }
  size_t Number() {
    const auto number = line_.NumberAt(world(), kImage);
    EXPECT_TRUE(number.ok()) << number.error().message;
    return number.ok() ? *number : 999;
  }
  std::vector<std::string> Meta() { return fs().List(MetaPath(kImage)).value(); }

  TestLine line_;
  os::SimMachine machine_;
};

TEST_F(AgentTest, StartsColdFromTheSeed) {
  for (const size_t number : {size_t{0}, size_t{2}}) {
    const PullReport report = PullOk(number, kSeed);
    EXPECT_EQ(report.how, "beside");
    EXPECT_EQ(report.number, static_cast<int64_t>(number));
    EXPECT_EQ(report.root, line_.version(number).root);
    EXPECT_EQ(report.chain.size(), number);
    EXPECT_EQ(report.sources.at("seed"), line_.inventory().bytes());
    EXPECT_EQ(report.fetched_bytes > 0, number > 0);
    // The seed's files, with its headers.
    const auto header = [&](const std::string& path) {
      const auto directory = tensor::HfDirectory::Open(fs(), path).value();
      return DescribeWeightFile(fs(), directory.weight_path(0), directory.weight_files()[0])
          .value();
    };
    EXPECT_EQ(header(kImage), header(kSeed));
    ASSERT_TRUE(fs().RemoveTree(kImage).ok());
  }
}

TEST_F(AgentTest, StartsColdFromAFullVersionWithoutASeed) {
  const PullReport report = PullOk(5);
  EXPECT_EQ(report.how, "beside");
  EXPECT_THAT(report.chain, ElementsAre(line_.version(4).uid, line_.version(5).uid));
  EXPECT_EQ(report.sources.count("seed"), 0U);
  EXPECT_GT(tensor::HfDirectory::Open(fs(), kImage)->weight_files().size(), 1U);
}

TEST_F(AgentTest, SaysWhatIsMissingWhenNothingCanStart) {
  const Error error = PullFails(0);
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("seed"));
  EXPECT_FALSE(fs().Exists(kImage).value());
}

TEST_F(AgentTest, StepsByJournalOneOrSeveralVersionsAtOnce) {
  PullOk(0, kSeed);
  const PullReport one = PullOk(1);
  EXPECT_EQ(one.how, "journal");
  EXPECT_GT(one.journal_bytes, 0);
  EXPECT_GT(one.changed_units, 0);
  EXPECT_EQ(one.fetched_bytes, one.sources.at("store"));
  const PullReport several = PullOk(5);
  EXPECT_EQ(several.how, "journal");
  EXPECT_EQ(several.chain.size(), 4U);
  EXPECT_THAT(Meta(), ElementsAre("clean-3", "journal-1-2", "journal-2-3", "lock",
                                  "manifest-1.json", "manifest-2.json", "manifest-3.json"));
}

TEST_F(AgentTest, AVersionWithoutAnyChangeInstalls) {
  line_.Publish(line_.run().states().back(), {}, line_.side(5));
  PullOk(5);
  const PullReport report = PullOk(6);
  EXPECT_EQ(report.how, "journal");
  EXPECT_EQ(report.changed_units, 0);
}

TEST_F(AgentTest, StaysWhereItIsAtTheTarget) {
  PullOk(4);
  const int64_t renames = machine_.calls("Rename");
  const PullReport report = PullOk(4);
  EXPECT_EQ(report.how, "current");
  EXPECT_EQ(report.fetched_bytes, 0);
  EXPECT_EQ(machine_.calls("Rename"), renames);
  line_.versions()[4].root.value[0] ^= 1;
  EXPECT_EQ(PullFails(4).code, Code::kDataLoss);
}

// T1: A -> B -> A restores A bit by bit.
TEST_F(AgentTest, GoesBackByTheKeptUndoAndForwardAgain) {
  PullOk(1, kSeed);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(PullOk(2).how, "journal");
    const PullReport back = PullOk(1);
    EXPECT_EQ(back.how, "undo");
    EXPECT_EQ(back.fetched_bytes, 0);
  }
  Image image(world(), kImage);
  EXPECT_EQ(image.TakeHold(seconds(1))->manifest().generation, 7);
}

TEST_F(AgentTest, GoesBackSeveralStepsAtOnce) {
  PullOk(1, kSeed);
  PullOk(2);
  PullOk(3);
  PullOk(4);
  EXPECT_EQ(PullOk(1).how, "undo");
  EXPECT_EQ(PullOk(4).how, "journal");
  EXPECT_EQ(PullOk(1).how, "undo");
}

TEST_F(AgentTest, GoesBackWithoutAnUndoByLayingBeside) {
  PullOk(5);
  EXPECT_EQ(PullOk(3).how, "beside");
  EXPECT_EQ(PullOk(2, kSeed).how, "beside");
  EXPECT_EQ(PullFails(1).code, Code::kUnavailable);
  EXPECT_EQ(Number(), 2U);
}

TEST_F(AgentTest, ADamagedUndoIsNotUsed) {
  PullOk(1, kSeed);
  PullOk(2);
  const auto journal = fs().OpenFile(JournalPath(kImage, {1, 2}), os::Open::kReadWrite).value();
  ASSERT_TRUE(journal->Write(200, AsBytes("x")).ok());
  EXPECT_EQ(PullOk(1, kSeed).how, "beside");
}

TEST_F(AgentTest, SideFilesFollowTheVersionForthAndBack) {
  const auto next = [&](size_t seed) { return line_.run().Changed(seed, 50); };
  line_.Publish(next(6), {}, {{"config.json", "{\"a\":1}"}, {"deep/er/new.txt", "new"}});
  line_.Publish(next(7), {}, {{"config.json", "{}"}, {"sub/tokenizer.json", "other"}});
  PullOk(5);
  EXPECT_EQ(PullOk(6).how, "journal");
  EXPECT_EQ(PullOk(7).how, "journal");
  EXPECT_EQ(PullOk(6).how, "undo");
  EXPECT_EQ(PullOk(5).how, "undo");
  EXPECT_EQ(PullOk(7).how, "journal");
  const auto report = VerifyImage(world(), kImage, 1, {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->verified);
}

TEST_F(AgentTest, ASideFileThatWasChangedByHandIsNamedBeforeAnythingIsApplied) {
  line_.Publish(line_.run().Changed(6, 50), {}, {{"config.json", "{\"a\":1}"}});
  PullOk(5);
  ASSERT_TRUE(WriteNew(fs(), os::JoinPath(kImage, "config.json"), AsBytes("{ }"), false).ok());
  const Error error = PullFails(6);
  EXPECT_EQ(error.code, Code::kDataLoss);
  EXPECT_THAT(error.message, HasSubstr("config.json"));
}

TEST_F(AgentTest, ASideFileThatIsGoneComesBackAlsoAtTheTarget) {
  PullOk(5);
  const std::string config = os::JoinPath(kImage, "config.json");
  for (const size_t number : {5UL, 4UL, 5UL}) {
    ASSERT_TRUE(fs().Remove(config).ok());
    PullOk(number);
    EXPECT_TRUE(VerifyImage(world(), kImage, 1, {})->verified) << number;
  }
  ASSERT_TRUE(WriteNew(fs(), config, AsBytes("{ }"), false).ok());
  EXPECT_THAT(PullFails(5).message, HasSubstr("config.json"));
  ASSERT_TRUE(fs().Remove(config).ok());
  ASSERT_TRUE(fs().MakeDirectories(config).ok());
  EXPECT_EQ(PullFails(5).code, Code::kDataLoss);
}

TEST_F(AgentTest, ForeignFilesDoNotGoWithAnImageThatIsLaidAnew) {
  PullOk(4);
  const std::string notes = os::JoinPath(kImage, "NOTES.txt");
  ASSERT_TRUE(WriteNew(fs(), notes, AsBytes("mine"), false).ok());
  PullOk(5);  // in place: they are in nobody's way
  const auto refused = Pull(world(), line_, 2, kImage, kSeed, TestOptions());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kConflict);
  EXPECT_THAT(refused.error().message, HasSubstr("NOTES.txt"));
  EXPECT_EQ(fs().ReadAll(notes, kMiB).value(), Bytes({'m', 'i', 'n', 'e'}));
  ASSERT_TRUE(fs().Remove(notes).ok());
  const std::string deep = os::JoinPath(kImage, "notes/deep");
  ASSERT_TRUE(fs().MakeDirectories(deep).ok());
  ASSERT_TRUE(WriteNew(fs(), os::JoinPath(deep, "a.txt"), {}, false).ok());
  EXPECT_THAT(PullFails(2, kSeed).message, HasSubstr("notes"));
  ASSERT_TRUE(fs().Remove(os::JoinPath(deep, "a.txt")).ok());
  // Directories without a file hold nothing to lose; going back leaves some of ours.
  EXPECT_EQ(Pull(world(), line_, 2, kImage, kSeed, TestOptions())->how, "beside");
}

TEST_F(AgentTest, NamesOfSideFilesThatLeaveTheImageAreRefused) {
  for (const char* name :
       {"../x", "/etc/x", ".hidden", "a/../b", "", "a//b", "w.safetensors", ".weightcast/lock"}) {
    line_.versions()[3].side_files = {{name, 0, {}}};
    const Error error = PullFails(3);
    EXPECT_EQ(error.code, Code::kInvalidData) << name;
  }
}

// X1: the first delta's base must be the exact bytes of the seed.
TEST_F(AgentTest, ASeedThatDiffersInOneBitIsNotTheSeed) {
  const std::string path = std::string(kSeed) + "/model-00001-of-00002.safetensors";
  const auto file = fs().OpenFile(path, os::Open::kReadWrite).value();
  Bytes byte(1);
  const int64_t last = file->Size().value() - 1;
  ASSERT_TRUE(file->Read(last, byte).ok());
  byte[0] ^= 1;
  ASSERT_TRUE(file->Write(last, byte).ok());
  EXPECT_EQ(PullFails(1, kSeed).code, Code::kUnavailable);
  EXPECT_EQ(PullOk(4, kSeed).how, "beside");  // the full version does not need it
  EXPECT_FALSE(PullOk(4).sources.contains("seed"));
}

// X1, T2: a rotten cell that a delta reads is found and named, and the image is what it was.
TEST_F(AgentTest, ARottenBaseIsNamedBeforeAnythingIsApplied) {
  PullOk(4);
  const auto directory = tensor::HfDirectory::Open(fs(), kImage).value();
  const auto tensor = static_cast<size_t>(line_.inventory().Find("e.weight"));
  const tensor::TensorPlace place = directory.places()[tensor];
  const auto path = directory.weight_path(static_cast<size_t>(place.file));
  const auto file = fs().OpenFile(path, os::Open::kReadWrite).value();
  ASSERT_TRUE(file->Write(place.offset + 11, AsBytes("x")).ok());
  const Bytes before = fs().ReadAll(path, kMiB).value();
  const Error error = PullFails(5);
  EXPECT_EQ(error.code, Code::kDataLoss);
  EXPECT_THAT(error.message, HasSubstr("e.weight"));
  EXPECT_EQ(fs().ReadAll(path, kMiB).value(), before);
  EXPECT_EQ(Image(world(), kImage).TakeHold(seconds(1))->manifest().number, 4);
}

// T2: one bad chunk of several; nothing is applied, and the next pull works.
TEST_F(AgentTest, ABadChunkLeavesTheImageAndALaterPullSucceeds) {
  PullOk(4);
  const catalog::Version& version = line_.version(5);
  ASSERT_FALSE(version.objects.empty());
  store::FaultPlan plan;
  for (int64_t i = 2; i < 40; ++i) {  // the footers arrive, a payload never does
    plan.faults.push_back({store::StoreCall::kGet, i, store::Fault::kFlip, 100});
  }
  store::FaultyStore faulty(line_.store(), world().clock, plan);
  LineSource source(line_, 5);
  Agent agent(
      world(), [&](const std::string&) -> Result<store::Store*> { return &faulty; }, TestOptions());
  const auto report = agent.Pull(source, kImage, "");
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kDataLoss) << report.error().message;
  EXPECT_EQ(source.leases, 0);
  EXPECT_EQ(Number(), 4U);
  EXPECT_EQ(PullOk(5).how, "journal");
}

TEST_F(AgentTest, AVersionWhoseDigestsDoNotFollowIsRefusedBeforeAnythingIsApplied) {
  PullOk(4);
  for (const bool root : {false, true}) {
    catalog::Version& version = line_.versions()[5];
    const catalog::Version good = version;
    if (root) {
      version.root.value[5] ^= 1;
    } else {
      // A chain that lacks a version in the middle: its base is not ours.
      version.base = line_.version(3).uid;
      PullOk(3);
    }
    const Error error = PullFails(5);
    EXPECT_EQ(error.code, Code::kDataLoss) << error.message;
    EXPECT_EQ(Number(), root ? 4U : 3U);
    version = good;
    PullOk(4);
  }
}

// T1: an apply that does not write is detected, whatever it answers.
TEST_F(AgentTest, AWriteThatIsSwallowedIsDetectedAndTheOldVersionStays) {
  PullOk(4);
  const int64_t updates = machine_.calls("Update");
  machine_.Swallow("Update", updates);
  const Error error = PullFails(5);
  EXPECT_EQ(error.code, Code::kDataLoss);
  EXPECT_THAT(error.message, HasSubstr("a.weight cell 0"));
  EXPECT_EQ(Number(), 4U);
  EXPECT_EQ(PullOk(5).how, "journal");
}

// X4: bytes that change between prepare and apply are found by the proof.
TEST_F(AgentTest, AnImageThatChangesUnderThePullIsDetected) {
  PullOk(4);
  const auto directory = tensor::HfDirectory::Open(fs(), kImage).value();
  LineSource source(line_, 5);
  Agent agent(
      world(), [&](const std::string&) -> Result<store::Store*> { return &line_.store(); },
      TestOptions());
  const auto report = agent.Pull(source, kImage, "", [&](int64_t done, int64_t total) {
    if (done < total) return Ok();
    const auto path = directory.weight_path(0);
    const auto file = fs().OpenFile(path, os::Open::kReadWrite).value();
    Bytes byte(1);
    EXPECT_TRUE(file->Read(file->Size().value() - 1, byte).ok());
    byte[0] ^= 0x40;
    return file->Write(file->Size().value() - 1, byte);
  });
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kDataLoss) << report.error().message;
  EXPECT_EQ(Image(world(), kImage).TakeHold(seconds(1))->manifest().number, 4);
}

TEST_F(AgentTest, AnotherInventoryIsLaidAnewOrAConflict) {
  TestLine other({{"z", tensor::DType::kBf16, {100}}});
  other.AddSeed();
  other.Publish(50, VersionKind::kFull);
  other.Publish();
  ASSERT_TRUE(Pull(world(), other, 1, kImage).ok());
  const Error error = PullFails(2);
  EXPECT_EQ(error.code, Code::kConflict);
  EXPECT_THAT(error.message, HasSubstr("a.weight"));
  EXPECT_EQ(other.NumberAt(world(), kImage).value(), 1U);
  EXPECT_EQ(PullOk(3).how, "beside");
}

TEST_F(AgentTest, ADirectoryOfSomeoneElseIsNotTouched) {
  ASSERT_TRUE(WriteNew(fs(), "/data.txt", AsBytes("x"), false).ok());
  const Error error = Pull(world(), line_, 3, kSeed).error();
  EXPECT_EQ(error.code, Code::kConflict);
  EXPECT_FALSE(fs().Exists("/.seed.weightcast-lock").value());
  EXPECT_EQ(Pull(world(), line_, 3, "/").error().code, Code::kInvalidArgument);
  EXPECT_EQ(Pull(world(), line_, 3, "/models/..").error().code, Code::kInvalidArgument);
}

TEST_F(AgentTest, APullWaitsForTheOneBeforeIt) {
  PullOk(4);
  const auto lock = fs().OpenFile("/models/.policy.weightcast-lock", os::Open::kRead).value();
  ASSERT_TRUE(lock->LockFor(os::Lock::kExclusive, seconds(0)).ok());
  const Error error = PullFails(5);
  EXPECT_EQ(error.code, Code::kDeadlineExceeded);
  EXPECT_THAT(error.message, HasSubstr("another pull"));
  ASSERT_TRUE(lock->Unlock().ok());
  PullOk(5);
}

TEST_F(AgentTest, AnErrorOfProgressStopsThePullAndLeavesTheImage) {
  const auto pull = [&](size_t number) {
    LineSource source(line_, number);
    Agent agent(
        world(), [&](const std::string&) -> Result<store::Store*> { return &line_.store(); },
        TestOptions());
    int calls = 0;
    const auto report = agent.Pull(source, kImage, "", [&](int64_t, int64_t) {
      ++calls;
      return Status(Error{Code::kAborted, "enough"});
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(source.leases, 0);
    return report.ok() ? Error{} : report.error();
  };
  EXPECT_THAT(pull(3).message, HasSubstr("enough"));  // laid beside
  EXPECT_FALSE(fs().Exists(kImage).value());
  PullOk(4);
  EXPECT_THAT(pull(5).message, HasSubstr("enough"));  // by journal
  EXPECT_EQ(Number(), 4);
  PullOk(5);
}

// M3: the budget is checked before work begins.
TEST_F(AgentTest, JournalBudgetIsCheckedBeforeAnythingIsFetched) {
  PullOk(4);
  store::CountingStore counting(line_.store());
  AgentOptions options = TestOptions();
  options.journal_bytes_max = 500;
  LineSource source(line_, 5);
  Agent agent(
      world(), [&](const std::string&) -> Result<store::Store*> { return &counting; }, options);
  const auto report = agent.Pull(source, kImage, "");
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kResourceExhausted);
  EXPECT_THAT(report.error().message, HasSubstr("budget is 500"));
  EXPECT_EQ(counting.counts().of(store::StoreCall::kGet), 2);  // the two parts' footers
  EXPECT_EQ(Number(), 4U);
}

// M5: too little space is said before work begins, not by a signal in the middle.
TEST_F(AgentTest, TooLittleSpaceIsSaidBeforeWorkBegins) {
  machine_.SetFreeBytes(100 * kKiB);
  Error error = PullFails(4);
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_THAT(error.message, HasSubstr("free"));
  EXPECT_FALSE(fs().Exists(kImage).value());
  EXPECT_FALSE(fs().Exists(NextPath(kImage)).value());
  machine_.SetFreeBytes(-1);
  PullOk(4);
  machine_.SetFreeBytes(100 * kKiB);
  error = PullFails(5);
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_EQ(Number(), 4U);
}

TEST_F(AgentTest, AFullDiskAtAnyPointLeavesTheImage) {
  PullOk(4);
  const int64_t slack = 3 * kMiB;
  for (int64_t taken = 0;; taken += 4096) {
    machine_.SetFreeBytes(slack);
    // What others write once the pull has looked at the free space.
    LineSource source(line_, 5);
    Agent agent(
        world(), [&](const std::string&) -> Result<store::Store*> { return &line_.store(); },
        TestOptions());
    const auto report = agent.Pull(source, kImage, "", [&](int64_t, int64_t) {
      machine_.SetFreeBytes(taken);
      return Ok();
    });
    machine_.SetFreeBytes(-1);
    if (report.ok()) {
      EXPECT_GT(taken, 0);
      break;
    }
    EXPECT_EQ(report.error().code, Code::kResourceExhausted) << report.error().message;
    ASSERT_EQ(Number(), 4U) << taken;
  }
  EXPECT_EQ(Number(), 5U);
}

TEST_F(AgentTest, AReadOnlyDiskIsAnErrorAndLeavesTheImage) {
  PullOk(4);
  machine_.SetReadOnly(true);
  EXPECT_EQ(PullFails(5).code, Code::kUnavailable);
  EXPECT_EQ(Number(), 4U);
}

// M6: journals are given up as the image is synced; the disk does not fill.
TEST_F(AgentTest, TwoHundredVersionsKeepTheJournalsWithinTheirBudget) {
  for (const Durability durability : {Durability::kHost, Durability::kProcess}) {
    ASSERT_TRUE(fs().RemoveTree(kImage).ok());
    AgentOptions options = TestOptions();
    options.durability = durability;
    options.journal_bytes_max = 8 * kKiB;
    options.undo_kept = 2;
    PullOk(5, "", options);
    while (line_.size() < 100) line_.Publish(200);
    for (size_t number = 6; number < line_.size(); ++number) {
      const auto report = Pull(world(), line_, number, kImage, "", options);
      ASSERT_TRUE(report.ok()) << report.error().message;
      int64_t journals = 0;
      for (const std::string& name : Meta()) {
        if (!name.starts_with("journal-")) continue;
        journals += fs().StatPath(os::JoinPath(MetaPath(kImage), name))->size;
      }
      ASSERT_LE(journals, options.journal_bytes_max);
    }
    EXPECT_EQ(Number(), line_.size() - 1);
  }
}

TEST_F(AgentTest, CarriedTensorsComeWithTheFullVersion) {
  TestLine line(SmallModel(), {1, 4});
  line.AddSeed();
  line.Publish(50, VersionKind::kFull);
  line.Publish();
  ASSERT_TRUE(Pull(world(), line, 2, kImage).ok());
  EXPECT_EQ(line.NumberAt(world(), kImage).value(), 2U);
}

TEST_F(AgentTest, SeveralCellsAndThreadsGiveTheSameImage) {
  TestLine line({{"wide", tensor::DType::kU8, {2, (int64_t{1} << 20) + 5}},
                 {"tall", tensor::DType::kBf16, {1030, 2048}},
                 {"bits", tensor::DType::kF4, {6, 8}}});
  line.AddSeed();
  line.Publish(100);
  line.Publish(3);
  line.Publish(100000);
  line.WriteSeed(fs(), "/other", kGiB);
  AgentOptions options = TestOptions();
  options.threads = 4;
  options.batch_payload_bytes_max = 16 * kKiB;
  const std::string image = "/other-image";
  for (const size_t number : {size_t{0}, size_t{1}, size_t{3}}) {
    const auto report = Pull(world(), line, number, image, "/other", options);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(line.NumberAt(world(), image).value(), number);
  }
  const auto back = Pull(world(), line, 0, image, "", options);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->how, "undo");
  EXPECT_EQ(line.NumberAt(world(), image).value(), 0U);
}

TEST_F(AgentTest, TheKernelsFilesServeAsTheSimulatedOnes) {
  os::World& real = os::RealWorld();
  const os::TempDir dir(real);
  const std::string image = os::JoinPath(dir.path(), "image");
  const std::string seed = os::JoinPath(dir.path(), "seed");
  line_.WriteSeed(real.fs, seed);
  for (const Durability durability : {Durability::kHost, Durability::kProcess}) {
    AgentOptions options = TestOptions();
    options.durability = durability;
    options.threads = 2;
    options.sync_every = 2;
    const std::pair<size_t, const char*> steps[] = {{0, "beside"}, {1, "journal"}, {2, "journal"},
                                                    {1, "undo"},   {5, "journal"}, {2, "beside"}};
    for (const auto& [number, how] : steps) {
      const auto report = Pull(real, line_, number, image, seed, options);
      ASSERT_TRUE(report.ok()) << report.error().message;
      EXPECT_EQ(report->how, how) << number;
      EXPECT_EQ(line_.NumberAt(real, image).value(), number);
      EXPECT_TRUE(VerifyImage(real, image, 2, {})->verified);
    }
    EXPECT_THAT(real.fs.List(dir.path()).value(),
                ElementsAre(".image.weightcast-lock", "image", "seed"));
    ASSERT_TRUE(real.fs.RemoveTree(image).ok());
  }
}

// With a catalog, and without one from the store's version.json files.
TEST_F(AgentTest, CatalogAndVersionJsonLeadToTheSameImage) {
  int64_t now = 1000;
  line_.versions()[0].epoch = {};
  line_.versions()[0].plan = {};
  for (catalog::Version& version : line_.versions()) version.participants = {0, 1};
  const auto catalog = catalog::NewMemoryCatalog([&] { return now; });
  for (size_t i = 0; i < line_.size(); ++i) {
    const catalog::VersionDocument document{line_.info(), line_.version(i), line_.run().Digests(i)};
    const Status restored = catalog->Restore(document.run, document.version, document.digests);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    const std::string key = catalog::VersionJsonKey(document.run.uid, document.version.uid);
    ASSERT_TRUE(line_.store().Put(key, AsBytes(EncodeVersionJson(document))).ok());
  }
  Agent agent(
      world(), [&](const std::string&) -> Result<store::Store*> { return &line_.store(); },
      TestOptions());
  for (const bool json : {false, true}) {
    const auto source = [&](size_t number) {
      return json ? FromVersionJson(line_.store(), catalog::VersionJsonKey(
                                                       line_.info().uid, line_.version(number).uid))
                  : FromCatalog(*catalog, "policy", std::to_string(number));
    };
    for (const size_t number : {size_t{2}, size_t{5}}) {
      auto from = source(number);
      ASSERT_TRUE(from.ok()) << from.error().message;
      const auto report = agent.Pull(**from, kImage, kSeed);
      ASSERT_TRUE(report.ok()) << report.error().message;
      EXPECT_EQ(report->how, number == 2 ? "beside" : "journal");
      EXPECT_EQ(Number(), number);
    }
    ASSERT_TRUE(fs().RemoveTree(kImage).ok());
  }
  EXPECT_EQ(FromCatalog(*catalog, "policy", "77").error().code, Code::kNotFound);
  EXPECT_EQ(FromVersionJson(line_.store(), "runs/x/y/version.json").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace weightcast::agent
