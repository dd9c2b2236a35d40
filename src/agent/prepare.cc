#include "agent/prepare.h"

#include <algorithm>

#include "agent/image_dir.h"
#include "base/mutex.h"
#include "base/task_pool.h"

namespace weightcast::agent {
namespace {

// For manifest, directories and the rounding of files to blocks.
constexpr int64_t kSlackBytes = kMiB;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

bool IsHost(const Manifest& m) { return m.durability == Durability::kHost; }

JournalIdentity IdentityOf(const Manifest& from, const Manifest& to) {
  return {from.generation, to.generation, from.version, to.version,
          from.root,       to.root,       from.layout};
}

// The newest journals that are needed for a replay or wanted for going back.
void DropOldJournals(Manifest* manifest, int undo_kept) {
  std::vector<Step>& journals = manifest->journals;
  size_t kept = std::min(journals.size(), Size(std::max(0, undo_kept)));
  while (kept < journals.size() && IsHost(*manifest) &&
         journals[journals.size() - kept - 1].to > manifest->synced) {
    ++kept;
  }
  journals.erase(journals.begin(), journals.end() - static_cast<ptrdiff_t>(kept));
}

Result<int64_t> BytesOfJournals(os::Fs& fs, const std::string& image, const Manifest& manifest) {
  int64_t bytes = 0;
  for (const Step& step : manifest.journals) {
    const Result<os::Stat> stat = fs.StatPath(JournalPath(image, step));
    if (stat.ok()) bytes += stat->size;
  }
  return bytes;
}

// What the replay has proven already, else what a comparison says.
CellChange ChangeOf(const tensor::Inventory& inventory, const transfer::ReplayCell& cell,
                    const transfer::ReplayedCell& made, Comparison& scratch) {
  if (made.chunk != nullptr) {
    return {made.changed, made.chunk->base_digest, made.chunk->next_digest};
  }
  return scratch.Compare(inventory[Size(cell.tensor)].matrix(), cell.box, made.base, made.next);
}

}  // namespace

Manifest NextManifest(const Manifest& from, const Target& target, const JournalRules& rules,
                      const std::string& boot_id) {
  Manifest to = from;  // layout, weight files, kept journals
  to.generation = from.generation + 1;
  to.run = target.version.run;
  to.version = target.version.uid;
  to.number = target.version.number;
  to.root = target.version.root;
  to.durability = rules.durability;
  to.boot_id = boot_id;
  to.digests = target.digests;
  to.side_files.clear();
  for (const catalog::SideFileRow& row : target.version.side_files) {
    if (row.name != tensor::kIndexFile) to.side_files.push_back(row);
  }
  for (const catalog::SideFileRow& row : from.side_files) {
    if (row.name == tensor::kIndexFile) to.side_files.push_back(row);
  }
  std::ranges::sort(to.side_files, {}, &catalog::SideFileRow::name);
  to.undo = false;
  to.steps = {{from.generation, to.generation}};
  to.journals.push_back(to.steps.front());
  if (rules.durability == Durability::kHost) {
    // An image that was never synced is synced whole before its first durable step.
    if (!IsHost(from)) to.synced = from.generation;
    if (to.generation - to.synced >= std::max(1, rules.sync_every)) to.synced = to.generation;
  } else {
    to.synced = 0;
  }
  DropOldJournals(&to, rules.undo_kept);
  return to;
}

Manifest UndoneManifest(const Manifest& from, const Manifest& older, size_t undone,
                        const JournalRules& rules, const std::string& boot_id) {
  WC_CHECK(undone >= 1 && undone <= from.journals.size());
  Manifest to = older;
  to.generation = from.generation + 1;
  to.durability = rules.durability;
  to.boot_id = boot_id;
  to.undo = true;
  to.journals = from.journals;
  to.steps.clear();
  for (size_t i = 0; i < undone; ++i) {
    to.steps.push_back(to.journals.back());
    to.journals.pop_back();
  }
  // Going back always syncs: the journals that are left tell the whole story again.
  to.synced = rules.durability == Durability::kHost ? to.generation : 0;
  DropOldJournals(&to, rules.undo_kept);
  return to;
}

int64_t JournalBytesMax(const tensor::Inventory& inventory,
                        const std::vector<transfer::ReplayBatch>& batches) {
  int64_t bytes = kJournalFrameBytes;
  for (const transfer::ReplayBatch& batch : batches) {
    for (const transfer::ReplayCell& cell : batch.cells) {
      int64_t changed = 0;
      for (const transfer::ChainChunk& chunk : cell.chunks) changed += chunk.chunk->changed_units;
      const int unit_bytes = inventory[Size(cell.tensor)].matrix().unit_bytes;
      bytes += JournalCellBytesMax(cell.box.units(), unit_bytes, changed);
    }
  }
  return bytes;
}

Status MakeRoom(os::Fs& fs, const std::string& image, Manifest* manifest, int64_t bytes,
                const JournalRules& rules) {
  if (bytes > rules.bytes_max) {
    return Error{Code::kResourceExhausted, image + ": the journal may need " +
                                               std::to_string(bytes) + " bytes, the budget is " +
                                               std::to_string(rules.bytes_max)};
  }
  const int64_t kept = WC_TRY(BytesOfJournals(fs, image, *manifest));
  const int64_t free = WC_TRY(fs.FreeBytes(image));
  if (kept > 0 && (kept + bytes > rules.bytes_max || free < bytes + kSlackBytes)) {
    if (IsHost(*manifest)) {
      WC_TRY(SyncWeights(fs, image, *manifest, /*dotted=*/false));
      manifest->synced = manifest->generation;
    }
    manifest->journals.clear();
    WC_TRY(ReplaceManifest(fs, image, *manifest));
    WC_TRY(RemoveUnnamed(fs, image, *manifest));
  }
  const int64_t left = WC_TRY(fs.FreeBytes(image));
  if (left >= bytes + kSlackBytes) return Ok();
  return Error{Code::kResourceExhausted, image + ": the journal may need " +
                                             std::to_string(bytes + kSlackBytes) + " bytes, " +
                                             std::to_string(left) + " are free"};
}

Result<Prepared> WriteJournal(os::World& world, const PrepareRequest& request) {
  const tensor::Inventory& inventory = *request.inventory;
  const int64_t bytes_max = JournalBytesMax(inventory, request.batches);
  const auto writer = WC_TRY(JournalWriter::Create(
      world.fs, JournalPath(request.image, {request.from.generation, request.to.generation}),
      IdentityOf(request.from, request.to), request.inventory, bytes_max));

  const int threads = ThreadCount(request.threads);
  struct Worker {
    transfer::Chain::Scratch chain;
    Comparison compared;
    Bytes body;
    std::vector<tensor::Partial> gained;  // the journal has its own sums; see CheckSums
  };
  std::vector<Worker> workers(Size(threads));
  for (Worker& worker : workers) worker.gained.resize(inventory.size());
  int64_t total = 0;
  for (const transfer::ReplayBatch& batch : request.batches) total += batch.payload_bytes;
  Mutex mu;
  int64_t done = 0;
  const auto read = [&](const transfer::ReplayCell& cell) {
    return cell.run.Of(request.weights.tensor(Size(cell.tensor)));
  };
  const auto replay = [&](size_t item, int index) -> Status {
    Worker& worker = workers[Size(index)];
    if (request.tick) request.tick();
    WC_TRY(request.chain.Replay(
        request.batches[item], worker.chain, read,
        [&](const transfer::ReplayCell& cell, const transfer::ReplayedCell& made) {
          return writer->Add(cell.tensor, cell.cell, made.base, made.next,
                             ChangeOf(inventory, cell, made, worker.compared), &worker.body);
        },
        &worker.gained));
    MutexLock lock(mu);
    done += request.batches[item].payload_bytes;
    return request.progress ? request.progress(done, total) : Ok();
  };
  WC_TRY(ParallelFor(request.batches.size(), threads, replay));
  WC_TRY(writer->Finish(IsHost(request.to)));
  return Prepared{writer->bytes(), writer->changed_units()};
}

}  // namespace weightcast::agent
