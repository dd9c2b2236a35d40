#include "agent/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/lay_beside.h"
#include "agent/testing.h"
#include "os/sim.h"

namespace weightcast::agent {
namespace {

using testing::HasSubstr;

constexpr const char* kImage = "/models/policy";
constexpr const char* kSeed = "/seed";

class ImageTest : public testing::Test {
 protected:
  void SetUp() override {
    line_.AddSeed();
    line_.Publish();
    line_.Publish();
    line_.WriteSeed(fs(), kSeed);
    machine_.MakeDurable();
  }
  os::World& world() { return machine_.world(); }
  os::Fs& fs() { return world().fs; }
  void PullOk(size_t number, const AgentOptions& options = TestOptions()) {
    const auto report = Pull(world(), line_, number, kImage, kSeed, options);
    ASSERT_TRUE(report.ok()) << report.error().message;
  }
  size_t Number() {
    const auto number = line_.NumberAt(world(), kImage);
    EXPECT_TRUE(number.ok()) << number.error().message;
    return number.ok() ? *number : 999;
  }
  void Flip(const std::string& path, int64_t offset) {
    const auto file = fs().OpenFile(path, os::Open::kReadWrite).value();
    Bytes byte(1);
    ASSERT_TRUE(file->Read(offset, byte).ok());
    byte[0] ^= 1;
    ASSERT_TRUE(file->Write(offset, byte).ok());
  }

  TestLine line_;
  os::SimMachine machine_;
};

TEST_F(ImageTest, ExistsTellsNothingImageAndForeignFilesApart) {
  Image image(world(), kImage);
  EXPECT_FALSE(image.Exists().value());
  ASSERT_TRUE(fs().MakeDirectories(kImage).ok());
  EXPECT_FALSE(image.Exists().value());
  PullOk(0);
  EXPECT_TRUE(image.Exists().value());
  const auto foreign = Image(world(), kSeed).Exists();
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.error().code, Code::kConflict);
  EXPECT_THAT(foreign.error().message, HasSubstr("config.json"));
  EXPECT_EQ(Image(world(), std::string(kSeed) + "/config.json").Exists().error().code,
            Code::kConflict);
}

TEST_F(ImageTest, AHoldShowsItsGenerationAndNoneIsHadWithoutAnImage) {
  EXPECT_EQ(Image(world(), kImage).TakeHold(seconds(1)).error().code, Code::kNotFound);
  PullOk(1);
  Image image(world(), kImage);
  const auto hold = image.TakeHold(seconds(1));
  ASSERT_TRUE(hold.ok()) << hold.error().message;
  EXPECT_EQ(hold->manifest().generation, 1);
  EXPECT_EQ(hold->manifest().root, line_.version(1).root);
  EXPECT_EQ(line_.Compare(fs(), hold->directory(), 1), "");
}

TEST_F(ImageTest, ApplyWaitsForEveryHolderAndFailsAtItsDeadline) {
  PullOk(1);
  Image image(world(), kImage);
  auto one = image.TakeHold(seconds(1));
  auto other = image.TakeHold(seconds(1));
  ASSERT_TRUE(one.ok() && other.ok());
  for (int holders = 2; holders > 0; --holders) {
    const auto refused = Pull(world(), line_, 2, kImage);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kDeadlineExceeded);
    EXPECT_THAT(refused.error().message, HasSubstr("reader"));
    EXPECT_EQ(line_.Compare(fs(), other->directory(), 1), "");
    (holders == 2 ? one : other) = Error{};
  }
  EXPECT_EQ(Number(), 1U);
  PullOk(2);
  EXPECT_EQ(Number(), 2U);
}

TEST_F(ImageTest, ALaidImageWaitsForHoldersOfTheOldOneToo) {
  PullOk(2);
  Image image(world(), kImage);
  auto hold = image.TakeHold(seconds(1));
  ASSERT_TRUE(hold.ok());
  const auto refused = Pull(world(), line_, 1, kImage, kSeed);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kDeadlineExceeded);
  EXPECT_FALSE(fs().Exists(NextPath(kImage)).value());
  hold = Error{};
  PullOk(1);
  EXPECT_EQ(Number(), 1U);
}

