// A chain of versions made ready to replay: footers fetched and proven, chunks found by cell; and the
// replay itself, cell by cell, in bounded memory. Used by agents (image) and trainers (lost baseline).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "catalog/catalog.h"
#include "delta/part.h"
#include "layout/cells.h"
#include "transfer/fetcher.h"

namespace weightcast::transfer {

// A chunk of one part in the chain.
struct ChainChunk {
  int32_t step = 0;    // position of its version in the chain
  int32_t object = 0;  // into Chain::objects()
  const delta::PartChunk* chunk = nullptr;
};

// Consecutive cells that are replayed together: for each object their payloads are one byte range.
struct ReplayCell {
  int32_t tensor = 0;
  int64_t cell = 0;
  layout::Box box;
  std::vector<ChainChunk> chunks;  // by step, then place
};
struct ReplayBatch {
  std::vector<ReplayCell> cells;
  int64_t payload_bytes = 0;
};

class Chain {
 public:
  // Fetches and proves the footer of every object that the plan needs (full and carried objects of
  // the start if it is kFull, delta objects of each step). `fetcher_for` gives the fetcher of a
  // version's store. Errors: as Fetch; kDataLoss if a part's identity is not what the catalog says.
  static Result<Chain> Load(const tensor::Inventory& inventory, const catalog::ReplayPlan& plan,
                            const std::function<Result<Fetcher*>(const catalog::Version&)>& fetcher_for);

  Chain(Chain&&) noexcept;
  Chain& operator=(Chain&&) noexcept;
  ~Chain();

  // Cells that some version of the chain changes (all cells if it starts with a full version), cut
  // into batches of at most about `payload_bytes_max`, in (tensor, cell) order; only those for which
  // `wanted` is true, if it is set.
  std::vector<ReplayBatch> Batches(
      int64_t payload_bytes_max,
      const std::function<bool(int32_t tensor, int64_t cell)>& wanted = {}) const;
  // Does the chain begin with a full version (so that cells need no base)?
  bool starts_full() const;
  int64_t wire_bytes() const;

  // Replays one batch: for each cell, `base(cell, out)` fills the packed cell (not called if the
  // chain starts full: every unit must then be covered), every chunk is decoded and proven in order,
  // and `sink(cell, base, next)` gets the result (`base` empty if it starts full; both valid only
  // during the call). Adds to `gained[tensor]` what the tensor's digest gains: next - base (next
  // when it starts full), with the units covered. Any thread, each with a scratch of its own.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    struct State;
    State& state() { return *state_; }

   private:
    std::unique_ptr<State> state_;
  };
  using BaseReader = std::function<Status(const ReplayCell&, MutableByteSpan packed)>;
  using CellSink = std::function<Status(const ReplayCell&, ByteSpan base, ByteSpan next)>;
  Status Replay(const ReplayBatch& batch, Scratch& scratch, const BaseReader& base,
                const CellSink& sink, std::vector<tensor::Partial>* gained) const;

 private:
  struct State;
  explicit Chain(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace weightcast::transfer
