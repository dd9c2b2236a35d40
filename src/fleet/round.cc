#include "fleet/round.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "fleet/round_core.h"

namespace weightcast::fleet {
namespace {

using catalog::RoundState;

constexpr int kThreadsMax = 256;  // calls at a time; each is one that waits for an engine
constexpr Duration kAskCatalogAgain = milliseconds(200);

using Digests = std::vector<tensor::TensorDigest>;

// Digests of versions, each read from the catalog once. Any thread.
class KnownDigests {
 public:
  explicit KnownDigests(catalog::Catalog& catalog) : catalog_(catalog) {}

  Result<std::shared_ptr<const Digests>> Of(const VersionUid& version) {
    if (version.empty()) return Error{Code::kNotFound, "no version"};
    MutexLock lock(mu_);
    const auto known = known_.find(version);
    if (known != known_.end()) return known->second;
    auto digests = std::make_shared<const Digests>(WC_TRY(catalog_.GetDigests(version)));
    known_.emplace(version, digests);
    return digests;
  }

 private:
  catalog::Catalog& catalog_;
  Mutex mu_;  // also while it reads: the engines of a fleet ask for the same
  std::map<VersionUid, std::shared_ptr<const Digests>> known_ WC_GUARDED_BY(mu_);
};

// A round that has begun, and what its proofs are compared with.
struct Begun {
  catalog::Round round;
  std::shared_ptr<const tensor::Inventory> inventory;
  KnownDigests& digests;
};

// What an engine must prove: that it holds `version`, having moved there from `since`.
struct Proven {
  VersionUid version;
  VersionUid since;  // empty: nobody knows
};

// Tensors that an engine must prove after it moved from `old` to `digests`: those that differ; all
// if nobody knows where it came from.
std::pair<engine::ProofScope, std::vector<int32_t>> Wanted(const Digests* old,
                                                           const Digests& digests) {
  std::vector<int32_t> all(digests.size());
  std::iota(all.begin(), all.end(), 0);
  if (old == nullptr || old->size() != digests.size()) return {engine::ProofScope::kAll, all};
  std::erase_if(all, [&](int32_t t) {
    const auto i = static_cast<size_t>(t);
    return (*old)[i] == digests[i];
  });
  return {engine::ProofScope::kTouched, all};
}

// Events from calls, in the order of their arrival.
class Mailbox {
 public:
  void Put(RoundCore::Event event) {
    MutexLock lock(mu_);
    events_.push_back(std::move(event));
    arrived_.NotifyOne();
  }
  // Nothing if none arrives in `timeout`.
  std::optional<RoundCore::Event> Take(Duration timeout) {
    MutexLock lock(mu_);
    if (events_.empty() && !arrived_.WaitFor(mu_, timeout)) return std::nullopt;
    if (events_.empty()) return std::nullopt;  // woken for nothing
    RoundCore::Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  Mutex mu_;
  CondVar arrived_;
  std::deque<RoundCore::Event> events_ WC_GUARDED_BY(mu_);
};

class Driver {
 public:
  Driver(os::World& world, catalog::Catalog& catalog, const catalog::Version& version,
         const std::vector<std::unique_ptr<engine::Face>>& faces, const RoundOptions& options,
         Begun begun)
      : world_(world),
        catalog_(catalog),
        version_(version),
        faces_(faces),
        options_(options),
        begun_(std::move(begun)),
        core_(Urls(faces), version.uid),
        paused_since_(faces.size()),
        renew_at_(world.clock.Now() + options.lease / 4),
        pool_(static_cast<int>(std::min<size_t>(faces.size(), kThreadsMax))) {
    report_.round = begun_.round;
    report_.engines.resize(faces.size());
  }

  static std::vector<std::string> Urls(const std::vector<std::unique_ptr<engine::Face>>& faces) {
    std::vector<std::string> urls;
    for (const auto& face : faces) urls.push_back(face->url());
    return urls;
  }

  RoundReport Run() {
    const SteadyTime begin = world_.clock.Now();
    RoundCore::Event event = RoundCore::Begin{};
    while (!core_.done()) {
      for (const RoundCore::Action& action : core_.Step(event)) Do(action);
      if (!core_.done()) event = Next();
    }
    report_.round.state = core_.state();
    report_.round.engines = core_.Rows();
    for (size_t i = 0; i < faces_.size(); ++i) {
      report_.engines[i].error = core_.engines()[i].error;
      if (core_.engines()[i].paused) EndPause(i);
    }
    report_.seconds = ToSeconds(world_.clock.Now() - begin);
    return std::move(report_);
  }

