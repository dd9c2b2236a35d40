#include "agent/apply.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <tuple>

#include "agent/image_dir.h"
#include "agent/side_files.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "layout/cells.h"
#include "tensor/root.h"

namespace weightcast::agent {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

bool IsHost(const Manifest& m) { return m.durability == Durability::kHost; }

// Must the names in .weightcast be durable before the step writes anything? For either durability
// before a side file's name comes or goes: after a power loss a name that no manifest knows would
// be taken for others' file.
bool SyncsNames(const Manifest& from, const Manifest& to) {
  return IsHost(from) || IsHost(to) || SideNamesDiffer(from, to);
}

// One entry of one op; those of one cell stand together, in the order of the ops.
struct CellWrite {
  const JournalEntry* entry;
  const Op* op;
};

std::vector<CellWrite> SortByCell(std::span<const Op> ops) {
  std::vector<CellWrite> writes;
  for (const Op& op : ops) {
    for (const JournalEntry& entry : op.journal->entries()) writes.push_back({&entry, &op});
  }
  std::ranges::stable_sort(
      writes, {}, [](const CellWrite& w) { return std::tuple(w.entry->tensor, w.entry->cell); });
  return writes;
}

// Ranges of `writes` that are one cell each.
std::vector<std::span<const CellWrite>> GroupByCell(std::span<const CellWrite> writes) {
  std::vector<std::span<const CellWrite>> groups;
  for (size_t begin = 0; begin < writes.size();) {
    const JournalEntry& first = *writes[begin].entry;
    size_t end = begin + 1;
    while (end < writes.size() && writes[end].entry->tensor == first.tensor &&
           writes[end].entry->cell == first.cell) {
      ++end;
    }
    groups.push_back(writes.subspan(begin, end - begin));
    begin = end;
  }
  return groups;
}

struct Proof {
  std::vector<std::string> bad;  // cells that are not what they must be
  Duration time = Duration::zero();
};

// Writes the ops into the mapped files, cell by cell, and digests each cell while it is in cache.
Result<Proof> WriteOps(const StepWork& work, std::span<const Op> ops) {
  const tensor::Inventory& inventory = work.inventory;
  tensor::MappedWeights& weights = work.weights;
  os::Clock& clock = work.world.clock;
  const std::vector<CellWrite> writes = SortByCell(ops);
  const auto cells = GroupByCell(writes);
  Proof proof;
  Mutex mu;
  std::atomic<int64_t> proof_ns{0};
  const auto write_cell = [&](size_t item, int) -> Status {
    const std::span<const CellWrite> cell = cells[item];
    const JournalEntry& last = *cell.back().entry;
    const size_t tensor = Size(last.tensor);
    const layout::CellRun run = layout::RunOf(inventory[tensor].matrix(), last.cell);
    const tensor::TensorPlace& place = weights.place(tensor);
    Status written = Ok();
    weights.file(Size(place.file))
        .Update(place.offset + run.offset, run.bytes, [&](MutableByteSpan bytes) {
          for (const CellWrite& write : cell) {
            if (!written.ok()) return;
            written = write.op->journal->Write(*write.entry, write.op->undo, bytes);
          }
        });
    WC_TRY(written);
    const SteadyTime begin = clock.Now();
    const tensor::TensorDigest found =
        tensor::DigestRun(run.offset, run.Of(weights.tensor(tensor)));
    proof_ns += (clock.Now() - begin).count();
    if (found == (cell.back().op->undo ? last.old_digest : last.new_digest)) return Ok();
    MutexLock lock(mu);
    proof.bad.push_back(inventory[tensor].name + " cell " + std::to_string(last.cell));
    return Ok();
  };
  WC_TRY(ParallelFor(cells.size(), work.threads, write_cell));
  const int workers = ThreadCount(work.threads);
  proof.time = Duration(proof_ns / workers);
  std::ranges::sort(proof.bad);
  return proof;
}

Status AllProven(const std::string& image, const Proof& proof) {
  if (proof.bad.empty()) return Ok();
  return Error{Code::kDataLoss,
               image + ": not what the journal says after writing: " + JoinNames(proof.bad)};
}

// Steps 5 to 8 of the protocol. The state says `applying`, the weights are mapped.
Status Move(const StepWork& work, ApplyTimes* times) {
  const auto& [world, image, from, to, ops, inventory, weights, threads] = work;
  const bool syncs = IsHost(to) && to.synced == to.generation;
  WC_TRY(HideWeights(world.fs, image, from));
  // So that after a power loss an open without a hold finds nothing until all is synced. Without
  // that sync the names may come back before the bytes anyway.
  if (syncs) WC_TRY(world.fs.SyncDirectory(image));
  const Proof proof = WC_TRY(WriteOps(work, work.ops));
  times->verify = proof.time;
  WC_TRY(AllProven(image, proof));
  WC_TRY(InstallSideFiles(world.fs, image, from, to, IsHost(to)));
  if (syncs) WC_TRY(SyncWeights(world.fs, image, to, true));
  WC_TRY(ShowWeights(world.fs, image, to));
  return ChangeState(world.fs, image, {from.generation, to.generation},
                     {to.generation, to.generation});
}

// Writes back what Move has written. The weights on disk may hold new units by now, which no
// journal of `from` knows: so they are synced.
Status MoveBack(const StepWork& work) {
  const auto& [world, image, from, to, ops, inventory, weights, threads] = work;
  std::vector<Op> back;
  for (const Op& op : ops) back.push_back({op.journal, !op.undo});
  std::ranges::reverse(back);
  WC_TRY(HideWeights(world.fs, image, from));
  // Without proof: what was there before is what comes back, also if it was not what it should be.
  WC_TRY(WriteOps(work, back));
  WC_TRY(InstallSideFiles(world.fs, image, to, from, IsHost(from)));
  if (IsHost(from)) WC_TRY(SyncWeights(world.fs, image, from, true));
  WC_TRY(ShowWeights(world.fs, image, from));
  return ChangeState(world.fs, image, {from.generation, to.generation},
                     {from.generation, from.generation});
}

struct RecoveryStep {
  Step step;
  bool undo;
};

// What recovery writes: after a host restart all steps since the last sync, then the step that was
// under way.
std::vector<RecoveryStep> StepsOfRecovery(const Manifest& from, const Manifest& to,
                                          bool restarted) {
  std::vector<RecoveryStep> steps;
  for (const Step& step : from.journals) {
    if (restarted && IsHost(from) && step.to > from.synced) steps.push_back({step, false});
  }
  if (to.generation == from.generation) return steps;
  for (const Step& step : to.steps) steps.push_back({step, to.undo});
  return steps;
}

}  // namespace

