// The one fetcher: brings pieces from an ordered list of sources, verifies each, retries, hedges the
// slow ones, and falls back. The decisions are in fetch_core.h, without threads or clock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "os/world.h"
#include "transfer/source.h"

namespace weightcast::transfer {

struct FetchOptions {
  int parallel = 4;                          // reads in flight
  int attempts_per_source = 4;               // then the next source is asked
  Duration backoff = milliseconds(50);       // full jitter, doubles each attempt
  Duration backoff_max = seconds(5);
  Duration timeout = seconds(300);           // of one Fetch; then kDeadlineExceeded
};

// A range of one object. `verify` runs on the fetched bytes (any thread); its failure counts against
// the source, and the piece is fetched again from the next one.
struct Piece {
  std::string key;
  int64_t offset = 0;
  MutableByteSpan out;
  std::function<Status(ByteSpan)> verify;  // empty: accept
};

class Fetcher {
 public:
  // Sources in order of preference; they outlive the fetcher.
  Fetcher(os::World& world, std::vector<Source*> sources, FetchOptions options = {});
  ~Fetcher();

  // Returns when every piece is there and verified, or with the first error that no source could
  // mend (kUnavailable, kNotFound, kDataLoss: naming object, range and each source's answer).
  // Any thread; concurrent calls share nothing but the counters.
  Status Fetch(std::span<Piece> pieces);

  // Bytes that arrived and verified, by source kind.
  std::map<std::string, int64_t> bytes_by_kind() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightcast::transfer
