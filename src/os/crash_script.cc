#include "os/crash_script.h"

namespace weightcast::os {
namespace {

// Where one run dies: in act, and again in recovery (< 0: not there).
struct Point {
  Death death;
  uint64_t seed;
  int64_t act;
  int64_t recovery;
};

struct Outcome {
  std::string wrong;
  bool died_in_act = false;
  bool died_in_recovery = false;
};

// The prepared machine: everything on it is durable.
void Prepare(const CrashScript& script, const CrashOptions& options, SimMachine* machine) {
  script.prepare(machine->world());
  machine->MakeDurable();
  for (const auto& [call, ordinal] : options.swallowed) {
    machine->Swallow(call, machine->calls(call) + ordinal);
  }
}

Outcome Run(const CrashScript& script, const CrashOptions& options, const Point& point) {
  Outcome outcome;
  SimMachine machine(point.seed);
  Prepare(script, options, &machine);
  if (point.act >= 0) machine.CrashAtMutation(point.act);
  const bool done = script.act(machine.world());
  outcome.died_in_act = machine.crashed();
  const std::string place = machine.crashed_in();
  machine.Restart(point.death, point.seed);
  std::string recovery_place;
  if (point.recovery >= 0) {
    machine.CrashAtMutation(point.recovery);
    script.recover(machine.world());
    outcome.died_in_recovery = machine.crashed();
    recovery_place = machine.crashed_in();
    machine.Restart(point.death, point.seed + 1);
  }
  const std::string wrong = script.verify(machine.world(), done);
  if (wrong.empty()) return outcome;
  outcome.wrong = std::string(point.death == Death::kPower ? "power" : "process") +
                  " death, seed " + std::to_string(point.seed) + ", mutation " +
                  std::to_string(point.act) + " (" + place + ")";
  if (point.recovery >= 0) {
    outcome.wrong += ", then recovery's mutation " + std::to_string(point.recovery) + " (" +
                     recovery_place + ")";
  }
  outcome.wrong += ": " + wrong;
  return outcome;
}

// Every point of death for one kind of death and one seed, the last being after the end.
std::string RunSeed(const CrashScript& script, const CrashOptions& options, Death death,
                    uint64_t seed) {
  for (int64_t act = 0;; ++act) {
    const Outcome outcome = Run(script, options, {death, seed, act, -1});
    if (!outcome.wrong.empty()) return outcome.wrong;
    for (int64_t recovery = 0; script.recover; ++recovery) {
      const Outcome again = Run(script, options, {death, seed, act, recovery});
      if (!again.wrong.empty()) return again.wrong;
      if (!again.died_in_recovery) break;
    }
    if (!outcome.died_in_act) return "";
  }
}

}  // namespace

std::string RunCrashScript(const CrashScript& script, const CrashOptions& options) {
  for (const Death death : options.deaths) {
    for (uint64_t seed = 0; seed < options.seeds; ++seed) {
      const std::string wrong = RunSeed(script, options, death, seed);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

std::vector<std::string> NeedlessCalls(const CrashScript& script,
                                       const std::vector<std::string>& kinds,
                                       const CrashOptions& options) {
  std::vector<std::string> needless;
  for (const std::string& kind : kinds) {
    SimMachine machine;
    Prepare(script, options, &machine);
    const int64_t before = machine.calls(kind);
    WC_CHECK(script.act(machine.world()));
    const int64_t calls = machine.calls(kind) - before;
    for (int64_t ordinal = 0; ordinal < calls; ++ordinal) {
      CrashOptions without = options;
      without.swallowed.emplace_back(kind, ordinal);
      if (RunCrashScript(script, without).empty()) {
        needless.push_back(kind + " " + std::to_string(ordinal));
      }
    }
  }
  return needless;
}

}  // namespace weightcast::os