Status CheckSums(const tensor::Inventory& inventory, const Manifest& from, const Manifest& to,
                 std::span<const Op> ops) {
  if (tensor::ComputeRoot(inventory, to.digests) != to.root) {
    return Error{Code::kDataLoss, "version " + std::to_string(to.number) +
                                      ": its tensor digests do not give its root " + to.root.hex()};
  }
  std::vector<tensor::TensorDigest> sums = from.digests;
  for (const Op& op : ops) {
    for (const JournalEntry& entry : op.journal->entries()) {
      const tensor::TensorDigest change = entry.new_digest - entry.old_digest;
      tensor::TensorDigest& sum = sums[Size(entry.tensor)];
      sum = op.undo ? sum - change : sum + change;
    }
  }
  std::vector<std::string> bad;
  for (size_t t = 0; t < sums.size(); ++t) {
    if (sums[t] == to.digests[t]) continue;
    bad.push_back(inventory[t].name + " (expected " + to.digests[t].hex() + ", found " +
                  sums[t].hex() + ")");
  }
  if (bad.empty()) return Ok();
  return Error{Code::kDataLoss, "version " + std::to_string(to.number) + " does not follow from " +
                                    std::to_string(from.number) + ": " + JoinNames(bad)};
}

Status ApplyStep(const StepWork& work, const os::Deadline& deadline, ApplyTimes* times) {
  const auto& [world, image, from, to, ops, inventory, weights, threads] = work;
  if (IsHost(to) && !IsHost(from)) {
    // Nothing of it was ever synced; from here on the journals build upon what the disk holds.
    WC_TRY(SyncTree(world.fs, image));
    WC_TRY(world.fs.SyncPath(os::ParentPath(image)));
  }
  const auto lock = WC_TRY(LockImage(world, image, os::Lock::kExclusive, deadline));
  const SteadyTime begin = world.clock.Now();
  const State clean{from.generation, from.generation};
  if (WC_TRY(ReadState(world.fs, image)) != clean) {
    return Error{Code::kAborted,
                 image + ": is no longer at generation " + std::to_string(from.generation)};
  }
  WC_TRY(ChangeState(world.fs, image, clean, {from.generation, to.generation}));
  const auto move = [&]() -> Status {
    if (SyncsNames(from, to)) WC_TRY(world.fs.SyncDirectory(MetaPath(image)));
    return Move(work, times);
  };
  const Status moved = move();
  times->apply = world.clock.Now() - begin;
  if (moved.ok()) return Ok();
  const Status back = MoveBack(work);
  if (back.ok()) return moved;
  return Error{moved.error().code, moved.error().message +
                                       "; the old units could not be written back either (" +
                                       back.error().message + "): the next hold recovers"};
}