 private:
  RoundCore::Event Next() {
    for (;;) {
      const Duration left = renew_at_ - world_.clock.Now();
      if (auto event = mailbox_.Take(std::max(left, Duration::zero()))) return *std::move(event);
      if (world_.clock.Now() >= renew_at_) Renew();
    }
  }

  // If the round was lost meanwhile, its next step will say so.
  void Renew() {
    const RoundState state = report_.round.state;
    const auto round = catalog_.UpdateRound(begun_.round.uid, state, state, core_.Rows());
    if (!round.ok()) {
      Log(LogLevel::kWarning, "the round's lease was not renewed",
          {{"round", begun_.round.uid.hex()}, {"error", round.error().message}});
    }
    renew_at_ = world_.clock.Now() + options_.lease / 4;
  }

  void Do(const RoundCore::Action& action) {
    if (const auto* mark = std::get_if<RoundCore::Mark>(&action)) {
      mailbox_.Put(RoundCore::Marked{MarkRow(mark->state)});
      return;
    }
    const auto to = std::get<RoundCore::CallEngine>(action);
    if (to.call == RoundCall::kPause) paused_since_[to.engine] = world_.clock.Now();
    const RoundCore::Engine& engine = core_.engines()[to.engine];
    const bool already = engine.already && !engine.error;
    pool_.Run([this, to, proven = WhatToProve(engine), already] {
      const SteadyTime begin = world_.clock.Now();
      RoundCore::Answered answer{to.engine, to.call, Ok(), {}};
      answer.status = CallFace(*faces_[to.engine], to.call, proven, &answer.told);
      if (answer.status.ok() && already && to.call == RoundCall::kProve) Label(*faces_[to.engine]);
      AddSeconds(to.engine, to.call, ToSeconds(world_.clock.Now() - begin));
      mailbox_.Put(std::move(answer));
    });
  }

  // By its next proof, as things are: what it serves, until it has been moved.
  Proven WhatToProve(const RoundCore::Engine& engine) const {
    if (!engine.before) return {};
    const bool moved = engine.place == Place::kPaused && !engine.already && !engine.error;
    if (!moved) return {engine.before->version, {}};
    return {version_.uid, engine.believed() ? engine.before->version : VersionUid{}};
  }

  Status CallFace(engine::Face& face, RoundCall call, const Proven& proven,
                  engine::EngineStatus* told) {
    switch (call) {
      case RoundCall::kInit:
        if (!options_.init) return Ok();
        // Init has the time of prepare. One whose workers are dead would be waited for so long: a
        // living engine answers a question at once.
        WC_TRY(face.Ask(options_.ask_timeout));
        return face.Init(*options_.init, options_.prepare_timeout);
      case RoundCall::kAsk:
        *told = WC_TRY(face.Ask(options_.ask_timeout));
        return Ok();
      case RoundCall::kPrepare:
        // The proof will want them, in the pause. If they cannot be had, it will be of all tensors.
        static_cast<void>(begun_.digests.Of(proven.version));
        return face.Prepare(version_.uid, begun_.round.uid, options_.prepare_timeout);
      case RoundCall::kPause:
        return face.Pause(options_.pause_mode, options_.pause_timeout);
      case RoundCall::kFlush:
        return face.Flush(options_.pause_timeout);
      case RoundCall::kStart:
        return face.Start(options_.update_timeout);
      case RoundCall::kUpdate:
        return face.Update(version_.uid, begun_.round.uid, options_.update_timeout);
      case RoundCall::kFinish:
        return face.Finish(version_.number, options_.update_timeout);
      case RoundCall::kProve:
        return Prove(face, proven);
      case RoundCall::kResume:
        return face.Resume(options_.pause_timeout);
    }
    return Ok();
  }

  Status Prove(engine::Face& face, const Proven& proven) {
    if (proven.version.empty()) {
      return Error{Code::kConflict, face.url() + ": was found paused, with no version to prove"};
    }
    const auto digests = WC_TRY(begun_.digests.Of(proven.version));
    const auto since = begun_.digests.Of(proven.since);
    const auto [scope, wanted] = Wanted(since.ok() ? since->get() : nullptr, *digests);
    const auto workers = WC_TRY(face.Prove(scope, options_.prove_timeout));
    WC_TRY(engine::CheckVersion(workers, proven.version).With(face.url()));
    return engine::Compare(*begun_.inventory, *digests, wanted, workers).Check().With(face.url());
  }

