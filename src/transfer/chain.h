// A chain of versions made ready to replay: footers fetched and proven, chunks found by cell; and
// the replay itself, cell by cell, in bounded memory. Used by agents (image) and trainers (lost
// baseline). docs/design/replay.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "catalog/catalog.h"
#include "delta/part.h"
#include "layout/cells.h"
#include "transfer/fetcher.h"

namespace weightcast::transfer {

// A chunk of one part in the chain.
struct ChainChunk {
  int32_t step =
      0;  // 0: the full version that the chain starts with; i: the i-th step after the start
  int32_t object = 0;                       // which of the chain's objects it lies in
  const delta::PartChunk* chunk = nullptr;  // lives as long as the chain
};

// Cells that are replayed together. If they follow each other, their payloads are one byte range in
// each object.
struct ReplayCell {
  int32_t tensor = 0;
  int64_t cell = 0;
  layout::Box box;
  layout::CellRun run;
  std::vector<ChainChunk> chunks;  // by step, then place
};

// What a replay made of a cell. Valid only while the sink runs.
struct ReplayedCell {
  ByteSpan base;  // empty if the chain starts full
  ByteSpan next;
  // If one chunk made the whole cell from its base: that chunk, both of whose digests are proven,
  // and the units that changed, ascending. Else null, and `changed` says nothing.
  const delta::PartChunk* chunk = nullptr;
  std::span<const uint32_t> changed;
};

struct ReplayBatch {
  std::vector<ReplayCell> cells;
  int64_t payload_bytes = 0;
};

class Chain {
 public:
  // Fetches and proves the footer of every object that the plan needs (full and carried objects of
  // the start if it is kFull, delta objects of each step). `fetcher_for` gives the fetcher of a
  // version's store, once for each version that has objects. Inventory and fetchers outlive the
  // chain. Memory: about 200 bytes a chunk, and 64 MiB of footers at a time. Errors: as Fetch, but
  // kUnavailable for an object that no source has; kDataLoss if a part's identity is not what the
  // catalog says (every field that differs is named); kInvalidData if the versions do not follow
  // each other, a footer is malformed, chunks of one version overlap, or a full start does not
  // cover every unit of every tensor once (tensors and cells are named).
  static Result<Chain> Load(
      const tensor::Inventory& inventory, const catalog::ReplayPlan& plan,
      const std::function<Result<Fetcher*>(const catalog::Version&)>& fetcher_for);

  struct State;  // chain_state.h
  Chain(Chain&&) noexcept;
  Chain& operator=(Chain&&) noexcept;
  ~Chain();

  // Cells that some version of the chain changes (all cells if it starts with a full version), cut
  // into batches of at most `payload_bytes_max` (but at least one cell), in (tensor, cell) order;
  // only those for which `wanted` is true, if it is set. Smaller ones, down to 256 KiB, where each
  // of `threads` would not get several: a batch is one thread's work.
  std::vector<ReplayBatch> Batches(
      int64_t payload_bytes_max, int threads,
      const std::function<bool(int32_t tensor, int64_t cell)>& wanted = {}) const;
  // Does the chain begin with a full version (so that cells need no base)?
  bool starts_full() const;
  // Bytes of all its objects: what a replay of all cells fetches, footers included.
  int64_t wire_bytes() const;

  // Replays one batch: fetches its payloads; then for each cell, `base(cell)` says where its units
  // lie (not called if the chain starts full), every chunk is decoded and proven in order, and
  // `sink` gets the result. Adds to `gained[tensor]` what the tensor's digest gains: next - base,
  // without units; if it starts full next, with the units covered. Any thread, each with a scratch
  // and a `gained` of its own. Memory: the batch's payloads and at most three cells, kept in the
  // scratch. Errors: as Fetch; kDataLoss naming tensor, box, version and object if a chunk does not
  // prove; those of `base` and `sink`. After an error `gained` is unspecified.
  //   Requires: gained->size() == the inventory's.
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
  using BaseReader = std::function<Result<ByteSpan>(const ReplayCell&)>;
  using CellSink = std::function<Status(const ReplayCell&, const ReplayedCell&)>;
  Status Replay(const ReplayBatch& batch, Scratch& scratch, const BaseReader& base,
                const CellSink& sink, std::vector<tensor::Partial>* gained) const;

 private:
  explicit Chain(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace weightcast::transfer
