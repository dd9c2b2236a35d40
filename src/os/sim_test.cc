// What the simulated machine takes back and what it keeps, and the crash script on a toy.
#include "os/sim.h"

#include <gmock/gmock.h>

#include <set>

#include "os/crash_script.h"

namespace weightcast::os {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr int64_t kPage = 4096;
constexpr uint64_t kSeeds = 64;

void Lay(World& world, const std::string& path, std::string_view content) {
  const auto file = world.fs.OpenFile(path, Open::kCreate).value();
  WC_CHECK(file->Truncate(0).ok());
  WC_CHECK(file->Write(0, AsBytes(content)).ok());
}

std::string Content(World& world, const std::string& path) {
  const Result<Bytes> bytes = world.fs.ReadAll(path, kGiB);
  if (!bytes.ok()) return std::string("no: ").append(CodeName(bytes.error().code));
  return std::string(AsText(*bytes));
}

// One letter a page: "ab" is a page of a's and a page of b's.
std::string Pages(std::string_view letters) {
  std::string content;
  for (const char letter : letters) content.append(kPage, letter);
  return content;
}
std::string Letters(std::string_view content) {
  std::string letters;
  for (size_t at = 0; at < content.size(); at += kPage) {
    letters += content[at] == '\0' ? '0' : content[at];
  }
  return letters;
}

// What `look` sees after a power loss, over all seeds.
template <typename Act, typename Look>
std::set<std::string> Survivors(Act act, Look look, Death death = Death::kPower) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SimMachine machine;
    act(machine);
    machine.Restart(death, seed);
    seen.insert(look(machine.world()));
  }
  return seen;
}

std::string NamesIn(World& world, const std::string& directory) {
  std::string all;
  const std::vector<std::string> names = world.fs.List(directory).value();
  for (const std::string& name : names) all += name;
  return all;
}

TEST(SimTest, UnsyncedPagesSurviveInAnyCombination) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", Pages("abc"));
        machine.MakeDurable();
        const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
        ASSERT_TRUE(file->Write(0, AsBytes(Pages("XYZ"))).ok());
      },
      [](World& world) { return Letters(Content(world, "/f")); });
  EXPECT_THAT(seen, UnorderedElementsAre("abc", "abZ", "aYc", "aYZ", "Xbc", "XbZ", "XYc", "XYZ"));
}

TEST(SimTest, UpdatesThroughAMappingAreUnsyncedToo) {
  const auto act = [](SimMachine& machine) {
    Lay(machine.world(), "/f", Pages("ab"));
    machine.MakeDurable();
    const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
    file->Map(true).value()->Update(
        0, 2 * kPage, [](MutableByteSpan out) { std::fill(out.begin(), out.end(), uint8_t{'X'}); });
  };
  const auto look = [](World& world) { return Letters(Content(world, "/f")); };
  EXPECT_THAT(Survivors(act, look), UnorderedElementsAre("ab", "aX", "Xb", "XX"));
  EXPECT_THAT(Survivors(act, look, Death::kProcess), ElementsAre("XX"));
}

TEST(SimTest, SyncedDataSurvivesALossOfPower) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", "");
        machine.MakeDurable();
        const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
        ASSERT_TRUE(file->Write(0, AsBytes(Pages("ab"))).ok());
        ASSERT_TRUE(file->Sync().ok());
      },
      [](World& world) { return Letters(Content(world, "/f")); });
  EXPECT_THAT(seen, ElementsAre("ab"));
}

TEST(SimTest, AnUnsyncedSizeSurvivesOrNotWhateverThePagesDo) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", Pages("a"));
        machine.MakeDurable();
        const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
        ASSERT_TRUE(file->Write(kPage, AsBytes(Pages("b"))).ok());
      },
      [](World& world) { return Letters(Content(world, "/f")); });
  EXPECT_THAT(seen, UnorderedElementsAre("a", "ab", "a0"));
}

