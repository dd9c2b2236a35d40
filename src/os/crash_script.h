// Runs production code on a simulated machine that dies at every mutation in turn, by the death of
// the process and by loss of power, with many seeds; and proves that each sync and each rename in
// it is needed. For tests; it knows no test framework.
//
//   CrashScript script;
//   script.prepare = [](World& world) { ... the old state ... };
//   script.act = [](World& world) { return Apply(world, ...).ok(); };
//   script.verify = [](World& world, bool done) -> std::string { ... recover; "" or what is wrong
//   ... }; EXPECT_EQ(RunCrashScript(script), ""); EXPECT_THAT(NeedlessCalls(script, {"Sync",
//   "SyncDirectory", "Rename"}), IsEmpty());
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "os/sim.h"

namespace weightcast::os {

struct CrashScript {
  // Lays the old state. Nothing dies in it and all of it is durable afterwards.
  std::function<void(World&)> prepare;
  // The code under test; true if it answered ok.
  std::function<bool(World&)> act;
  // What production does first after a restart. Optional: when set, it is also killed at each of
  // its own mutations before `verify` runs.
  std::function<void(World&)> recover;
  // Looks at the restarted machine, and recovers first if it must. `done`: act had answered ok.
  // Returns "" or what is wrong.
  std::function<std::string(World&, bool done)> verify;
  // Whether all that counts lies on the machine. Then prepare runs once and act once for each point
  // of death, and each seed gets a copy of the dead machine; else each seed begins with a prepare
  // of its own, which also resets what lies outside. Several times faster where it may be said.
  bool machine_only = false;
};

struct CrashOptions {
  std::vector<Death> deaths = {Death::kProcess, Death::kPower};
  uint64_t seeds = 64;  // times the environment's WEIGHTCAST_CRASH_SEEDS, for long runs
  // Calls of act (name, ordinal counted from its start) that answer ok and do nothing.
  std::vector<std::pair<std::string, int64_t>> swallowed = {};
};

// "" if every death is survived, else the first that is not, with all that is needed to rerun it.
std::string RunCrashScript(const CrashScript& script, const CrashOptions& options = {});

// The calls of act, of the kinds given, without which the script holds all the same: each as
// "Sync 2" (ordinal in act). Empty if every one is needed.
std::vector<std::string> NeedlessCalls(const CrashScript& script,
                                       const std::vector<std::string>& kinds,
                                       const CrashOptions& options = {});

}  // namespace weightcast::os
