#include "transfer/fetcher.h"

#include <cstring>
#include <optional>

#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/task_pool.h"

namespace weightcast::transfer {

struct Fetcher::State {
  State(os::World& its_world, std::vector<Source*> its_sources, const FetchOptions& its_options)
      : world(its_world),
        sources(std::move(its_sources)),
        options(its_options),
        pool(its_options.threads) {
    for (const Source* source : sources) names.push_back(source->name());
  }

  FetchCore NewCore(size_t pieces, int parallel) {
    FetchOptions of_call = options;
    of_call.parallel = parallel;
    MutexLock lock(mu);
    uint64_t seed = 0;
    world.random.Fill({reinterpret_cast<uint8_t*>(&seed), sizeof seed});
    return {static_cast<int32_t>(pieces), names, of_call, seed, health};
  }
  // What the core is told of a read that ended with `status`: verifies the bytes, counts, logs.
  FetchCore::Arrived Judge(const FetchRead& read, const Piece& piece, Status status,
                           ByteSpan bytes);
  void KeepHealth(const FetchCore& core) {
    MutexLock lock(mu);
    health = core.health();
  }

  os::World& world;
  const std::vector<Source*> sources;
  std::vector<std::string> names;
  const FetchOptions options;
  Mutex mu;
  std::map<std::string, int64_t> bytes_by_kind WC_GUARDED_BY(mu);
  std::vector<SourceHealth> health WC_GUARDED_BY(mu);
  TaskPool pool;  // destroyed first: its tasks use the above
};

namespace {

std::string PieceText(const Piece& piece) {
  return "object " + piece.key + " bytes [" + std::to_string(piece.offset) + ", " +
         std::to_string(piece.offset + static_cast<int64_t>(piece.out.size())) + ")";
}

}  // namespace

FetchCore::Arrived Fetcher::State::Judge(const FetchRead& read, const Piece& piece, Status status,
                                         ByteSpan bytes) {
  FetchCore::Arrived arrived{read.id, std::move(status), false};
  if (arrived.status.ok() && piece.verify) {
    arrived.status = piece.verify(bytes);
    arrived.corrupt = !arrived.status.ok();
  }
  const auto source = static_cast<size_t>(read.source);
  if (arrived.status.ok()) {
    MutexLock lock(mu);
    bytes_by_kind[sources[source]->kind()] += static_cast<int64_t>(bytes.size());
    return arrived;
  }
  CountMetric("weightcast_fetch_failed_reads_total", 1);
  const Error& error = arrived.status.error();
  const bool lost = arrived.corrupt || error.code == Code::kDataLoss;
  Log(lost ? LogLevel::kWarning : LogLevel::kDebug, "read failed",
      {{"source", names[source]}, {"piece", PieceText(piece)}, {"error", error.message}});
  return arrived;
}

// One Fetch on the pool. Shared with its reads: one that was given up outlives it.
class Fetcher::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(State& state, std::span<Piece> pieces)
      : state_(state),
        pieces_(pieces),
        core_(state.NewCore(pieces.size(), state.options.parallel)) {}

  Status Run() {
    os::Clock& clock = state_.world.clock;
    MutexLock lock(mu_);
    Perform(core_.Step(FetchCore::Start{}, clock.Now()));
    while (!core_.finished()) {
      const Duration left = wake_at_ - clock.Now();
      if (left <= Duration::zero()) {
        Perform(core_.Step(FetchCore::TimerFired{}, clock.Now()));
      } else if (core_.idle()) {
        clock.SleepFor(left);
      } else {
        changed_.WaitFor(mu_, left);
      }
    }
    while (touching_ > 0) changed_.Wait(mu_);
    state_.KeepHealth(core_);
    if (!failure_) return Ok();
    return failure_->error.With(PieceText(pieces_[static_cast<size_t>(failure_->piece)]));
  }