TEST(SimTest, ATruncationIsUnsyncedToo) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", Pages("ab"));
        machine.MakeDurable();
        const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
        ASSERT_TRUE(file->Truncate(kPage).ok());
      },
      [](World& world) { return Letters(Content(world, "/f")); });
  EXPECT_THAT(seen, UnorderedElementsAre("a", "ab", "a0"));
}

TEST(SimTest, NamesOfADirectorySurviveAsAPrefix) {
  const auto act = [](SimMachine& machine) {
    for (const char* path : {"/1", "/2", "/3"}) Lay(machine.world(), path, "");
    ASSERT_TRUE(machine.world().fs.Remove("/1").ok());
  };
  const auto look = [](World& world) { return NamesIn(world, "/"); };
  EXPECT_THAT(Survivors(act, look), UnorderedElementsAre("", "1", "12", "123", "23"));
  EXPECT_THAT(Survivors(act, look, Death::kProcess), ElementsAre("23"));
}

TEST(SimTest, SyncingADirectoryKeepsItsNamesButNotItsOwn) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        ASSERT_TRUE(machine.world().fs.MakeDirectories("/d").ok());
        Lay(machine.world(), "/d/f", "");
        ASSERT_TRUE(machine.world().fs.SyncDirectory("/d").ok());
      },
      [](World& world) { return Content(world, "/d/f"); });
  EXPECT_THAT(seen, UnorderedElementsAre("", "no: not-found"));
  const auto kept = Survivors(
      [](SimMachine& machine) {
        ASSERT_TRUE(machine.world().fs.MakeDirectories("/d").ok());
        Lay(machine.world(), "/d/f", "");
        ASSERT_TRUE(machine.world().fs.SyncPath("/d").ok());
      },
      [](World& world) { return Content(world, "/d/f"); });
  EXPECT_THAT(kept, ElementsAre(""));
}

TEST(SimTest, ARenameAcrossDirectoriesSurvivesAsAWhole) {
  const auto act = [](SimMachine& machine, const char* synced) {
    Fs& fs = machine.world().fs;
    ASSERT_TRUE(fs.MakeDirectories("/a").ok());
    ASSERT_TRUE(fs.MakeDirectories("/b").ok());
    Lay(machine.world(), "/a/x", "");
    machine.MakeDurable();
    Lay(machine.world(), "/a/1", "");
    ASSERT_TRUE(fs.Rename("/a/x", "/b/x").ok());
    Lay(machine.world(), "/b/2", "");
    if (*synced != '\0') WC_CHECK(fs.SyncDirectory(synced).ok());
  };
  const auto look = [](World& world) { return NamesIn(world, "/a") + "|" + NamesIn(world, "/b"); };
  const auto with = [&](const char* synced) {
    return Survivors([&](SimMachine& machine) { act(machine, synced); }, look);
  };
  EXPECT_THAT(with(""), UnorderedElementsAre("x|", "1x|", "1|x", "1|2x"));
  EXPECT_THAT(with("/b"), ElementsAre("1|2x"))
      << "what came before in either directory comes along";
  EXPECT_THAT(with("/a"), UnorderedElementsAre("1|x", "1|2x"));
}

TEST(SimTest, AnExchangeSurvivesAsAWhole) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/a", "1");
        Lay(machine.world(), "/b", "2");
        machine.MakeDurable();
        ASSERT_TRUE(machine.world().fs.Exchange("/a", "/b").ok());
      },
      [](World& world) { return Content(world, "/a") + Content(world, "/b"); });
  EXPECT_THAT(seen, UnorderedElementsAre("12", "21"));
}

TEST(SimTest, AReplacedFileComesBackWithItsName) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", "old");
        machine.MakeDurable();
        Lay(machine.world(), "/g", "new");
        ASSERT_TRUE(machine.world().fs.OpenFile("/g", Open::kReadWrite).value()->Sync().ok());
        ASSERT_TRUE(machine.world().fs.Rename("/g", "/f").ok());
      },
      [](World& world) { return Content(world, "/f"); });
  EXPECT_THAT(seen, UnorderedElementsAre("old", "new"));
}

