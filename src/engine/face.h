// The face of an inference engine: what a coordinator may ask of it, whatever speaks behind it.
//
// The order of calls is enforced, since a mis-ordered sequence can look like success:
//
//   Init → Ask, Prepare … → Pause → Flush → Start → Update → Finish → Prove → Resume
//
// A call out of order is kConflict with the reason and reaches nobody. An engine that Ask finds
// paused (by a coordinator that died) may be resumed. After an error between Pause and Resume the
// face counts as paused and without an open update; only Ask tells what the engine holds. Each call
// ends by its timeout. One thread at a time.
// Errors: as the transport's (kUnavailable, kDeadlineExceeded, kInvalidData), and those of the
// engine itself, with their codes where they are ours.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/proof.h"

namespace weightcast::engine {

// What an engine is told once in its life.
struct InitInfo {
  std::string catalog;  // URL
  std::string run;
  std::string image;  // absolute, on the engine's host
  std::string seed;   // a directory there, or empty
  std::string store;  // URL, or empty: as the versions remember
  int64_t threads = 0;
  bool keep_canonical =
      false;  // on a CPU: linear layers keep their weights as checkpoints lay them
};

enum class EngineState : uint8_t {
  kNew,  // serves what it was started with, no version
  kServing,
  kPreparing,
  kPrepared,
  kUpdating,  // may hold a mix
  kFenced,    // holds what nobody vouches for, until it is sent whole or restarted
};
std::string_view StateName(EngineState state);  // "new", "serving", ...

// Of all workers together.
struct EngineStatus {
  EngineState state = EngineState::kNew;
  std::string incarnation;  // of its workers' lives: another one after a restart
  VersionUid version;       // what it serves; empty: none, or not one for all workers
  int64_t number = -1;
  bool preparing = false;  // some worker; a fenced one says fenced all the while
  VersionUid prepared;     // empty: not on all workers
  std::string reason;      // why fenced, or why the last Prepare failed
  int64_t done = 0;        // bytes of the preparation
  int64_t total = 0;
  bool paused = false;

  // It serves what it served before, with nothing half done.
  bool whole() const { return state <= EngineState::kPrepared; }
};

enum class PauseMode : uint8_t {
  kWait,   // running requests end first
  kAbort,  // running requests end now
  kKeep,   // running requests stand still and go on with the new weights
};

class Face {
 public:
  virtual ~Face() = default;
  virtual const std::string& url() const = 0;

  // Fine if it was told the same before; kConflict if it was told otherwise.
  virtual Status Init(const InitInfo& info, Duration timeout) = 0;
  // Named so because `Status` is the type. In any state.
  virtual Result<EngineStatus> Ask(Duration timeout) = 0;
  // Fetches, verifies and prepares while the engine serves; returns when all workers are prepared.
  virtual Status Prepare(const VersionUid& version, const RoundUid& round, Duration timeout) = 0;
  virtual Status Pause(PauseMode mode, Duration timeout) = 0;
  // Forgets what was computed with the old weights.
  virtual Status Flush(Duration timeout) = 0;
  // Also if an update is open that another coordinator has begun, and died: that one fails.
  virtual Status Start(Duration timeout) = 0;
  // Requires: `version` was prepared.
  virtual Status Update(const VersionUid& version, const RoundUid& round, Duration timeout) = 0;
  virtual Status Finish(int64_t number, Duration timeout) = 0;
  // Digests of what the workers hold now, not of what was sent; not while an update is open.
  virtual Result<std::vector<WorkerProof>> Prove(ProofScope scope, Duration timeout) = 0;
  // Says to whoever asks the engine that it serves `number`: an update that nobody finished did
  // not.
  virtual Status Label(int64_t number, Duration timeout) = 0;
  virtual Status Resume(Duration timeout) = 0;
};

}  // namespace weightcast::engine
