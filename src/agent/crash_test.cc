// A pull dies at each of its mutations, by death of the process and by loss of power; the image is
// always the old or the new version, whole, without anybody's help. And every sync and rename that
// a pull makes is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "agent/testing.h"
#include "os/crash_script.h"

namespace weightcast::agent {
namespace {

constexpr const char* kImage = "/models/policy";
constexpr const char* kSeed = "/seed";
constexpr size_t kNothing = 999;  // instead of a version: no image

struct Act {
  size_t number;
  Durability durability = Durability::kHost;
};

struct Scenario {
  const char* name;
  std::vector<size_t> before;  // pulled before; all of it is durable
  std::vector<Act> acts;       // pulled one after the other; nothing is durable but by them
  int sync_every = 8;
};
void PrintTo(const Scenario& s, std::ostream* out) { *out << s.name; }

class CrashTest : public testing::TestWithParam<Scenario> {
 protected:
  // v0 seed, v1, v2 deltas (v2 with other side files), v3 full, v4 delta.
  CrashTest() {
    line_.AddSeed();
    line_.Publish(500);
    line_.Publish(line_.run().Changed(2, 500), {}, {{"config.json", "[]"}, {"sub/new", "new"}});
    line_.Publish(500, catalog::VersionKind::kFull);
    line_.Publish(500);
  }

  static AgentOptions Options(const Scenario& s, Durability durability) {
    AgentOptions options = TestOptions();
    options.sync_every = s.sync_every;
    options.durability = durability;
    options.undo_kept = 2;
    return options;
  }

  Result<size_t> Look(os::World& world) {
    Image image(world, kImage);
    if (!WC_TRY(image.Exists())) return kNothing;
    return line_.NumberAt(world, kImage);
  }

  os::CrashScript Script(const Scenario& s, bool recover) {
    os::CrashScript script;
    script.prepare = [this, s](os::World& world) {
      line_.WriteSeed(world.fs, kSeed);
      for (const size_t number : s.before) {
        const auto options = Options(s, Durability::kHost);
        WC_CHECK(Pull(world, line_, number, kImage, kSeed, options).ok());
      }
    };
    script.act = [this, s](os::World& world) {
      boot_id_ = world.boot_id;
      acts_done_ = 0;
      for (const Act& act : s.acts) {
        const auto options = Options(s, act.durability);
        const auto report = Pull(world, line_, act.number, kImage, kSeed, options);
        if (!report.ok()) return false;
        hows_[acts_done_++] = report->how;
      }
      return true;
    };
    if (recover) {
      script.recover = [](os::World& world) {
        static_cast<void>(Image(world, kImage).TakeHold(seconds(1)));
      };
    }
    script.verify = [this, s](os::World& world, bool) { return Verify(world, s); };
    return script;
  }

  // The version after the acts that were done, or the one that was under way.
  std::string Verify(os::World& world, const Scenario& s) {
    const bool restarted = world.boot_id != boot_id_;
    if (!restarted || (s.sync_every == 1 && s.acts.back().durability == Durability::kHost)) {
      std::string wrong = line_.OpenWithoutHold(world.fs, kImage);
      if (!wrong.empty()) return wrong;
    }
    std::vector<size_t> expected;
    bool may_be_lost = false;
    for (size_t i = acts_done_; i <= acts_done_ + 1 && i <= s.acts.size(); ++i) {
      if (i == 0) {
        expected.push_back(s.before.empty() ? kNothing : s.before.back());
        continue;
      }
      expected.push_back(s.acts[i - 1].number);
      if (restarted && s.acts[i - 1].durability == Durability::kProcess) may_be_lost = true;
    }
    const Result<size_t> number = Look(world);
    const bool lost = !number.ok() && number.error().code == Code::kDataLoss;
    if (!number.ok() && !(lost && may_be_lost)) return number.error().message;
    if (number.ok() && !may_be_lost && std::ranges::find(expected, *number) == expected.end()) {
      return "found version " + std::to_string(*number);
    }
    return verified_++ % go_on_every_ == 0 ? GoOn(world, s) : "";
  }