TEST(SimTest, TheWriteInWhichTheProcessDiesSurvivesByPages) {
  const auto act = [](SimMachine& machine) {
    Lay(machine.world(), "/f", Pages("ab"));
    machine.MakeDurable();
    const auto file = machine.world().fs.OpenFile("/f", Open::kReadWrite).value();
    machine.CrashAtMutation(0);
    EXPECT_EQ(file->Write(0, AsBytes(Pages("XY"))).error().message, "/f: crashed");
    EXPECT_TRUE(machine.crashed());
    EXPECT_EQ(machine.crashed_in(), "Write /f");
  };
  const auto look = [](World& world) { return Letters(Content(world, "/f")); };
  EXPECT_THAT(Survivors(act, look, Death::kProcess), UnorderedElementsAre("ab", "aY", "Xb", "XY"));
}

TEST(SimTest, WhatAProcessLeftUnsyncedIsLostWithALaterLossOfPower) {
  const auto seen = Survivors(
      [](SimMachine& machine) {
        Lay(machine.world(), "/f", "x");
        machine.Restart(Death::kProcess, 0);
        EXPECT_EQ(Content(machine.world(), "/f"), "x");
      },
      [](World& world) { return NamesIn(world, "/"); });
  EXPECT_THAT(seen, UnorderedElementsAre("", "f"));
}

TEST(SimTest, AfterTheCrashEverythingFailsUntilRestart) {
  SimMachine machine;
  World& world = machine.world();
  Lay(world, "/f", "hello");
  const auto file = world.fs.OpenFile("/f", Open::kReadWrite).value();
  const auto mapping = file->Map(true).value();
  ASSERT_TRUE(file->LockFor(Lock::kExclusive, Duration::zero()).ok());
  machine.CrashAtMutation(1);
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_FALSE(world.fs.MakeDirectories("/d").ok());
  const auto expect_dead = [&](const Status& status) {
    EXPECT_EQ(status.error().code, Code::kUnavailable);
    EXPECT_THAT(status.error().message, testing::EndsWith("crashed"));
  };
  const auto expect_file_dead = [&] {
    Bytes out(1);
    expect_dead(file->Read(0, out));
    expect_dead(file->Write(0, AsBytes("x")));
    expect_dead(file->Sync());
    expect_dead(file->LockFor(Lock::kShared, seconds(5)));
    mapping->Update(0, 1, [](MutableByteSpan bytes) { bytes[0] = 'X'; });
  };
  expect_file_dead();
  expect_dead(world.fs.Rename("/f", "/g"));
  EXPECT_FALSE(world.fs.StatPath("/f").ok());
  machine.Restart(Death::kProcess, 0);
  EXPECT_FALSE(machine.crashed());
  expect_file_dead();  // it belongs to the old life
  EXPECT_EQ(Content(world, "/f"), "hello");
  const auto again = world.fs.OpenFile("/f", Open::kReadWrite).value();
  EXPECT_TRUE(again->LockFor(Lock::kExclusive, Duration::zero()).ok()) << "locks died";
  EXPECT_EQ(NamesIn(world, "/"), "f");
}

TEST(SimTest, FilesMayOutliveTheMachine) {
  auto machine = std::make_unique<SimMachine>();
  Lay(machine->world(), "/f", "hello");
  const auto file = machine->world().fs.OpenFile("/f", Open::kRead).value();
  const auto mapping = file->Map(false).value();
  machine.reset();
  EXPECT_EQ(AsText(mapping->bytes()), "hello");
}

TEST(SimTest, OnlyALossOfPowerChangesTheBoot) {
  SimMachine machine;
  const std::string first = machine.world().boot_id;
  machine.Restart(Death::kProcess, 0);
  EXPECT_EQ(machine.world().boot_id, first);
  machine.Restart(Death::kPower, 0);
  EXPECT_NE(machine.world().boot_id, first);
}

