// Every order of events for two engines, with a failure at each step of each, and of the catalog.
#include "fleet/round_core.h"

#include <gmock/gmock.h>

#include <set>

namespace weightcast::fleet {
namespace {

using catalog::RoundState;
using engine::EngineState;
using testing::AllOf;
using testing::HasSubstr;

const VersionUid kOld = VersionUid{{1}};
const VersionUid kNew = VersionUid{{2}};
const VersionUid kOther = VersionUid{{3}};

// What became of an engine whose call failed.
enum class After { kWhole, kFenced, kGone, kRestarted, kMoved };
constexpr const char* kAfter[] = {"whole", "fenced", "gone", "restarted", "moved by another"};

struct Script {
  std::string name;
  std::optional<RoundCall> fails;
  After after = After::kWhole;
  bool already = false;  // at the version
  bool paused = false;   // left behind so
  bool mix = false;      // and holds what it only claims to
  bool ahead = false;    // and its image is at the version already
  bool fenced = false;   // at first; an update heals it
};

// An engine as it really is, which the core does not see.
struct Truth {
  const Script* script = nullptr;
  VersionUid weights = kOld;  // empty: a mix
  VersionUid claims = kOld;
  VersionUid image = kOld;
  bool paused = false;
  bool gone = false;
  bool fenced = false;
  bool restarted = false;

  RoundCore::Answered Answer(size_t engine, RoundCall call) {
    RoundCore::Answered answer{engine, call, Ok(), {}};
    const auto fail = [&](Code code) { answer.status = Error{code, "planted"}; };
    if (gone) {
      fail(Code::kUnavailable);
    } else if (call == script->fails) {
      fail(Code::kConflict);
      Fail(call);
    } else if (call == RoundCall::kAsk) {
      answer.told.state = fenced ? EngineState::kFenced : EngineState::kServing;
      answer.told.version = claims;
      answer.told.incarnation = restarted ? "second" : "first";
      answer.told.paused = paused;
    } else if (call == RoundCall::kPrepare) {
      image = kNew;
    } else if (call == RoundCall::kPause) {
      paused = true;
    } else if (call == RoundCall::kProve && image != claims) {
      fail(Code::kConflict);
    } else if (call == RoundCall::kProve && weights != claims) {
      fail(Code::kDataLoss);
    } else if (call == RoundCall::kFinish) {
      weights = claims = kNew;
      fenced = false;
    } else if (call == RoundCall::kResume) {
      paused = false;
    }
    return answer;
  }

  void Fail(RoundCall call) {
    if (call == RoundCall::kPause) paused = true;  // the answer was lost
    if (call == RoundCall::kProve) weights = {};
    switch (script->after) {
      case After::kWhole:
        return;
      case After::kFenced:
        weights = {};
        fenced = true;
        return;
      case After::kGone:
        weights = {};
        gone = true;
        return;
      case After::kRestarted:
        restarted = true;
        paused = false;
        return;
      case After::kMoved:
        weights = claims = kOther;
    }
  }
};

std::vector<Script> AllScripts() {
  std::vector<Script> scripts = {{.name = "well"},
                                 {.name = "already", .already = true},
                                 {.name = "left paused", .paused = true},
                                 {.name = "left paused, a mix", .paused = true, .mix = true},
                                 {.name = "left paused, ahead", .paused = true, .ahead = true},
                                 {.name = "healed", .fenced = true}};
  for (int call = 0; call <= static_cast<int>(RoundCall::kResume); ++call) {
    for (int after = 0; after < static_cast<int>(std::size(kAfter)); ++after) {
      const auto fails = static_cast<RoundCall>(call);
      const bool asked = fails != RoundCall::kAsk && fails != RoundCall::kProve &&
                         fails != RoundCall::kResume;  // the others end it at once
      if (!asked && after > 0) continue;
      // Before the first question nobody knows what it was before, and nobody has touched it.
      if (fails == RoundCall::kInit && after > 2) continue;
      Script script;
      script.name = std::string(CallName(fails)) + " fails, " + kAfter[after];
      script.fails = fails;
      script.after = static_cast<After>(after);
      scripts.push_back(script);
      script.name += ", left paused";
      script.paused = true;
      if (asked) scripts.push_back(script);
      Script mix = script;
      mix.name += ", a mix";
      mix.mix = true;
      if (asked) scripts.push_back(mix);
      Script ahead = script;
      ahead.name += ", ahead";
      ahead.ahead = true;
      if (asked) scripts.push_back(ahead);
      script.name += ", already";
      script.already = true;
      if (fails <= RoundCall::kPause || !asked) scripts.push_back(script);
    }
  }
  return scripts;
}

class World {
 public:
  World(const Script& a, const Script& b, std::optional<RoundState> mark_fails)
      : core_({"a", "b"}, kNew), mark_fails_(mark_fails) {
    const Script* scripts[] = {&a, &b};
    for (size_t i : {0u, 1u}) {
      truth_[i].script = scripts[i];
      truth_[i].paused = scripts[i]->paused;
      truth_[i].fenced = scripts[i]->fenced;
      if (scripts[i]->already) truth_[i].weights = truth_[i].claims = truth_[i].image = kNew;
      if (scripts[i]->ahead) truth_[i].image = kNew;
      if (scripts[i]->mix) truth_[i].weights = {};
    }
    Take(core_.Step(RoundCore::Begin{}));
  }

