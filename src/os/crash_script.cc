#include "os/crash_script.h"

#include <algorithm>
#include <cstdlib>

namespace weightcast::os {
namespace {

uint64_t TimesMoreSeeds() {
  const char* times = std::getenv("WEIGHTCAST_CRASH_SEEDS");
  return times == nullptr ? 1 : std::max<uint64_t>(1, std::strtoull(times, nullptr, 10));
}

// The prepared machine: everything on it is durable.
std::unique_ptr<SimMachine> Prepare(const CrashScript& script, const CrashOptions& options,
                                    uint64_t seed) {
  auto machine = std::make_unique<SimMachine>(seed);
  script.prepare(machine->world());
  machine->MakeDurable();
  for (const auto& [call, ordinal] : options.swallowed) {
    machine->Swallow(call, machine->calls(call) + ordinal);
  }
  return machine;
}

// A machine that died in act, or came through it.
struct Acted {
  std::unique_ptr<SimMachine> machine;
  bool done = false;

  Acted Clone() const { return {machine->Clone(), done}; }
};

// Where one run dies: in act, and again in recovery (< 0: not there).
struct Point {
  int64_t act;
  Death death;
  uint64_t seed;
  int64_t recovery;
};

class Runner {
 public:
  Runner(const CrashScript& script, const CrashOptions& options)
      : script_(script), options_(options) {}

  // Every point of death, the last one being after the end.
  std::string RunAll() {
    for (int64_t act = 0;; ++act) {
      bool died = false;
      for (const Death death : options_.deaths) {
        for (uint64_t seed = 0; seed < options_.seeds * times_; ++seed) {
          const std::string wrong = RunSeed({act, death, seed, -1}, &died);
          if (!wrong.empty()) return wrong;
        }
      }
      if (!died) return "";
    }
  }

 private:
  Acted Act(std::unique_ptr<SimMachine> machine, int64_t act) {
    machine->CrashAtMutation(act);
    const bool done = script_.act(machine->world());
    return {std::move(machine), done};
  }

  Acted At(const Point& point) {
    if (!script_.machine_only) return Act(Prepare(script_, options_, point.seed), point.act);
    if (!prepared_) prepared_ = Prepare(script_, options_, 0);
    if (acted_at_ != point.act) acted_ = Act(prepared_->Clone(), point.act);
    acted_at_ = point.act;
    return acted_.Clone();
  }

  std::string RunSeed(Point point, bool* died) {
    bool more = false;  // mutations of recovery to die in
    do {
      const Acted acted = At(point);
      *died = *died || acted.machine->crashed();
      const std::string wrong = Verify(point, acted, &more);
      if (!wrong.empty()) return wrong;
      ++point.recovery;
    } while (script_.recover && more);
    return "";
  }

  // "" or what is wrong. Sets `more` unless recovery came through.
  std::string Verify(const Point& point, const Acted& acted, bool* more) {
    SimMachine& machine = *acted.machine;
    std::string place = Place("mutation ", point.act, machine);
    machine.Restart(point.death, point.seed);
    *more = true;
    if (point.recovery >= 0) {
      machine.CrashAtMutation(point.recovery);
      script_.recover(machine.world());
      *more = machine.crashed();
      place += Place(", then recovery's mutation ", point.recovery, machine);
      machine.Restart(point.death, point.seed + 1);
    }
    const std::string wrong = script_.verify(machine.world(), acted.done);
    if (wrong.empty()) return "";
    return std::string(point.death == Death::kPower ? "power" : "process") + " death, seed " +
           std::to_string(point.seed) + ", " + place + ": " + wrong;
  }

  static std::string Place(const char* what, int64_t mutation, const SimMachine& machine) {
    const std::string in = machine.crashed() ? machine.crashed_in() : "after the end";
    return what + std::to_string(mutation) + " (" + in + ")";
  }

  const CrashScript& script_;
  const CrashOptions& options_;
  const uint64_t times_ = TimesMoreSeeds();
  std::unique_ptr<SimMachine> prepared_;  // of a script that is machine_only
  Acted acted_;                           // at the mutation acted_at_
  int64_t acted_at_ = -1;
};

}  // namespace

std::string RunCrashScript(const CrashScript& script, const CrashOptions& options) {
  return Runner(script, options).RunAll();
}

std::vector<std::string> NeedlessCalls(const CrashScript& script,
                                       const std::vector<std::string>& kinds,
                                       const CrashOptions& options) {
  // Of a script that fails anyway every call would look needed.
  const std::string wrong = RunCrashScript(script, options);
  if (!wrong.empty()) return {"all, since the script itself fails: " + wrong};
  std::vector<std::string> needless;
  for (const std::string& kind : kinds) {
    const std::unique_ptr<SimMachine> machine = Prepare(script, options, 0);
    const int64_t before = machine->calls(kind);
    WC_CHECK(script.act(machine->world()));
    const int64_t calls = machine->calls(kind) - before;
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
