// The one fetcher: brings pieces from an ordered list of sources, verifies each, retries, hedges
// the slow ones, and falls back. The decisions are in fetch_core.h, without threads or clock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "os/world.h"
#include "transfer/fetch_core.h"
#include "transfer/source.h"

namespace weightcast::transfer {

// A range of one object. `verify` runs on the fetched bytes (any thread, perhaps on two copies at
// once); its failure counts against the source, and the piece is fetched again from the next one.
struct Piece {
  std::string key;
  int64_t offset = 0;
  MutableByteSpan out;
  std::function<Status(ByteSpan)> verify;  // empty: accept
};

class Fetcher {
 public:
  // Sources in order of preference; they outlive the fetcher.
  // `options.parallel` 1 suits a source that is a memory copy away (a directory, this process): its
  // pieces are read straight into `out` on the calling thread, and the caller's threads are the
  // parallelism.
  Fetcher(os::World& world, std::vector<Source*> sources, FetchOptions options = {});
  ~Fetcher();  // waits for reads that were given up

  // Returns when every piece is there and verified, or with the first error that no source could
  // mend (kUnavailable, kNotFound, kDataLoss: naming object, range and each source's answer), or at
  // options.timeout (kDeadlineExceeded). After an error `out` is unspecified. One piece, or
  // parallel 1: on this thread, which a source may hold up for as long as its own timeout. More: on
  // the fetcher's threads, each read into a buffer of its own, so that neither a hedge nor a read
  // that was given up writes into `out`; at most 2 * parallel buffers, and those of given up reads.
  // Any thread; concurrent calls share counters, threads and what is known of sources' health.
  Status Fetch(std::span<Piece> pieces);

  // Bytes that arrived and verified, by source kind.
  std::map<std::string, int64_t> bytes_by_kind() const;

 private:
  struct State;
  class Call;
  Status FetchInline(std::span<Piece> pieces);

  std::unique_ptr<State> state_;
};

}  // namespace weightcast::transfer