  size_t choices() const { return pending_.size(); }

  void Choose(size_t n) {
    const RoundCore::Action action = pending_[n];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(n));
    if (const auto* mark = std::get_if<RoundCore::Mark>(&action)) {
      const bool fails = mark_fails_ == mark->state;
      if (!fails) marked_ = mark->state;
      Take(core_.Step(RoundCore::Marked{fails ? Status(Error{Code::kAborted, "taken"}) : Ok()}));
      return;
    }
    const auto [engine, call] = std::get<RoundCore::CallEngine>(action);
    Take(core_.Step(truth_[engine].Answer(engine, call)));
  }

  // Everything that decides what comes next.
  std::string Key() const {
    std::string key =
        std::to_string(static_cast<int>(marked_)) + std::to_string(static_cast<int>(core_.state()));
    for (size_t i : {0u, 1u}) {
      const RoundCore::Engine& engine = core_.engines()[i];
      const Truth& t = truth_[i];
      for (const bool bit :
           {engine.paused, engine.already, engine.error.has_value(), engine.before.has_value(),
            t.paused, t.gone, t.fenced, t.restarted, t.weights == kOld, t.weights == kNew,
            t.claims == kNew, t.image == kNew, engine.proven_before.has_value(),
            engine.believed()}) {
        key += bit ? '1' : '0';
      }
      key += PlaceName(engine.place);
    }
    std::vector<std::string> pending;
    for (const auto& action : pending_) {
      const auto* call = std::get_if<RoundCore::CallEngine>(&action);
      pending.push_back(call == nullptr
                            ? "mark"
                            : std::to_string(call->engine) + std::string(CallName(call->call)));
    }
    std::ranges::sort(pending);
    for (const std::string& p : pending) key += " " + p;
    return key;
  }

  void CheckEnd() const {
    EXPECT_TRUE(core_.done());
    bool serving = false;
    for (size_t i : {0u, 1u}) {
      const RoundCore::Engine& engine = core_.engines()[i];
      const Truth& t = truth_[i];
      const catalog::RoundEngine row = core_.Rows()[i];
      EXPECT_EQ(row.reason.empty(), engine.place == Place::kServing);
      switch (engine.place) {
        case Place::kServing:
          serving = true;
          EXPECT_EQ(marked_, RoundState::kCommitted);
          EXPECT_EQ(t.weights, kNew);
          EXPECT_FALSE(t.paused) << "left paused in silence";
          EXPECT_TRUE(row.proven);
          EXPECT_EQ(row.version, kNew);
          break;
        case Place::kKept:
          EXPECT_EQ(t.weights, t.script->already ? kNew : kOld);
          EXPECT_FALSE(t.paused) << "left paused in silence";
          EXPECT_FALSE(row.proven);
          break;
        case Place::kFenced:
          EXPECT_EQ(row.version, VersionUid{});
          break;
        default:
          ADD_FAILURE() << "ended as " << PlaceName(engine.place);
      }
      // One engine's fault is not another's.
      if (!mark_fails_) {
        EXPECT_EQ(engine.place == Place::kServing, !t.script->fails);
      }
      if (t.script->fails && !mark_fails_) {
        const bool asked =
            t.script->fails != RoundCall::kAsk && t.script->fails < RoundCall::kProve;
        const bool can_prove = !t.script->mix && !t.script->ahead;
        EXPECT_EQ(engine.place, asked && t.script->after == After::kWhole && can_prove
                                    ? Place::kKept
                                    : Place::kFenced);
      }
    }
    EXPECT_FALSE(serving && (mark_fails_ || core_.state() != RoundState::kCommitted));
  }

