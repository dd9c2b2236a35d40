// Decisions of an update round, without I/O, threads or clock: which engine is asked what, and when
// the round is committed. The driver (round.cc) and the tests run the same core.
//
//   RoundCore core(urls, version);
//   auto actions = core.Step(RoundCore::Begin{});
//   ... perform each; feed Answered{...} or Marked{...}; until core.done()
//
// What always holds: nobody is paused before every engine is prepared or left out; no new weights
// are resumed before the round is committed, and none that another coordinator may have written
// before they are proven; an engine that is not surely serving is fenced and has a reason.
// docs/design/round.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "engine/face.h"

namespace weightcast::fleet {

// In the order in which an engine is called; one that was found paused proves what it holds before
// it is prepared, too.
enum class RoundCall : uint8_t {
  kInit,
  kAsk,
  kPrepare,
  kPause,
  kFlush,
  kStart,
  kUpdate,
  kFinish,
  kProve,
  kResume,
};
std::string_view CallName(RoundCall call);  // "init", "status", "prepare", ...

// Where an engine ends, and where it is on the way. The words are those of catalog::RoundEngine.
enum class Place : uint8_t {
  kAsked,     // "preparing"
  kPrepared,  // "prepared"; also if it serves the version already
  kPaused,    // "paused": pause, flush, start, update, finish, prove
  kProven,    // "proven": paused, holds the version
  kRefused,   // "refused": may be paused, holds the old version, resumes when the round is decided
  kServing,   // "serving" the version
  kKept,      // "kept": serves what it served before, with a reason
  kFenced,    // "fenced": nobody vouches for it, or it is left paused; with a reason
};
std::string_view PlaceName(Place place);

// Not safe for threads.
class RoundCore {
 public:
  struct Begin {};
  struct Answered {  // a call
    size_t engine = 0;
    RoundCall call = RoundCall::kInit;
    Status status;
    engine::EngineStatus told;  // of a kAsk that went well
  };
  struct Marked {  // in the catalog
    Status status;
  };
  using Event = std::variant<Begin, Answered, Marked>;

  struct CallEngine {
    size_t engine = 0;
    RoundCall call = RoundCall::kInit;
  };
  // Bring the round's row to `state` with the engines as they are now.
  struct Mark {
    catalog::RoundState state = catalog::RoundState::kPreparing;
  };
  using Action = std::variant<CallEngine, Mark>;

  struct Engine {
    Place place = Place::kAsked;
    bool paused = false;   // perhaps
    bool already = false;  // it served the version before the round
    std::optional<engine::EngineStatus> before;
    // Of one that was found paused: has it proven, before it was prepared, all that it held? Once
    // its image is ahead it cannot.
    std::optional<bool> proven_before;
    // Why it was left out. A kProve that is called then is of all that it held before.
    std::optional<Error> error;

    // It held what it said. Whoever paused it may have written it, too, and died before that was
    // proven.
    bool believed() const {
      return before && before->whole() && (!before->paused || proven_before == true);
    }
  };

  RoundCore(std::vector<std::string> urls, const VersionUid& version)
      : urls_(std::move(urls)), version_(version), engines_(urls_.size()) {}

  // Bounded: an engine is called at most 13 times, the round marked at most three times.
  std::vector<Action> Step(const Event& event);

  bool done() const { return phase_ == Phase::kDone; }
  catalog::RoundState state() const { return state_; }
  const std::vector<Engine>& engines() const { return engines_; }
  std::vector<catalog::RoundEngine> Rows() const;

 private:
  enum class Phase : uint8_t { kPreparing, kApplying, kResuming, kDone };

  void OnAnswer(const Answered& answer);
  void OnOk(const Answered& answer);
  void OnError(const Answered& answer);
  void OnTold(const Answered& answer);
  void OnProofBefore(const Answered& answer);
  void OnToldAfterError(const Answered& answer);
  void OnMark(const Status& status);
  void Advance();
  void Resume();
  void Leave(Engine& engine, Place place, const Error& error);
  void CallNow(size_t engine, RoundCall call) { actions_.push_back(CallEngine{engine, call}); }
  bool Any(Place place) const;

  const std::vector<std::string> urls_;
  const VersionUid version_;
  std::vector<Engine> engines_;
  Phase phase_ = Phase::kPreparing;
  catalog::RoundState state_ = catalog::RoundState::kPreparing;
  std::optional<catalog::RoundState> marking_;  // asked for, and not answered
  std::vector<Action> actions_;                 // of this step
};

}  // namespace weightcast::fleet
