// The file system of a simulated machine, and what it shares with SimMachine: the disk, the crash
// point, the faults, the time. Private to the simulator.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "os/sim_disk.h"
#include "os/world.h"

namespace weightcast::os {

class SimClock final : public Clock {
 public:
  SimClock() = default;
  SimClock(SimClock& other) : now_(other.Advance(Duration::zero())) {}
  SteadyTime Now() override;
  int64_t UnixMillis() override;
  void SleepFor(Duration d) override;

 private:
  Duration Advance(Duration d);

  Mutex mu_;
  Duration now_ WC_GUARDED_BY(mu_) = seconds(1000);
};

class SimRandom final : public Random {
 public:
  explicit SimRandom(uint64_t seed) : source_(seed) {}
  SimRandom(SimRandom& other) : source_(other.Source()) {}
  void Fill(MutableByteSpan out) override;

 private:
  std::mt19937_64 Source();

  Mutex mu_;
  std::mt19937_64 source_ WC_GUARDED_BY(mu_);
};

// The data mutation in which the process died.
struct TornWrite {
  SimInodePtr file;
  int64_t offset = 0;
  Bytes bytes;
};

struct SimState {
  explicit SimState(uint64_t seed) : random(seed) {}
  // A state of its own with equal content.
  SimState(SimState& other);

  SimClock clock;
  SimRandom random;

  Mutex mu;
  SimDisk disk WC_GUARDED_BY(mu);
  int64_t life WC_GUARDED_BY(mu) = 0;  // counts processes
  bool crashed WC_GUARDED_BY(mu) = false;
  std::string crashed_in WC_GUARDED_BY(mu);
  std::optional<TornWrite> torn WC_GUARDED_BY(mu);
  int64_t mutations WC_GUARDED_BY(mu) = 0;
  int64_t crash_at WC_GUARDED_BY(mu) = -1;
  std::map<std::string, int64_t> calls WC_GUARDED_BY(mu);
  std::set<std::pair<std::string, int64_t>> swallowed WC_GUARDED_BY(mu);
  int64_t space WC_GUARDED_BY(mu) = -1;  // used and free; < 0: unlimited
  bool read_only WC_GUARDED_BY(mu) = false;
  FsKind kind WC_GUARDED_BY(mu) = FsKind::kDisk;

  // Whether a mutation happens (false: it is swallowed). Errors: the process dies in it or is dead,
  // or the disk is read-only.
  Result<bool> Mutate(const std::string& call, const std::string& path) WC_REQUIRES(mu);
  Status Alive(const std::string& path, int64_t of_life) const WC_REQUIRES(mu);
  Status Alive(const std::string& path) const WC_REQUIRES(mu) { return Alive(path, life); }
  // How far a write of [begin, end) gets before the disk is full.
  int64_t Fits(const SimInode& file, int64_t begin, int64_t end) const WC_REQUIRES(mu);
};

class SimFs final : public Fs {
 public:
  explicit SimFs(std::shared_ptr<SimState> state) : state_(std::move(state)) {}

  Result<std::unique_ptr<File>> OpenFile(const std::string& path, Open mode) override;
  Result<Stat> StatPath(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status MakeDirectories(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Exchange(const std::string& a, const std::string& b) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Remove(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Result<int64_t> FreeBytes(const std::string& path) override;
  Result<FsKind> Kind(const std::string& path) override;
  Result<std::string> Absolute(const std::string& path) override;

 private:
  const std::shared_ptr<SimState> state_;
};

}  // namespace weightcast::os