 private:
  void Take(const std::vector<RoundCore::Action>& actions) {
    for (const auto& action : actions) {
      if (const auto* mark = std::get_if<RoundCore::Mark>(&action)) CheckMark(mark->state);
      if (const auto* call = std::get_if<RoundCore::CallEngine>(&action)) CheckCall(*call);
      pending_.push_back(action);
    }
  }

  void CheckMark(RoundState state) const {
    if (state != RoundState::kCommitted) return;
    for (const auto& row : core_.Rows()) EXPECT_TRUE(row.proven || !row.reason.empty());
  }

  void CheckCall(const RoundCore::CallEngine& action) const {
    const Script& script = *truth_[action.engine].script;
    EXPECT_FALSE(core_.engines()[action.engine].believed() && (script.mix || script.ahead));
    for (const auto& pending : pending_) {
      const auto* call = std::get_if<RoundCore::CallEngine>(&pending);
      EXPECT_FALSE(call != nullptr && call->engine == action.engine) << "two calls at a time";
    }
    if (action.call == RoundCall::kPause) {
      EXPECT_EQ(marked_, RoundState::kApplying);
      for (const auto& engine : core_.engines()) {
        EXPECT_NE(engine.place, Place::kAsked) << "paused before all are prepared";
      }
    }
    if (action.call > RoundCall::kPause && action.call < RoundCall::kProve) {
      EXPECT_FALSE(truth_[action.engine].script->already) << "nothing is to be done";
    }
    if (action.call == RoundCall::kResume) {
      const bool committed = marked_ == RoundState::kCommitted;
      EXPECT_TRUE(committed || core_.state() == RoundState::kFailed);
      const Truth& t = truth_[action.engine];
      EXPECT_TRUE(committed || t.script->already || t.weights == kOld);
      EXPECT_NE(t.weights, VersionUid{}) << "a mix is resumed";
    }
  }

  RoundCore core_;
  const std::optional<RoundState> mark_fails_;
  Truth truth_[2];
  RoundState marked_ = RoundState::kPreparing;
  std::vector<RoundCore::Action> pending_;
};

// All orders of answers; states that were seen before are not entered again.
void Explore(const World& world, std::set<std::string>* seen) {
  if (world.choices() == 0) return world.CheckEnd();
  for (size_t n = 0; n < world.choices(); ++n) {
    World next = world;
    next.Choose(n);
    if (seen->insert(next.Key()).second) Explore(next, seen);
  }
}

TEST(RoundCore, EveryOrderAndEveryFailureOfTwoEngines) {
  const std::vector<Script> scripts = AllScripts();
  size_t states = 0;
  for (size_t a = 0; a < scripts.size(); ++a) {
    for (size_t b = a; b < scripts.size(); ++b) {
      for (const auto mark_fails :
           {std::optional<RoundState>(), std::optional(RoundState::kApplying),
            std::optional(RoundState::kCommitted)}) {
        SCOPED_TRACE(scripts[a].name + " | " + scripts[b].name + " | " +
                     (mark_fails ? std::string(StateName(*mark_fails)) : "marks well"));
        std::set<std::string> seen;
        Explore(World(scripts[a], scripts[b], mark_fails), &seen);
        states += seen.size();
        if (testing::Test::HasFailure()) return;  // one case is enough to read
      }
    }
  }
  EXPECT_GT(states, 50'000u);
}

TEST(RoundCore, TheReasonTellsTheCauseAndWhatCameOfIt) {
  RoundCore core({"a"}, kNew);
  core.Step(RoundCore::Begin{});
  core.Step(RoundCore::Answered{0, RoundCall::kInit, Ok(), {}});
  engine::EngineStatus told;
  told.state = EngineState::kServing;
  told.version = kOld;
  core.Step(RoundCore::Answered{0, RoundCall::kAsk, Ok(), told});
  core.Step(RoundCore::Answered{0, RoundCall::kPrepare, Error{Code::kDataLoss, "part 3"}, {}});
  told.state = EngineState::kFenced;
  told.reason = "a\nmix";
  core.Step(RoundCore::Answered{0, RoundCall::kAsk, Ok(), told});
  EXPECT_EQ(core.Rows()[0].state, "fenced");
  EXPECT_EQ(core.Rows()[0].reason, "prepare: part 3; it says: a mix");
  EXPECT_EQ(core.engines()[0].error->code, Code::kDataLoss);
  EXPECT_EQ(core.state(), RoundState::kFailed);
}

}  // namespace
}  // namespace weightcast::fleet