TEST(SimTest, EveryMutationIsCountedByName) {
  SimMachine machine;
  Fs& fs = machine.world().fs;
  ASSERT_TRUE(fs.MakeDirectories("/d/e").ok());
  ASSERT_TRUE(fs.MakeDirectories("/d/e").ok());
  Lay(machine.world(), "/f", "x");
  const auto file = fs.OpenFile("/f", Open::kCreate).value();
  ASSERT_TRUE(file->Write(0, {}).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(file->Allocate(5).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(file->Truncate(3).ok());
  file->Map(true).value()->Update(0, 1, [](MutableByteSpan) {});
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(fs.SyncDirectory("/").ok());
  ASSERT_TRUE(fs.Link("/f", "/g").ok());
  EXPECT_FALSE(fs.Link("/f", "/g").ok());
  ASSERT_TRUE(fs.Rename("/g", "/h").ok());
  ASSERT_TRUE(fs.Exchange("/f", "/h").ok());
  ASSERT_TRUE(fs.Remove("/h").ok());
  int64_t sum = 0;
  for (const char* call : {"Create", "Write", "Update", "Allocate", "Truncate", "Sync",
                           "SyncDirectory", "Rename", "Exchange", "Link", "Remove"}) {
    EXPECT_EQ(machine.calls(call), 1) << call;
    sum += machine.calls(call);
  }
  EXPECT_EQ(machine.calls("MakeDirectory"), 2);
  EXPECT_EQ(machine.mutations(), sum + 2);
}

TEST(SimTest, ASwallowedCallAnswersAndDoesNothing) {
  SimMachine machine;
  Fs& fs = machine.world().fs;
  Lay(machine.world(), "/f", "hello");
  machine.Swallow("Remove", 1);
  machine.Swallow("Write", machine.calls("Write"));
  Lay(machine.world(), "/g", "hello");
  EXPECT_EQ(Content(machine.world(), "/g"), "");
  ASSERT_TRUE(fs.Remove("/f").ok());
  ASSERT_TRUE(fs.Remove("/g").ok());
  EXPECT_EQ(NamesIn(machine.world(), "/"), "g");
  ASSERT_TRUE(fs.Remove("/g").ok());
  EXPECT_EQ(NamesIn(machine.world(), "/"), "");
}

TEST(SimTest, AFullDiskTakesWhatFits) {
  SimMachine machine;
  Fs& fs = machine.world().fs;
  machine.SetFreeBytes(3 * kPage);
  Lay(machine.world(), "/f", Pages("a"));
  EXPECT_EQ(*fs.FreeBytes("/"), 2 * kPage);
  const auto file = fs.OpenFile("/g", Open::kCreate).value();
  const Status full = file->Write(0, AsBytes(Pages("abc")));
  EXPECT_EQ(full.error().code, Code::kResourceExhausted);
  EXPECT_EQ(full.error().message, "/g: write: No space left on device");
  EXPECT_EQ(Letters(Content(machine.world(), "/g")), "ab");
  EXPECT_EQ(*fs.FreeBytes("/"), 0);
  EXPECT_TRUE(file->Write(0, AsBytes(Pages("xy"))).ok()) << "what is allocated can be written";
  EXPECT_EQ(file->Allocate(3 * kPage).error().code, Code::kResourceExhausted);
  EXPECT_EQ(*file->Size(), 2 * kPage);
  ASSERT_TRUE(fs.Remove("/f").ok());
  EXPECT_TRUE(file->Allocate(3 * kPage).ok());
  ASSERT_TRUE(file->Truncate(0).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 3 * kPage);
  ASSERT_TRUE(file->Truncate(3 * kPage).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 3 * kPage) << "reserves nothing";
  machine.SetFreeBytes(-1);
  EXPECT_TRUE(file->Write(0, Bytes(100 * kPage)).ok());
}

TEST(SimTest, AReadOnlyDiskIsRead) {
  SimMachine machine;
  Fs& fs = machine.world().fs;
  Lay(machine.world(), "/f", "x");
  machine.SetReadOnly(true);
  EXPECT_EQ(Content(machine.world(), "/f"), "x");
  EXPECT_EQ(fs.OpenFile("/f", Open::kReadWrite).error().code, Code::kUnavailable);
  EXPECT_EQ(fs.OpenFile("/g", Open::kCreate).error().code, Code::kUnavailable);
  EXPECT_EQ(fs.Remove("/f").error().message, "/f: Remove: Read-only file system");
  EXPECT_EQ(fs.Rename("/f", "/g").error().code, Code::kUnavailable);
  machine.SetReadOnly(false);
  EXPECT_TRUE(fs.Remove("/f").ok());
}

TEST(SimTest, IsOfTheKindThatItIsTold) {
  SimMachine machine;
  EXPECT_EQ(*machine.world().fs.Kind("/"), FsKind::kDisk);
  machine.SetKind(FsKind::kNetwork);
  EXPECT_EQ(*machine.world().fs.Kind("/"), FsKind::kNetwork);
}

TEST(SimTest, OneSeedIsOneHistory) {
  const auto history = [](uint64_t seed) {
    SimMachine machine(seed);
    Bytes random(8);
    machine.world().random.Fill(random);
    Lay(machine.world(), "/f", Pages("abcdefgh"));
    machine.Restart(Death::kPower, seed);
    return Hex(random) + NamesIn(machine.world(), "/") + Letters(Content(machine.world(), "/f"));
  };
  std::set<std::string> histories;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(history(seed), history(seed));
    histories.insert(history(seed));
  }
  EXPECT_EQ(histories.size(), 8u);
}

TEST(SimTest, EveryDeadlinePasses) {
  SimMachine machine;
  Clock& clock = machine.world().clock;
  const Deadline deadline(clock, milliseconds(1));
  while (!deadline.passed()) {
  }
  const int64_t before = clock.UnixMillis();
  clock.SleepFor(seconds(3600));
  EXPECT_GE(clock.UnixMillis() - before, 3'600'000);
}

TEST(SimTest, ACloneHasTheSameFutureAndGoesItsOwnWay) {
  SimMachine machine(5);
  World& world = machine.world();
  Lay(world, "/f", Pages("abcdef"));
  machine.MakeDurable();
  ASSERT_TRUE(world.fs.Link("/f", "/second name").ok());
  ASSERT_TRUE(world.fs.MakeDirectories("/d/e").ok());
  ASSERT_TRUE(world.fs.Rename("/f", "/d/e/f").ok());
  const auto file = world.fs.OpenFile("/d/e/f", Open::kReadWrite).value();
  ASSERT_TRUE(file->Write(0, AsBytes(Pages("XYZ"))).ok());
  ASSERT_TRUE(file->Truncate(5 * kPage).ok());
  machine.CrashAtMutation(0);
  ASSERT_FALSE(file->Write(3 * kPage, AsBytes(Pages("VW"))).ok());
  const auto future = [](SimMachine& m, uint64_t seed) {
    EXPECT_TRUE(m.crashed());
    m.Restart(seed % 2 == 0 ? Death::kPower : Death::kProcess, seed);
    Bytes random(8);
    m.world().random.Fill(random);
    return NamesIn(m.world(), "/") + "|" + Letters(Content(m.world(), "/second name")) + "|" +
           Letters(Content(m.world(), "/d/e/f")) + Hex(random) + m.world().boot_id +
           std::to_string(m.calls("Write"));
  };
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::unique_ptr<SimMachine> a = machine.Clone();
    const std::unique_ptr<SimMachine> b = a->Clone();
    const std::string first = future(*a, seed);
    EXPECT_EQ(future(*b, seed), first) << "seed " << seed;
    Lay(a->world(), "/second name", "changed");
    EXPECT_NE(Content(b->world(), "/second name"), "changed");
  }
}