  // Of no weight: what an engine holds is asked of its workers.
  void Label(engine::Face& face) {
    const Status status = face.Label(version_.number, options_.ask_timeout);
    if (!status.ok()) {
      Log(LogLevel::kWarning, "the engine does not say its new version",
          {{"engine", face.url()}, {"error", status.error().message}});
    }
  }

  // Calls of one engine follow each other: nobody else writes its report.
  void AddSeconds(size_t index, RoundCall call, double seconds) {
    EngineReport& report = report_.engines[index];
    if (call == RoundCall::kPrepare) report.seconds_prepare += seconds;
    if (call >= RoundCall::kFlush && call <= RoundCall::kFinish) report.seconds_update += seconds;
    if (call == RoundCall::kProve) report.seconds_prove += seconds;
    if (call == RoundCall::kResume) EndPause(index);
  }

  void EndPause(size_t index) {
    if (!paused_since_[index]) return;  // by another coordinator
    report_.engines[index].seconds_pause = ToSeconds(world_.clock.Now() - *paused_since_[index]);
  }

  // Compare-and-set of the round's row. A database that is locked is asked again; an answer that
  // was lost on the way is found by reading.
  Status MarkRow(RoundState next) {
    const os::Deadline deadline(world_.clock, options_.catalog_timeout);
    const RoundState expected = report_.round.state;
    for (;;) {
      const auto round = catalog_.UpdateRound(begun_.round.uid, expected, next, core_.Rows());
      if (round.ok()) {
        report_.round = *round;
        return Ok();
      }
      const Error& error = round.error();
      if (error.code == Code::kAborted && next != expected) {
        const auto there = catalog_.GetRound(begun_.round.uid);
        if (there.ok() && there->state == next && there->engines == core_.Rows()) {
          report_.round = *there;
          return Ok();
        }
      }
      if (error.code != Code::kUnavailable || deadline.passed()) {
        Log(LogLevel::kWarning, "the round's row was not changed",
            {{"round", begun_.round.uid.hex()}, {"error", error.message}});
        return error;
      }
      world_.clock.SleepFor(kAskCatalogAgain);
    }
  }

  os::World& world_;
  catalog::Catalog& catalog_;
  const catalog::Version& version_;
  const std::vector<std::unique_ptr<engine::Face>>& faces_;
  const RoundOptions& options_;
  const Begun begun_;
  RoundCore core_;
  RoundReport report_;
  std::vector<std::optional<SteadyTime>> paused_since_;
  SteadyTime renew_at_;
  Mailbox mailbox_;
  TaskPool pool_;  // last: its tasks use all the others
};

}  // namespace

Status RoundReport::Outcome() const {
  std::vector<std::string> left_out;
  const Error* first = nullptr;
  for (const auto place : {Place::kFenced, Place::kKept}) {
    for (size_t i = 0; i < engines.size(); ++i) {
      if (round.engines[i].state != PlaceName(place) || !engines[i].error) continue;
      if (first == nullptr) first = &*engines[i].error;
      left_out.push_back(round.engines[i].url + " is " + round.engines[i].state + " (" +
                         engines[i].error->message + ")");
    }
  }
  if (first == nullptr) return Ok();
  return Error{first->code, "round " + round.uid.hex() + " " + std::string(StateName(round.state)) +
                                ": " + JoinNames(left_out)};
}

Result<RoundReport> RunRound(os::World& world, catalog::Catalog& catalog,
                             const catalog::Version& version,
                             const std::vector<std::unique_ptr<engine::Face>>& faces,
                             const RoundOptions& options) {
  KnownDigests digests(catalog);
  WC_TRY(digests.Of(version.uid));
  const auto inventory = WC_TRY(catalog.GetRun(version.run)).inventory;
  const auto round =
      WC_TRY(catalog.BeginRound({version.run, version.uid, Driver::Urls(faces), options.lease}));
  return Driver(world, catalog, version, faces, options, {round, inventory, digests}).Run();
}

}  // namespace weightcast::fleet
