#include "trainer/rebuild.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/log.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "layout/gather.h"
#include "transfer/chain.h"
#include "transfer/fetchers.h"

namespace weightcast::trainer {
namespace {

// The rank's chunks in one cell.
using ChunkRange = std::pair<size_t, size_t>;

ChunkRange ChunksInCell(const layout::ChunkList& chunks, int32_t tensor, int64_t cell) {
  const auto key = [](const layout::Chunk& c) { return std::pair(c.tensor, c.cell); };
  const auto [begin, end] =
      std::ranges::equal_range(chunks.chunks, std::pair(tensor, cell), {}, key);
  return {static_cast<size_t>(begin - chunks.chunks.begin()),
          static_cast<size_t>(end - chunks.chunks.begin())};
}

Sha256Digest HashOfShare(const catalog::Run& run, const layout::ChunkList& chunks,
                         const Baseline& baseline) {
  std::map<int32_t, tensor::Partial> sums;
  for (const layout::Chunk& chunk : chunks.chunks) {
    const tensor::Matrix matrix = (*run.inventory)[static_cast<size_t>(chunk.tensor)].matrix();
    const int64_t units = chunk.box.units();
    sums[chunk.tensor] +=
        {tensor::DigestBox(matrix, chunk.box, baseline.chunk(chunk, units * matrix.unit_bytes)),
         units};
  }
  const std::vector<std::pair<int32_t, tensor::Partial>> sorted(sums.begin(), sums.end());
  return PartialsHash(sorted);
}

// The root of the seed checkpoint that the run began from, if it began from one: a fork's version 0
// is a version of another run, and so on back.
Result<std::optional<Root>> SeedRoot(catalog::Catalog& catalog, const catalog::Run& run) {
  const Result<catalog::Version> zero = catalog.FindVersion(run.uid, "0");
  if (!zero.ok()) {
    if (zero.error().code == Code::kNotFound) return std::optional<Root>();
    return zero.error();
  }
  catalog::Version version = *zero;
  while (!version.base.empty()) version = WC_TRY(catalog.GetVersion(version.base));
  if (version.kind != catalog::VersionKind::kSeed) return std::optional<Root>();
  return std::optional(version.root);
}

// Fills the baseline from where the plan starts, then replays.
class Rebuild {
 public:
  Rebuild(os::World& world, const RebuildJob& job, const catalog::ReplayPlan& plan,
          Baseline* baseline)
      : world_(world),
        job_(job),
        plan_(plan),
        inventory_(*job.run.inventory),
        baseline_(baseline) {}

  Status Run() {
    if (plan_.start == catalog::ReplayStart::kSeed) WC_TRY(CopySeed());
    transfer::Fetchers fetchers(world_, job_.open_store);
    const transfer::Chain chain = WC_TRY(transfer::Chain::Load(
        inventory_, plan_, [&](const catalog::Version& v) { return fetchers.For(v); }));
    return Replay(chain);
  }

 private:
  tensor::Matrix MatrixOf(int32_t tensor) const {
    return inventory_[static_cast<size_t>(tensor)].matrix();
  }

  // What no delta changes is the seed's; the changed cells are written again by the replay.
  Status CopySeed() {
    WC_CHECK(job_.seed != nullptr);
    seed_ = std::make_unique<tensor::MappedWeights>(
        WC_TRY(tensor::MappedWeights::Map(world_.fs, *job_.seed, /*writable=*/false)));
    return ParallelFor(job_.chunks.chunks.size(), job_.threads, [&](size_t item, int) -> Status {
      const layout::Chunk& chunk = job_.chunks.chunks[item];
      const tensor::Matrix matrix = MatrixOf(chunk.tensor);
      Bytes packed(static_cast<size_t>(chunk.box.units() * matrix.unit_bytes));
      layout::GatherBox(matrix, chunk.box, seed_->tensor(static_cast<size_t>(chunk.tensor)),
                        packed);
      baseline_->Write(chunk.at, packed);
      return Ok();
    });
  }

  Status Replay(const transfer::Chain& chain) {
    const int workers = ThreadCount(job_.threads);
    const std::vector<transfer::ReplayBatch> batches =
        chain.Batches(8 * kMiB, workers, [&](int32_t tensor, int64_t cell) {
          const auto [begin, end] = ChunksInCell(job_.chunks, tensor, cell);
          return begin != end;
        });
    const auto read = [&](const transfer::ReplayCell& cell) {
      return cell.run.Of(seed_->tensor(static_cast<size_t>(cell.tensor)));
    };
    const auto write = [&](const transfer::ReplayCell& cell,
                           const transfer::ReplayedCell& made) -> Status {
      const auto [begin, end] = ChunksInCell(job_.chunks, cell.tensor, cell.cell);
      const tensor::Matrix matrix = MatrixOf(cell.tensor);
      for (size_t i = begin; i < end; ++i) {
        const layout::Chunk& chunk = job_.chunks.chunks[i];
        Bytes packed(static_cast<size_t>(chunk.box.units() * matrix.unit_bytes));
        layout::GatherFromFrame(matrix, chunk.box, cell.box, made.next, packed);
        baseline_->Write(chunk.at, packed);
      }
      return Ok();
    };
    std::vector<transfer::Chain::Scratch> scratch(static_cast<size_t>(workers));
    return ParallelFor(batches.size(), workers, [&](size_t item, int worker) -> Status {
      std::vector<tensor::Partial> gained(inventory_.size());
      return chain.Replay(batches[item], scratch[static_cast<size_t>(worker)], read, write,
                          &gained);
    });
  }

  os::World& world_;
  const RebuildJob& job_;
  const catalog::ReplayPlan& plan_;
  const tensor::Inventory& inventory_;
  Baseline* const baseline_;
  std::unique_ptr<tensor::MappedWeights> seed_;
};

}  // namespace

Status RebuildBaseline(os::World& world, catalog::Catalog& catalog, const RebuildJob& job,
                       Baseline* baseline) {
  catalog::ReplayRequest request{
      .target = job.version, .have = {}, .seed = {}, .holder = "baseline"};
  if (job.seed != nullptr) {
    // Claimed, not proven, here: what is taken from the seed is proven chunk by chunk where a delta
    // reads it, and as a whole by the base partials of the announcement.
    request.seed = WC_TRY(SeedRoot(catalog, job.run));
  }
  const catalog::ReplayPlan plan = WC_TRY(catalog.PlanReplay(request));
  WC_TRY(baseline->BeginRebuild());
  const Status rebuilt = Rebuild(world, job, plan, baseline).Run();
  WC_TRY(catalog.EndLease(plan.lease));
  WC_TRY(rebuilt);
  Log(LogLevel::kInfo, "baseline rebuilt", {{"version", job.version.brief()}});
  return baseline->SetVersion(job.version, HashOfShare(job.run, job.chunks, *baseline));
}

}  // namespace weightcast::trainer
