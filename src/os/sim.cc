#include "os/sim.h"

#include <algorithm>
#include <array>

#include "os/sim_fs.h"

namespace weightcast::os {
namespace {

constexpr std::array<std::string_view, 12> kCalls = {
    "Create",        "Write",         "Update", "Allocate", "Truncate", "Sync",
    "SyncDirectory", "MakeDirectory", "Rename", "Exchange", "Link",     "Remove"};

// A misspelled name would swallow nothing and prove nothing.
void CheckCall(const std::string& call) {
  WC_CHECK(std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end());
}

// Of the write in which the process died, some pages had been taken over.
void Tear(const TornWrite& torn, std::mt19937_64& random) {
  const uint64_t quarters_taken = random() % 5;
  const int64_t end = torn.offset + static_cast<int64_t>(torn.bytes.size());
  for (int64_t at = torn.offset; at < end;) {
    const int64_t next = std::min(end, (at / kSimPage + 1) * kSimPage);
    if (random() % 4 < quarters_taken) {
      SimDisk::Write(
          *torn.file, at,
          ByteSpan(torn.bytes)
              .subspan(static_cast<size_t>(at - torn.offset), static_cast<size_t>(next - at)));
    }
    at = next;
  }
}

std::string BootId(int64_t boots) { return "boot-" + std::to_string(boots); }

}  // namespace

struct SimMachine::Parts {
  Parts(std::shared_ptr<SimState> with, int64_t boots_so_far)
      : state(std::move(with)),
        fs(state),
        world{fs, state->clock, state->random, BootId(boots_so_far)},
        boots(boots_so_far) {}

  std::shared_ptr<SimState> state;  // Files and Mappings share it and may outlive the machine
  SimFs fs;
  World world;
  int64_t boots;
};

SimMachine::SimMachine(uint64_t seed)
    : parts_(std::make_unique<Parts>(std::make_shared<SimState>(seed), 0)) {}
SimMachine::SimMachine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
SimMachine::~SimMachine() = default;

std::unique_ptr<SimMachine> SimMachine::Clone() const {
  auto parts = std::make_unique<Parts>(std::make_shared<SimState>(*parts_->state), parts_->boots);
  return std::unique_ptr<SimMachine>(new SimMachine(std::move(parts)));
}

World& SimMachine::world() { return parts_->world; }

void SimMachine::CrashAtMutation(int64_t n) {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.crash_at = state.mutations + n;
}

bool SimMachine::crashed() const {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  return state.crashed;
}

std::string SimMachine::crashed_in() const {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  return state.crashed_in;
}

int64_t SimMachine::mutations() const {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  return state.mutations;
}

void SimMachine::Restart(Death death, uint64_t seed) {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  // One seed meets another choice at every point of death.
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(state.mutations));
  if (state.torn) Tear(*state.torn, random);
  if (death == Death::kPower) {
    state.disk.LosePower(random);
    parts_->world.boot_id = BootId(++parts_->boots);
  }
  ++state.life;
  state.crashed = false;
  state.crashed_in.clear();
  state.torn.reset();
  state.mutations = 0;
  state.crash_at = -1;
}

void SimMachine::MakeDurable() {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.disk.SyncAll();
}

void SimMachine::Swallow(const std::string& call, int64_t ordinal) {
  CheckCall(call);
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.swallowed.insert({call, ordinal});
}

int64_t SimMachine::calls(const std::string& call) const {
  CheckCall(call);
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  const auto found = state.calls.find(call);
  return found == state.calls.end() ? 0 : found->second;
}

void SimMachine::SetFreeBytes(int64_t bytes) {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.space = bytes < 0 ? -1 : state.disk.Used() + bytes;
}

void SimMachine::SetReadOnly(bool read_only) {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.read_only = read_only;
}

void SimMachine::SetKind(FsKind kind) {
  SimState& state = *parts_->state;
  MutexLock lock(state.mu);
  state.kind = kind;
}

}  // namespace weightcast::os