 private:
  void Perform(FetchCore::Actions actions) WC_REQUIRES(mu_) {
    for (const FetchRead& read : actions.reads) {
      state_.pool.Run([self = shared_from_this(), read] { self->Read(read); });
    }
    if (actions.wait_until) wake_at_ = *actions.wait_until;
    if (actions.fail) failure_ = std::move(actions.fail);
    changed_.NotifyAll();
  }

  void Read(const FetchRead& read) {
    Piece asked;
    {
      MutexLock lock(mu_);
      if (core_.finished()) return;
      const Piece& piece = pieces_[static_cast<size_t>(read.piece)];
      asked.key = piece.key;
      asked.offset = piece.offset;
      asked.out = piece.out;
    }
    const size_t size = asked.out.size();
    const auto buffer = std::make_unique_for_overwrite<uint8_t[]>(size);
    asked.out = {buffer.get(), size};
    Status status =
        state_.sources[static_cast<size_t>(read.source)]->Read(asked.key, asked.offset, asked.out);
    {
      // From here to the end Run does not return, so that the caller's pieces are there.
      MutexLock lock(mu_);
      if (core_.finished()) return;
      ++touching_;
    }
    const Piece& piece = pieces_[static_cast<size_t>(read.piece)];
    FetchCore::Arrived arrived = state_.Judge(read, piece, std::move(status), asked.out);
    bool keep = false;
    {
      MutexLock lock(mu_);
      FetchCore::Actions actions = core_.Step(std::move(arrived), state_.world.clock.Now());
      keep = actions.done.has_value();
      Perform(std::move(actions));
    }
    if (keep && size > 0) std::memcpy(piece.out.data(), buffer.get(), size);
    MutexLock lock(mu_);
    --touching_;
    changed_.NotifyAll();
  }

  State& state_;
  const std::span<Piece> pieces_;
  Mutex mu_;
  CondVar changed_;
  FetchCore core_ WC_GUARDED_BY(mu_);
  SteadyTime wake_at_ WC_GUARDED_BY(mu_){};
  std::optional<FetchCore::Failure> failure_ WC_GUARDED_BY(mu_);
  int touching_ WC_GUARDED_BY(mu_) = 0;  // reads that use what belongs to the caller
};

Fetcher::Fetcher(os::World& world, std::vector<Source*> sources, FetchOptions options)
    : state_(std::make_unique<State>(world, std::move(sources), options)) {}
Fetcher::~Fetcher() = default;

Status Fetcher::Fetch(std::span<Piece> pieces) {
  if (pieces.size() <= 1 || state_->options.parallel <= 1) return FetchInline(pieces);
  return std::make_shared<Call>(*state_, pieces)->Run();
}

Status Fetcher::FetchInline(std::span<Piece> pieces) {
  os::Clock& clock = state_->world.clock;
  FetchCore core = state_->NewCore(pieces.size(), 1);
  FetchCore::Actions actions = core.Step(FetchCore::Start{}, clock.Now());
  while (!core.finished()) {
    if (actions.reads.empty()) {
      clock.SleepFor(*actions.wait_until - clock.Now());
      actions = core.Step(FetchCore::TimerFired{}, clock.Now());
      continue;
    }
    const FetchRead read = actions.reads.front();
    Piece& piece = pieces[static_cast<size_t>(read.piece)];
    Status status =
        state_->sources[static_cast<size_t>(read.source)]->Read(piece.key, piece.offset, piece.out);
    actions = core.Step(state_->Judge(read, piece, std::move(status), piece.out), clock.Now());
  }
  state_->KeepHealth(core);
  if (!actions.fail) return Ok();
  return actions.fail->error.With(PieceText(pieces[static_cast<size_t>(actions.fail->piece)]));
}

std::map<std::string, int64_t> Fetcher::bytes_by_kind() const {
  MutexLock lock(state_->mu);
  return state_->bytes_by_kind;
}

}  // namespace weightcast::transfer