// The toy: a file that is replaced as a whole.
CrashScript ReplaceFile(bool durable) {
  CrashScript script;
  script.prepare = [](World& world) {
    WC_CHECK(world.fs.MakeDirectories("/d").ok());
    Lay(world, "/d/f", Pages("old"));
  };
  script.act = [durable](World& world) {
    return world.fs.WriteAtomically("/d/f", AsBytes(Pages("new1")), durable).ok();
  };
  script.verify = [](World& world, bool done) -> std::string {
    const std::string found = Letters(Content(world, "/d/f"));
    if (found == "new1" || (found == "old" && !done)) return "";
    return "found " + found + (done ? " after ok" : "");
  };
  return script;
}

TEST(CrashScriptTest, WriteAtomicallySurvivesEveryDeath) {
  EXPECT_EQ(RunCrashScript(ReplaceFile(true)), "");
}

TEST(CrashScriptTest, WriteAtomicallyWithoutSyncsSurvivesTheDeathOfTheProcess) {
  EXPECT_EQ(RunCrashScript(ReplaceFile(false), {.deaths = {Death::kProcess}}), "");
  EXPECT_NE(RunCrashScript(ReplaceFile(false), {.deaths = {Death::kPower}}), "");
}

TEST(CrashScriptTest, CopiesOfOneDeadMachineFindTheSame) {
  for (const bool durable : {true, false}) {
    CrashScript script = ReplaceFile(durable);
    int prepared = 0;
    const auto prepare = script.prepare;
    script.prepare = [&](World& world) {
      ++prepared;
      prepare(world);
    };
    script.machine_only = true;
    EXPECT_EQ(RunCrashScript(script).empty(), durable);
    EXPECT_EQ(prepared, 1);
    EXPECT_EQ(NeedlessCalls(script, {"Sync", "SyncDirectory", "Rename"}).empty(), durable);
  }
}