  // The image can be used as if nothing had happened.
  std::string GoOn(os::World& world, const Scenario& s) {
    for (const size_t next : {s.acts.back().number, size_t{4}}) {
      const auto report = Pull(world, line_, next, kImage, kSeed, Options(s, Durability::kHost));
      if (!report.ok()) return "next pull: " + report.error().message;
      const Result<size_t> number = Look(world);
      if (!number.ok() || *number != next) return "after the next pull it is not there";
    }
    return "";
  }

  TestLine line_{std::vector<tensor::TensorSpec>{{"a.weight", tensor::DType::kBf16, {60, 128}},
                                                 {"b.empty", tensor::DType::kBf16, {0, 4}},
                                                 {"c.weight", tensor::DType::kF32, {3000}}}};
  std::string boot_id_;
  size_t verified_ = 0;
  size_t go_on_every_ = 5;  // it costs more than all the rest
  size_t acts_done_ = 0;
  std::map<size_t, std::string> hows_;  // how each act is done when nothing dies
};

constexpr Durability kProcess = Durability::kProcess;
const Scenario kScenarios[] = {
    {"ColdFromSeed", {}, {{1}}},
    {"ColdFromFull", {}, {{3}}},
    {"Step", {0}, {{1}}},
    {"StepThatSyncs", {0}, {{1}}, 1},
    {"SideFilesChange", {1}, {{2}}},
    {"SideFilesChangeAndSync", {1}, {{2}}, 1},
    {"StepsSinceSync", {0}, {{1}, {2}, {3}, {4}}},
    {"StepsAndASync", {0}, {{1}, {2}, {3}}, 2},
    {"TwoVersionsAtOnce", {0}, {{2}}},
    {"Undo", {1}, {{2}, {1}}},
    {"UndoTwo", {0}, {{1}, {2}, {0}}},
    {"StepAfterUndo", {0}, {{1}, {0}, {1}}},
    {"BesideBack", {4}, {{1}}},
    {"BesideAfterSteps", {3}, {{4}, {1}, {2}}},
    {"Process", {}, {{0, kProcess}, {1, kProcess}, {2, kProcess}, {1, kProcess}}},
    {"ProcessSideFilesChange", {}, {{1, kProcess}, {2, kProcess}, {1, kProcess}}},
    {"HostToProcess", {0}, {{1}, {2, kProcess}}},
    {"ProcessToHost", {}, {{0, kProcess}, {1, kProcess}, {2}, {3}}},
    {"ProcessUndoneByHost", {}, {{0, kProcess}, {1, kProcess}, {0}}},
};

INSTANTIATE_TEST_SUITE_P(Scenarios, CrashTest, testing::ValuesIn(kScenarios),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(CrashTest, IsOldOrNewWhereverItDies) {
  EXPECT_EQ(os::RunCrashScript(Script(GetParam(), false), {.seeds = 8}), "");
}

// The process dies, another pull takes over, and then power is lost: what the dead process left
// unsynced must not be taken for durable.
TEST_P(CrashTest, ThePullAfterADeadOneMayLosePower) {
  const Scenario& s = GetParam();
  const os::CrashScript script = Script(s, false);
  os::SimMachine whole;
  script.prepare(whole.world());
  ASSERT_TRUE(script.act(whole.world()));
  bool died = true;
  for (int64_t first = 0; died; ++first) {
    bool died_again = true;
    for (int64_t second = 0; died_again; second += 1 + second / 4) {
      const auto seed = static_cast<uint64_t>(first * 31 + second);
      os::SimMachine machine(seed);
      script.prepare(machine.world());
      machine.MakeDurable();
      machine.CrashAtMutation(first);
      script.act(machine.world());
      died = machine.crashed();
      const std::string place = machine.crashed_in();
      machine.Restart(os::Death::kProcess, seed);
      const size_t done_before = acts_done_;
      machine.CrashAtMutation(second);
      if (acts_done_ < s.acts.size()) {
        const Act& act = s.acts[acts_done_];
        const auto options = Options(s, act.durability);
        const auto report = Pull(machine.world(), line_, act.number, kImage, kSeed, options);
        // An image that one process left behind is never lost to the next.
        if (report.ok() && report->how == "beside") {
          ASSERT_EQ(hows_[acts_done_], "beside");
        }
        if (report.ok()) ++acts_done_;
      }
      died_again = machine.crashed();
      const std::string place_again = machine.crashed_in();
      machine.Restart(os::Death::kPower, seed);
      std::string wrong = Verify(machine.world(), s);
      ASSERT_EQ(wrong, "") << "seed " << seed << ": " << first << " (" << place << "), then "
                           << second << " (" << place_again << "), acts done " << done_before
                           << " and " << acts_done_;
    }
  }
}

class RecoveryCrashTest : public CrashTest {};

INSTANTIATE_TEST_SUITE_P(Scenarios, RecoveryCrashTest,
                         testing::Values(Scenario{"StepThatSyncs", {0}, {{1}}, 1},
                                         Scenario{"SideFilesChange", {1}, {{2}}},
                                         Scenario{"Undo", {1}, {{2}, {1}}},
                                         Scenario{"Beside", {4}, {{1}}},
                                         Scenario{"ProcessToHost", {}, {{0, kProcess}, {1}}}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(RecoveryCrashTest, RecoveryMayDieToo) {
  EXPECT_EQ(os::RunCrashScript(Script(GetParam(), true), {.seeds = 1}), "");
}

// Where each counts; elsewhere some are of no use (a sync of weights that hold what the disk has).
class NeedTest : public CrashTest {
 protected:
  // Runs the scenario without one call of `act`; dies `before_end` mutations before its end.
  std::string RunWithout(const os::CrashScript& script, const std::string& call, int64_t ordinal,
                         int64_t before_end, uint64_t seed) {
    os::SimMachine machine(seed);
    script.prepare(machine.world());
    machine.MakeDurable();
    machine.Swallow(call, machine.calls(call) + ordinal);
    if (before_end > 0) machine.CrashAtMutation(mutations_ - before_end);
    const bool done = script.act(machine.world());
    const bool renames = call == "Rename" || call == "Exchange";  // needed without any death
    machine.Restart(renames ? os::Death::kProcess : os::Death::kPower, seed);
    return script.verify(machine.world(), done);
  }

  // From the end backwards: what a sync is for comes after it.
  bool IsNeeded(const os::CrashScript& script, const std::string& call, int64_t ordinal) {
    for (int64_t before_end = 0; before_end <= mutations_; ++before_end) {
      for (uint64_t seed = 0; seed < 16; ++seed) {
        if (!RunWithout(script, call, ordinal, before_end, seed).empty()) return true;
      }
    }
    return false;
  }

  int64_t mutations_ = 0;  // of act
};

INSTANTIATE_TEST_SUITE_P(Scenarios, NeedTest,
                         testing::Values(Scenario{"Cold", {}, {{1}}},
                                         Scenario{"StepThatSyncs", {0}, {{1}}, 1},
                                         Scenario{"SideFilesChange", {1}, {{2}}},
                                         Scenario{"UndoOfASyncedStep", {0, 1}, {{0}}, 1},
                                         Scenario{"Beside", {4}, {{1}}}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(NeedTest, EverySyncAndRenameIsNeeded) {
  const os::CrashScript script = Script(GetParam(), false);
  const std::vector<std::string> kinds = {"Sync", "SyncDirectory", "Rename", "Exchange"};
  os::SimMachine whole;
  script.prepare(whole.world());
  std::map<std::string, int64_t> before;
  for (const std::string& kind : kinds) before[kind] = whole.calls(kind);
  const int64_t mutations_before = whole.mutations();
  ASSERT_TRUE(script.act(whole.world()));
  mutations_ = whole.mutations() - mutations_before;
  EXPECT_FALSE(IsNeeded(script, "Sync", 1000)) << "the harness complains without cause";
  for (const std::string& kind : kinds) {
    for (int64_t ordinal = 0; ordinal < whole.calls(kind) - before[kind]; ++ordinal) {
      go_on_every_ = kind.starts_with("Sync") ? 100 : 1;  // a wrong name may show only later
      EXPECT_TRUE(IsNeeded(script, kind, ordinal)) << kind << " " << ordinal;
    }
  }
}

}  // namespace
}  // namespace weightcast::agent
