#include "fleet/round_core.h"

#include <algorithm>
#include <array>

#include "engine/http.h"

namespace weightcast::fleet {
namespace {

using catalog::RoundState;

constexpr std::array<std::string_view, 10> kCalls = {
    "init", "status", "prepare", "pause", "flush", "start", "update", "finish", "prove", "resume"};
constexpr std::array<std::string_view, 8> kPlaces = {"preparing", "prepared", "paused", "proven",
                                                     "refused",   "serving",  "kept",   "fenced"};

RoundCall After(RoundCall call) { return static_cast<RoundCall>(static_cast<int>(call) + 1); }

// Whether an engine that failed says that it still holds, whole, what it held before. One that has
// restarted does not: nobody knows what it came up with.
bool ServesAsBefore(const engine::EngineStatus& now,
                    const std::optional<engine::EngineStatus>& before) {
  if (!now.whole()) return false;
  return !before || (before->whole() && now.incarnation == before->incarnation &&
                     now.version == before->version);
}

}  // namespace

std::string_view CallName(RoundCall call) { return kCalls[static_cast<size_t>(call)]; }
std::string_view PlaceName(Place place) { return kPlaces[static_cast<size_t>(place)]; }

std::vector<RoundCore::Action> RoundCore::Step(const Event& event) {
  actions_.clear();
  if (std::holds_alternative<Begin>(event)) {
    for (size_t i = 0; i < engines_.size(); ++i) CallNow(i, RoundCall::kInit);
  } else if (const auto* answer = std::get_if<Answered>(&event)) {
    OnAnswer(*answer);
  } else {
    OnMark(std::get<Marked>(event).status);
  }
  Advance();
  return std::move(actions_);
}

void RoundCore::OnAnswer(const Answered& answer) {
  const Engine& engine = engines_[answer.engine];
  if (answer.call == RoundCall::kProve && engine.place == Place::kAsked && !engine.error) {
    OnProofBefore(answer);
  } else if (!answer.status.ok()) {
    OnError(answer);
  } else if (answer.call == RoundCall::kAsk) {
    OnTold(answer);
  } else {
    OnOk(answer);
  }
}

void RoundCore::OnOk(const Answered& answer) {
  Engine& engine = engines_[answer.engine];
  switch (answer.call) {
    case RoundCall::kPrepare:
      engine.place = Place::kPrepared;
      return;
    case RoundCall::kProve:
      engine.place = engine.error ? Place::kRefused : Place::kProven;
      return;
    case RoundCall::kResume:
      engine.paused = false;
      engine.place = engine.place == Place::kProven ? Place::kServing : Place::kKept;
      return;
    case RoundCall::kPause:
      CallNow(answer.engine, engine.already ? RoundCall::kProve : RoundCall::kFlush);
      return;
    default:
      CallNow(answer.engine, After(answer.call));
  }
}

void RoundCore::OnError(const Answered& answer) {
  Engine& engine = engines_[answer.engine];
  const Error error = answer.status.error().With(CallName(answer.call));
  switch (answer.call) {
    case RoundCall::kAsk:     // nobody knows what it holds
    case RoundCall::kProve:   // it holds something else, or nobody knows
    case RoundCall::kResume:  // it is paused, or nobody knows
      Leave(engine, Place::kFenced, error);
      return;
    default:
      engine.error = error;
      CallNow(answer.engine, RoundCall::kAsk);
  }
}

// At first, to know it; after an error, to know what became of it.
void RoundCore::OnTold(const Answered& answer) {
  Engine& engine = engines_[answer.engine];
  engine.paused = engine.paused || answer.told.paused;
  if (engine.error) return OnToldAfterError(answer);
  engine.before = answer.told;
  engine.already = answer.told.whole() && answer.told.version == version_;
  const bool may_prove = answer.told.whole() && !answer.told.version.empty() && !engine.already;
  if (answer.told.paused && may_prove && !engine.proven_before.has_value()) {
    return CallNow(answer.engine, RoundCall::kProve);
  }
  // Also then: somebody may have moved its image, without which it proves nothing.
  CallNow(answer.engine, RoundCall::kPrepare);
}

// A failed one ends nothing: most fail since the image is ahead already, and an update heals what
// holds something else. But it may have fenced the engine.
void RoundCore::OnProofBefore(const Answered& answer) {
  const bool proven = answer.status.ok();
  engines_[answer.engine].proven_before = proven;
  CallNow(answer.engine, proven ? RoundCall::kPrepare : RoundCall::kAsk);
}

void RoundCore::OnToldAfterError(const Answered& answer) {
  Engine& engine = engines_[answer.engine];
  const bool serves = ServesAsBefore(answer.told, engine.before);
  if (!engine.before) engine.before = answer.told;
  if (!serves) {
    const std::string& reason = answer.told.reason;
    return Leave(engine, Place::kFenced,
                 reason.empty()
                     ? *engine.error
                     : Error{engine.error->code, engine.error->message + "; it says: " + reason});
  }
  if (!engine.believed()) return CallNow(answer.engine, RoundCall::kProve);
  engine.place = engine.paused ? Place::kRefused : Place::kKept;
}

void RoundCore::OnMark(const Status& status) {
  const RoundState wanted = *marking_;
  marking_.reset();
  if (phase_ == Phase::kResuming) {  // the last word: the engines are as they are
    phase_ = Phase::kDone;
    return;
  }
  if (status.ok()) {
    state_ = wanted;
    if (wanted == RoundState::kCommitted) return Resume();
    phase_ = Phase::kApplying;
    for (size_t i = 0; i < engines_.size(); ++i) {
      if (engines_[i].place != Place::kPrepared) continue;
      engines_[i].place = Place::kPaused;
      engines_[i].paused = true;
      CallNow(i, RoundCall::kPause);
    }
    return;
  }
  // The row is another coordinator's, or out of reach. What is not paused yet serves on; what holds
  // new weights must not be resumed with them, nor what was found paused with those that it holds.
  const Error error = status.error().With("the round cannot be " + std::string(StateName(wanted)));
  for (Engine& engine : engines_) {
    if (engine.place == Place::kPrepared) {
      Leave(engine, engine.paused ? Place::kFenced : Place::kKept, error);
    }
    if (engine.place == Place::kProven) Leave(engine, Place::kFenced, error);
  }
  state_ = RoundState::kFailed;
  Resume();
}

void RoundCore::Advance() {
  if (marking_ || phase_ == Phase::kDone) return;
  const auto mark = [&](RoundState state) {
    marking_ = state;
    actions_.emplace_back(Mark{state});
  };
  if (phase_ == Phase::kPreparing && !Any(Place::kAsked)) {
    if (Any(Place::kPrepared)) return mark(RoundState::kApplying);
    state_ = RoundState::kFailed;
    Resume();
  }
  if (phase_ == Phase::kApplying && !Any(Place::kPaused)) {
    if (Any(Place::kProven)) return mark(RoundState::kCommitted);
    state_ = RoundState::kFailed;
    Resume();
  }
  // The row keeps how each engine ended.
  if (phase_ == Phase::kResuming && !Any(Place::kProven) && !Any(Place::kRefused)) mark(state_);
}

void RoundCore::Resume() {
  phase_ = Phase::kResuming;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const Place place = engines_[i].place;
    if (place == Place::kProven || place == Place::kRefused) CallNow(i, RoundCall::kResume);
  }
}

void RoundCore::Leave(Engine& engine, Place place, const Error& error) {
  engine.place = place;
  // The first error is the cause.
  engine.error = engine.error && engine.error->message != error.message &&
                         !error.message.starts_with(engine.error->message)
                     ? Error{engine.error->code, engine.error->message + "; " + error.message}
                     : error;
}

bool RoundCore::Any(Place place) const {
  return std::ranges::any_of(engines_, [&](const Engine& e) { return e.place == place; });
}

std::vector<catalog::RoundEngine> RoundCore::Rows() const {
  std::vector<catalog::RoundEngine> rows;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const Engine& engine = engines_[i];
    const bool proven = engine.place == Place::kProven || engine.place == Place::kServing;
    catalog::RoundEngine row;
    row.url = urls_[i];
    row.state = PlaceName(engine.place);
    if (engine.before) row.incarnation = engine.before->incarnation;
    if (proven) {
      row.version = version_;
    } else if (engine.before && engine.place != Place::kFenced) {
      row.version = engine.before->version;
    }
    row.proven = proven;
    if (engine.error) row.reason = engine::OneLine(engine.error->message);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace weightcast::fleet
