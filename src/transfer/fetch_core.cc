#include "transfer/fetch_core.h"

#include <algorithm>

namespace weightcast::transfer {
namespace {

// Errors after which the same source may well answer later. All others are its last word.
bool Retryable(Code code) { return code == Code::kUnavailable || code == Code::kDeadlineExceeded; }

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

FetchCore::FetchCore(int32_t pieces, std::vector<std::string> sources, const FetchOptions& options,
                     uint64_t seed, std::vector<SourceHealth> health)
    : sources_(std::move(sources)),
      options_(options),
      rng_(seed),
      health_(std::move(health)),
      pieces_(static_cast<size_t>(pieces)) {
  health_.resize(sources_.size());
}

FetchCore::Actions FetchCore::Step(const Event& event, SteadyTime now) {
  Actions actions;
  if (std::holds_alternative<Start>(event)) deadline_ = now + options_.timeout;
  if (const auto* arrived = std::get_if<Arrived>(&event)) OnArrived(*arrived, now, &actions);
  if (!finished()) CheckDeadline(now, &actions);
  if (!finished()) StartReads(now, &actions);
  if (!finished()) StartHedges(now, &actions);
  if (!finished()) actions.wait_until = NextWake();
  return actions;
}

void FetchCore::OnArrived(const Arrived& arrived, SteadyTime now, Actions* actions) {
  const auto found = flights_.find(arrived.read);
  WC_CHECK(found != flights_.end());
  const auto [read, started] = found->second;
  flights_.erase(found);
  PieceState& piece = pieces_[static_cast<size_t>(read.piece)];
  --piece.in_flight;
  if (finished()) return;
  if (!arrived.status.ok()) return OnError(read, arrived, now, actions);

  NoteHealth(read.source, true, now);
  if (piece.done) return;
  piece.done = true;
  ++done_;
  --active_;
  actions->done = read.piece;
  const Duration took = now - started;
  durations_.insert(std::ranges::upper_bound(durations_, took), took);
  // The loser of a race has not failed, but neither is it to be asked first for ever.
  for (const auto& [id, flight] : flights_) {
    if (flight.read.piece == read.piece && flight.read.source != read.source) {
      NoteHealth(flight.read.source, false, now);
    }
  }
}

void FetchCore::OnError(const FetchRead& read, const Arrived& arrived, SteadyTime now,
                        Actions* actions) {
  const Error& error = arrived.status.error();
  const bool last_word = arrived.corrupt || !Retryable(error.code);
  if (error.code != Code::kNotFound) NoteHealth(read.source, false, now);
  PieceState& piece = pieces_[static_cast<size_t>(read.piece)];
  if (piece.done) return;

  Answer& answer = piece.answers[static_cast<size_t>(read.source)];
  answer.last = error;
  answer.exhausted |= last_word || answer.attempts >= options_.attempts_per_source;
  if (piece.in_flight > 0) return;  // the other read may still bring it
  --active_;
  const auto next = PickSource(read.piece, now);
  if (!next) return Fail(read.piece, AllRefused(read.piece), actions);
  const int attempts = piece.answers[static_cast<size_t>(*next)].attempts;
  waiting_.emplace(attempts == 0 ? now : now + Jitter(attempts), read.piece);
}

void FetchCore::StartReads(SteadyTime now, Actions* actions) {
  while (active_ < options_.parallel) {
    int32_t piece = next_fresh_;
    if (!waiting_.empty() && waiting_.begin()->first <= now) {
      piece = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
    } else if (next_fresh_ < static_cast<int32_t>(pieces_.size())) {
      pieces_[static_cast<size_t>(next_fresh_++)].answers.resize(sources_.size());
    } else {
      return;
    }
    const auto source = PickSource(piece, now);
    if (!source) return Fail(piece, AllRefused(piece), actions);
    ++active_;
    Launch(piece, *source, false, now, actions);
  }
}

void FetchCore::StartHedges(SteadyTime now, Actions* actions) {
  const auto after = HedgeAfter();
  if (!after) return;
  std::vector<FetchRead> slow;
  for (const auto& [id, flight] : flights_) {
    const PieceState& piece = pieces_[static_cast<size_t>(flight.read.piece)];
    if (!piece.done && !piece.hedged && flight.started + *after <= now) slow.push_back(flight.read);
  }
  for (const FetchRead& read : slow) {
    PieceState& piece = pieces_[static_cast<size_t>(read.piece)];
    piece.hedged = true;
    if (const auto source = PickSource(read.piece, now, read.source)) {
      Launch(read.piece, *source, true, now, actions);
    }
  }
}

void FetchCore::Launch(int32_t piece, int32_t source, bool hedge, SteadyTime now,
                       Actions* actions) {
  PieceState& state = pieces_[static_cast<size_t>(piece)];
  ++state.in_flight;
  ++state.answers[static_cast<size_t>(source)].attempts;
  const FetchRead read{next_read_++, piece, source, hedge};
  flights_[read.id] = {read, now};
  actions->reads.push_back(read);
}

void FetchCore::CheckDeadline(SteadyTime now, Actions* actions) {
  if (now < deadline_) return;
  const auto missing = std::ranges::find(pieces_, false, &PieceState::done) - pieces_.begin();
  const auto piece = static_cast<int32_t>(missing);
  Fail(piece,
       {Code::kDeadlineExceeded,
        std::to_string(pieces_.size() - static_cast<size_t>(done_)) + " of " +
            std::to_string(pieces_.size()) + " pieces missing after " +
            std::to_string(std::chrono::duration_cast<milliseconds>(options_.timeout).count()) +
            " ms; this one: " + AnswersText(piece)},
       actions);
}

void FetchCore::Fail(int32_t piece, Error error, Actions* actions) {
  failed_ = true;
  actions->reads.clear();
  actions->fail = Failure{piece, std::move(error)};
}

std::optional<int32_t> FetchCore::PickSource(int32_t piece, SteadyTime now,
                                             int32_t not_this) const {
  const std::vector<Answer>& answers = pieces_[static_cast<size_t>(piece)].answers;
  std::optional<int32_t> best;
  int best_cost = 0;
  for (size_t s = 0; s < sources_.size(); ++s) {
    if (answers[s].exhausted || answers[s].attempts >= options_.attempts_per_source) continue;
    const auto source = static_cast<int32_t>(s);
    const int cost = (source == not_this ? 2 : 0) + (now < health_[s].down_until ? 1 : 0);
    if (best && best_cost <= cost) continue;
    best = source;
    best_cost = cost;
  }
  return best;
}

void FetchCore::NoteHealth(int32_t source, bool ok, SteadyTime now) {
  SourceHealth& health = health_[static_cast<size_t>(source)];
  if (ok) {
    health = {};
  } else if (++health.failures_in_row >= options_.attempts_per_source) {
    health.down_until = now + options_.backoff_max;
  }
}

Duration FetchCore::Jitter(int attempts) {
  Duration most = options_.backoff;
  for (int i = 1; i < attempts && most < options_.backoff_max; ++i) most *= 2;
  most = std::min(most, options_.backoff_max);
  return Duration(
      static_cast<int64_t>(SplitMix(&rng_) % (static_cast<uint64_t>(most.count()) + 1)));
}

std::optional<Duration> FetchCore::HedgeAfter() const {
  const bool possible = options_.hedge_factor > 0 && options_.parallel > 1;
  if (!possible || durations_.empty() || durations_.size() * 2 < pieces_.size()) return {};
  const auto median = static_cast<double>(durations_[durations_.size() / 2].count());
  return std::max(options_.hedge_after_min,
                  Duration(static_cast<int64_t>(median * options_.hedge_factor)));
}

SteadyTime FetchCore::NextWake() const {
  SteadyTime wake = deadline_;
  if (!waiting_.empty() && active_ < options_.parallel) {
    wake = std::min(wake, waiting_.begin()->first);
  }
  if (const auto after = HedgeAfter()) {
    for (const auto& [id, flight] : flights_) {
      const PieceState& piece = pieces_[static_cast<size_t>(flight.read.piece)];
      if (!piece.done && !piece.hedged) wake = std::min(wake, flight.started + *after);
    }
  }
  return wake;
}

// kUnavailable if any source may answer later; else kDataLoss if any sent bytes that do not verify.
Error FetchCore::AllRefused(int32_t piece) const {
  const std::vector<Answer>& answers = pieces_[static_cast<size_t>(piece)].answers;
  auto any = [&](auto&& fits) {
    return std::ranges::any_of(answers,
                               [&](const Answer& a) { return a.last && fits(a.last->code); });
  };
  Code code = Code::kUnavailable;
  if (!answers.empty() && !any(Retryable)) {
    const bool data_loss = any([](Code c) { return c == Code::kDataLoss; });
    code = data_loss ? Code::kDataLoss : answers.front().last->code;
  }
  return {code, AnswersText(piece)};
}

std::string FetchCore::AnswersText(int32_t piece) const {
  const std::vector<Answer>& answers = pieces_[static_cast<size_t>(piece)].answers;
  std::string text;
  for (size_t s = 0; s < answers.size(); ++s) {
    if (answers[s].attempts == 0) continue;
    text += (text.empty() ? "" : "; ") + sources_[s] + ": ";
    if (const auto& last = answers[s].last) {
      text += last->message + " (" + std::string(CodeName(last->code)) + ")";
    } else {
      text += "no answer yet";
    }
    if (answers[s].attempts > 1)
      text += ", asked " + std::to_string(answers[s].attempts) + " times";
  }
  if (sources_.empty()) return "there is no source to ask";
  return text.empty() ? "not asked for yet" : text;
}

}  // namespace weightcast::transfer
