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

}  // namespace

Status RebuildBaseline(os::World& world, catalog::Catalog& catalog, const OpenStore& open_store,
                       const tensor::HfDirectory* seed, const catalog::Run& run,
                       const VersionUid& version, const layout::ChunkList& chunks, int threads,
                       Baseline* baseline) {
  catalog::ReplayRequest request{.target = version, .have = {}, .seed = {}, .holder = "baseline"};
  if (seed != nullptr) {
    // Claimed, not proven, here: what is taken from the seed is proven chunk by chunk where a delta
    // reads it, and as a whole by the base partials of the announcement.
    request.seed = WC_TRY(SeedRoot(catalog, run));
  }
  const catalog::ReplayPlan plan = WC_TRY(catalog.PlanReplay(request));
  WC_TRY(baseline->BeginRebuild());

  const auto rebuild = [&]() -> Status {
    transfer::Fetchers fetchers(world, open_store);
    const transfer::Chain chain = WC_TRY(transfer::Chain::Load(
        *run.inventory, plan, [&](const catalog::Version& v) { return fetchers.For(v); }));
    std::unique_ptr<tensor::MappedWeights> seed_weights;
    if (plan.start == catalog::ReplayStart::kSeed) {
      WC_CHECK(seed != nullptr);
      seed_weights = std::make_unique<tensor::MappedWeights>(
          WC_TRY(tensor::MappedWeights::Map(world.fs, *seed, /*writable=*/false)));
      // What no delta changes is the seed's; the changed cells are written again below.
      for (const layout::Chunk& chunk : chunks.chunks) {
        const auto index = static_cast<size_t>(chunk.tensor);
        const tensor::Matrix matrix = (*run.inventory)[index].matrix();
        Bytes packed(static_cast<size_t>(chunk.box.units() * matrix.unit_bytes));
        layout::GatherBox(matrix, chunk.box, seed_weights->tensor(index), packed);
        baseline->Write(chunk.at, packed);
      }
    }
    const int workers = ThreadCount(threads);
    const std::vector<transfer::ReplayBatch> batches =
        chain.Batches(8 * kMiB, workers, [&](int32_t tensor, int64_t cell) {
          const auto [begin, end] = ChunksInCell(chunks, tensor, cell);
          return begin != end;
        });
    std::vector<transfer::Chain::Scratch> scratch(static_cast<size_t>(workers));
    return ParallelFor(batches.size(), workers, [&](size_t item, int worker) -> Status {
      std::vector<tensor::Partial> gained(run.inventory->size());
      return chain.Replay(
          batches[item], scratch[static_cast<size_t>(worker)],
          [&](const transfer::ReplayCell& cell, MutableByteSpan packed) -> Status {
            const auto index = static_cast<size_t>(cell.tensor);
            layout::GatherBox((*run.inventory)[index].matrix(), cell.box,
                              seed_weights->tensor(index), packed);
            return Ok();
          },
          [&](const transfer::ReplayCell& cell, ByteSpan, ByteSpan next) -> Status {
            const auto [begin, end] = ChunksInCell(chunks, cell.tensor, cell.cell);
            const tensor::Matrix matrix =
                (*run.inventory)[static_cast<size_t>(cell.tensor)].matrix();
            for (size_t i = begin; i < end; ++i) {
              const layout::Chunk& chunk = chunks.chunks[i];
              Bytes packed(static_cast<size_t>(chunk.box.units() * matrix.unit_bytes));
              layout::GatherFromFrame(matrix, chunk.box, cell.box, next, packed);
              baseline->Write(chunk.at, packed);
            }
            return Ok();
          },
          &gained);
    });
  };
  const Status rebuilt = rebuild();
  WC_TRY(catalog.EndLease(plan.lease));
  WC_TRY(rebuilt);
  Log(LogLevel::kInfo, "baseline rebuilt", {{"version", version.brief()}});
  return baseline->SetVersion(version, HashOfShare(run, chunks, *baseline));
}

}  // namespace weightcast::trainer