Result<bool> NeedsRecovery(os::World& world, const std::string& image) {
  const State state = WC_TRY(ReadState(world.fs, image));
  if (!state.clean()) return true;
  return WC_TRY(ReadManifest(world.fs, image, state.from)).boot_id != world.boot_id;
}

Status Recover(os::World& world, const std::string& image, int threads) {
  os::Fs& fs = world.fs;
  const State state = WC_TRY(ReadState(fs, image));
  const Manifest from = WC_TRY(ReadManifest(fs, image, state.from));
  const bool restarted = from.boot_id != world.boot_id;
  if (state.clean() && !restarted) return Ok();
  Manifest to = WC_TRY(ReadManifest(fs, image, state.to));
  // A durable step on an image that was not begins by syncing all of it: then `to` alone counts.
  if (restarted && !IsHost(to)) {
    return Error{Code::kDataLoss,
                 image +
                     ": the host was restarted, and durability \"process\" does not survive "
                     "that: lay it anew"};
  }
  const bool moving = !state.clean();
  const bool syncs = moving && IsHost(to) && to.synced == to.generation;
  // The process that began the step may have died before these syncs of its own.
  if (moving && !restarted && SyncsNames(from, to)) {
    WC_TRY(fs.SyncDirectory(MetaPath(image)));
  }
  WC_TRY(HideWeights(fs, image, from));
  if (syncs) WC_TRY(fs.SyncDirectory(image));
  const tensor::HfDirectory directory = WC_TRY(OpenWeights(fs, image, from, true));
  std::deque<Journal> journals;
  std::vector<Op> ops;
  for (const auto& [step, undo] : StepsOfRecovery(from, to, restarted)) {
    auto journal = Journal::Open(fs, JournalPath(image, step), directory.inventory());
    if (!journal.ok()) return Error{Code::kDataLoss, journal.error().message};
    journals.push_back(std::move(*journal));
    ops.push_back({&journals.back(), undo});
  }
  tensor::MappedWeights weights = WC_TRY(tensor::MappedWeights::Map(fs, directory, true));
  const StepWork work{world, image, from, to, ops, *directory.inventory(), weights, threads};
  const Proof proof = WC_TRY(WriteOps(work, ops));
  WC_TRY(AllProven(image, proof));
  if (moving) WC_TRY(InstallSideFiles(fs, image, from, to, IsHost(to)));
  if (syncs) WC_TRY(SyncWeights(fs, image, to, true));
  WC_TRY(ShowWeights(fs, image, to));
  if (restarted) {  // last: whoever finds the new boot id believes the rest
    to.boot_id = world.boot_id;
    WC_TRY(ReplaceManifest(fs, image, to));
  }
  return moving ? ChangeState(fs, image, state, {state.to, state.to}) : Ok();
}

}  // namespace weightcast::agent