TEST_F(ImageTest, AReaderThatWaitedThroughAnExchangeHoldsTheNewImage) {
  PullOk(2);
  // The reader has the old lock file open when the directory is exchanged.
  const auto old_lock = fs().OpenFile(LockPath(kImage), os::Open::kRead).value();
  PullOk(1);
  ASSERT_TRUE(old_lock->LockFor(os::Lock::kShared, seconds(1)).ok());  // nobody is excluded by it
  const auto lock =
      LockImage(world(), kImage, os::Lock::kExclusive, os::Deadline(world().clock, seconds(1)));
  EXPECT_TRUE(lock.ok());
}

TEST_F(ImageTest, DamageOfStateManifestLockOrHeaderIsFoundAndNamed) {
  PullOk(1);
  struct Case {
    std::string path;
    int64_t offset;  // < 0: the file is removed
  };
  const std::string weights = std::string(kImage) + "/model-00001-of-00002.safetensors";
  ASSERT_TRUE(fs().Exists(weights).value());
  for (const Case& c : {Case{ManifestPath(kImage, 1), 30}, Case{ManifestPath(kImage, 1), -1},
                        Case{StatePath(kImage, {1, 1}), -1}, Case{LockPath(kImage), -1},
                        Case{weights, 12}, Case{weights, -1}}) {
    const Bytes before = fs().ReadAll(c.path, kMiB).value();
    if (c.offset < 0) {
      ASSERT_TRUE(fs().Remove(c.path).ok());
    } else {
      Flip(c.path, c.offset);
    }
    const auto hold = Image(world(), kImage).TakeHold(seconds(1));
    ASSERT_FALSE(hold.ok()) << c.path;
    EXPECT_EQ(hold.error().code, Code::kDataLoss) << hold.error().message;
    ASSERT_TRUE(WriteNew(fs(), c.path, before, false).ok());
    EXPECT_EQ(Number(), 1U);
  }
}

TEST_F(ImageTest, AProcessImageIsNotTrustedAfterAHostRestartAndLaidAnew) {
  AgentOptions options = TestOptions();
  options.durability = Durability::kProcess;
  PullOk(1, options);
  machine_.Restart(os::Death::kProcess, 1);
  EXPECT_EQ(Number(), 1U);
  machine_.MakeDurable();  // even if by chance all of it reached the disk
  machine_.Restart(os::Death::kPower, 1);
  const auto hold = Image(world(), kImage).TakeHold(seconds(1));
  ASSERT_FALSE(hold.ok());
  EXPECT_EQ(hold.error().code, Code::kDataLoss);
  EXPECT_THAT(hold.error().message, HasSubstr("lay it anew"));
  const auto report = Pull(world(), line_, 2, kImage, kSeed, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->how, "beside");
  EXPECT_EQ(Number(), 2U);
}

TEST_F(ImageTest, VerifyFindsAnyFlippedByteAndNamesTensorOrFile) {
  PullOk(1);
  auto clean = VerifyImage(world(), kImage, 1, {});
  ASSERT_TRUE(clean.ok());
  EXPECT_TRUE(clean->verified);
  EXPECT_EQ(clean->root, line_.version(1).root);
  size_t flips = 0;
  const std::vector<std::string> names = fs().List(kImage).value();
  for (const std::string& name : names) {
    const std::string path = os::JoinPath(kImage, name);
    if (fs().StatPath(path)->is_directory) continue;
    const auto size = static_cast<int64_t>(fs().ReadAll(path, kMiB)->size());
    for (int64_t offset = 0; offset < size; offset += 1 + size / 97, ++flips) {
      Flip(path, offset);
      const auto report = VerifyImage(world(), kImage, 1, {});
      if (report.ok()) {
        EXPECT_FALSE(report->verified) << name << " at " << offset;
        EXPECT_EQ(report->tensors_bad.size() + report->side_files_bad.size(), 1U);
      } else {
        EXPECT_EQ(report.error().code, Code::kDataLoss) << report.error().message;
      }
      Flip(path, offset);
    }
  }
  EXPECT_GT(flips, 200U);
}

TEST_F(ImageTest, VerifyAgainstAnotherVersionListsWhatDiffers) {
  PullOk(1);
  VersionUid claimed;
  const auto report = VerifyImage(world(), kImage, 1, [&](const VersionUid& version) {
    claimed = version;
    return line_.run().Digests(2);
  });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(claimed, line_.version(1).uid);
  EXPECT_FALSE(report->verified);
  EXPECT_EQ(report->claimed, line_.version(2).root);
  EXPECT_THAT(report->tensors_bad, testing::Contains("a.weight"));
}

}  // namespace
}  // namespace weightcast::agent
