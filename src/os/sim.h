// A machine in memory that can die: at a chosen mutation, and with a seeded choice of what had
// reached the disk. The crash tests of trainer and agent run the production code on it.
//
//   for (uint64_t seed = 0; seed < 64; ++seed)
//     for (int n = 0;; ++n) {
//       SimMachine machine = ...;                  // with an image on it
//       machine.CrashAtMutation(n);
//       bool done = Apply(machine.world(), ...).ok();
//       machine.Restart(Death::kPower, seed);      // unsynced writes survive or not
//       ... recover; expect old or new ...
//       if (done) break;
//     }
//
// Model. Data of a file: 4 KiB pages; a page that was written since the last Sync() of its file
// holds, after a power loss, its synced or its latest content, by the seed's choice, page by page.
// File size: synced or latest. Names: the operations on one directory since its last
// SyncDirectory() survive as a prefix, its length by the seed's choice (Rename across two
// directories and Exchange survive or not as a whole). After the death of the process only, all
// mutations before the crash survive. The mutation in which it died survives by a seeded subset of
// its pages (data) or not at all (names, sizes, syncs). Locks die with the process. What survived
// the death of a process only is still unsynced: a later loss of power may take it. After the crash
// point every call fails with kUnavailable "crashed", and so do the Files and Mappings of the old
// life after Restart().
//
// Mutations are the calls that change something, by these names: Create (a new file), Write,
// Update, Allocate, Truncate, Sync, SyncDirectory, MakeDirectory (each level), Rename, Exchange,
// Link, Remove.
//
// Time is simulated: it moves by SleepFor, by waiting for a lock, and a microsecond with each look,
// so that every deadline passes. Random bytes come from the machine's seed.
// docs/design/crash_model.md
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "os/world.h"

namespace weightcast::os {

enum class Death : uint8_t { kProcess, kPower };

class SimMachine {
 public:
  // Machines that meet need different seeds: ids come from them.
  explicit SimMachine(uint64_t seed = 0);
  ~SimMachine();
  SimMachine(const SimMachine&) = delete;
  SimMachine& operator=(const SimMachine&) = delete;

  // Another machine in the same state, dead or alive; Files and Mappings stay with this one.
  std::unique_ptr<SimMachine> Clone() const;

  World& world();

  // The n-th mutation from now (0 = the next) does not complete: the process dies in it.
  void CrashAtMutation(int64_t n);
  bool crashed() const;
  // The mutation in which it died, as "Rename /a"; for messages.
  std::string crashed_in() const;
  int64_t mutations() const;  // since the last Restart

  // Back to life with what survived; Death::kPower also changes the boot id.
  void Restart(Death death, uint64_t seed);

  // Syncs everything at once, without a mutation: for the state that a test starts from.
  void MakeDurable();

  // The call of this name (see above) and ordinal (counted over the machine's life by name, from 0)
  // is swallowed: it answers ok and does nothing. For proving that each one is needed.
  void Swallow(const std::string& call, int64_t ordinal);
  // How many calls of that kind happened, to know which ordinals exist.
  int64_t calls(const std::string& call) const;

  // Space left; writes beyond it fail with kResourceExhausted. < 0: unlimited (default).
  void SetFreeBytes(int64_t bytes);
  void SetReadOnly(bool read_only);
  void SetKind(FsKind kind);  // what Fs::Kind answers

 private:
  struct Parts;
  explicit SimMachine(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace weightcast::os