TEST(CrashScriptTest, EachSwallowedCallOfWriteAtomicallyIsFound) {
  for (const char* call : {"Sync", "SyncDirectory"}) {
    const std::string wrong = RunCrashScript(ReplaceFile(true), {.swallowed = {{call, 0}}});
    EXPECT_THAT(wrong, testing::StartsWith("power death")) << call;
  }
  EXPECT_NE(RunCrashScript(ReplaceFile(true), {.swallowed = {{"Rename", 0}}}), "");
  EXPECT_THAT(NeedlessCalls(ReplaceFile(true), {"Sync", "SyncDirectory", "Rename"}), IsEmpty());
}

TEST(CrashScriptTest, ANeedlessSyncIsNamed) {
  CrashScript script = ReplaceFile(true);
  script.act = [](World& world) {
    return world.fs.SyncDirectory("/d").ok() &&
           world.fs.WriteAtomically("/d/f", AsBytes(Pages("new1")), true).ok();
  };
  EXPECT_THAT(NeedlessCalls(script, {"Sync", "SyncDirectory"}), ElementsAre("SyncDirectory 0"));
}

TEST(CrashScriptTest, RecoveryIsKilledAtEachOfItsMutationsToo) {
  CrashScript script = ReplaceFile(true);
  int recoveries = 0;
  // Wrong: it writes in place, so that its own death leaves a mix.
  script.recover = [&](World& world) {
    ++recoveries;
    const auto file = world.fs.OpenFile("/d/f", Open::kReadWrite);
    if (file.ok()) static_cast<void>((*file)->Write(0, AsBytes(Pages("new1"))));
  };
  const std::string wrong = RunCrashScript(script);
  EXPECT_THAT(wrong, testing::HasSubstr("then recovery's mutation 0 (Write /d/f): found "));
  EXPECT_GT(recoveries, 0);
}

}  // namespace
}  // namespace weightcast::os
