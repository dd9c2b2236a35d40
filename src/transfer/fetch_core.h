// Decisions of the fetcher, without I/O, threads or clock: which source is asked for which piece
// and when. The driver (fetcher.cc) and the tests' simulated clock run the same core.
//   FetchCore core(pieces, {"peer 3", "s3://b"}, options, seed);
//   auto actions = core.Step(FetchCore::Start{}, now);
//   ... perform actions.reads; feed Arrived{read.id, status}; at actions.wait_until TimerFired{}
//   ... until core.finished()
// docs/design/fetcher.md says why it decides as it does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace weightcast::transfer {

struct FetchOptions {
  int parallel = 4;             // reads in flight of one Fetch; 1: all on the caller's thread
  int threads = 32;             // of one Fetcher, over all concurrent calls
  int attempts_per_source = 4;  // then the next source is asked
  Duration backoff = milliseconds(50);  // full jitter, doubles each attempt
  Duration backoff_max = seconds(5);
  Duration timeout = seconds(300);  // of one Fetch; then kDeadlineExceeded
  // Once half of the pieces are there, a read that takes longer than this multiple of their median
  // (and than hedge_after_min) is asked for a second time, elsewhere if possible. 0: never.
  double hedge_factor = 4;
  Duration hedge_after_min = milliseconds(200);
};

// What is known of a source beyond one Fetch. One that failed attempts_per_source times in a row is
// asked last until down_until.
struct SourceHealth {
  int failures_in_row = 0;
  SteadyTime down_until{};

  bool operator==(const SourceHealth&) const = default;
};

struct FetchRead {
  int64_t id = 0;
  int32_t piece = 0;
  int32_t source = 0;
  bool hedge = false;

  bool operator==(const FetchRead&) const = default;
};

// Not safe for threads: one driver calls it under its lock.
class FetchCore {
 public:
  struct Start {};
  struct Arrived {
    int64_t read = 0;
    Status status;         // of the read, or of the verification of what it brought
    bool corrupt = false;  // the read was fine, the verification failed
  };
  struct TimerFired {};
  using Event = std::variant<Start, Arrived, TimerFired>;

  struct Failure {
    int32_t piece = 0;
    Error error;  // of the piece: each source's last answer
  };
  struct Actions {
    std::vector<FetchRead> reads;  // start these
    std::optional<int32_t> done;   // the bytes that just arrived are this piece's: keep them
    std::optional<SteadyTime> wait_until;  // send TimerFired then, if nothing arrives before
    std::optional<Failure> fail;           // give up; at most once
  };

  // `sources` are names for messages, in order of preference; `health` is empty or one a source.
  FetchCore(int32_t pieces, std::vector<std::string> sources, const FetchOptions& options,
            uint64_t seed, std::vector<SourceHealth> health = {});

  // Bounded: a piece is asked at most sources * attempts_per_source times, and twice that with
  // hedges. After the end, late arrivals change nothing.
  Actions Step(const Event& event, SteadyTime now);

  bool finished() const { return failed_ || done_ == static_cast<int32_t>(pieces_.size()); }
  bool idle() const { return flights_.empty(); }  // no read under way
  const std::vector<SourceHealth>& health() const { return health_; }

 private:
  struct Answer {  // of one source for one piece
    int attempts = 0;
    bool exhausted = false;
    std::optional<Error> last;
  };
  struct PieceState {
    bool done = false;
    bool hedged = false;
    int in_flight = 0;
    std::vector<Answer> answers;  // by source; empty until the first read
  };
  struct Flight {
    FetchRead read;
    SteadyTime started;
  };

  void OnArrived(const Arrived& arrived, SteadyTime now, Actions* actions);
  void OnError(const FetchRead& read, const Arrived& arrived, SteadyTime now, Actions* actions);
  void StartReads(SteadyTime now, Actions* actions);
  void StartHedges(SteadyTime now, Actions* actions);
  void Launch(int32_t piece, int32_t source, bool hedge, SteadyTime now, Actions* actions);
  void CheckDeadline(SteadyTime now, Actions* actions);
  void Fail(int32_t piece, Error error, Actions* actions);

  // The source to ask next for a piece, another one than `not_this` if possible; none: all refused.
  std::optional<int32_t> PickSource(int32_t piece, SteadyTime now, int32_t not_this = -1) const;
  bool Down(int32_t source, SteadyTime now) const;
  void NoteHealth(int32_t source, bool ok, SteadyTime now);
  Duration Jitter(int attempts);
  std::optional<Duration> HedgeAfter() const;
  SteadyTime NextWake() const;
  Error AllRefused(int32_t piece) const;
  std::string AnswersText(int32_t piece) const;

  const std::vector<std::string> sources_;
  const FetchOptions options_;
  uint64_t rng_;
  std::vector<SourceHealth> health_;
  SteadyTime deadline_{};

  std::vector<PieceState> pieces_;
  int32_t next_fresh_ = 0;                            // pieces from here on were never asked for
  std::set<std::pair<SteadyTime, int32_t>> waiting_;  // to be asked again, not before a time
  std::map<int64_t, Flight> flights_;
  std::vector<Duration> durations_;  // of reads that brought a piece, ascending
  int active_ = 0;                   // pieces that are being read and not done
  int64_t next_read_ = 0;
  int32_t done_ = 0;
  bool failed_ = false;
};

}  // namespace weightcast::transfer
