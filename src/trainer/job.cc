#include "trainer/job.h"

#include "trainer/seed.h"

namespace weightcast::trainer {
namespace {

// A rank's chunks with tensor indices of the run's inventory (the plan's lacks carried tensors).
layout::ChunkList ChunksInRun(const tensor::Inventory& run, const layout::Plan& plan,
                              const layout::RankPlan& own) {
  layout::ChunkList list = layout::CutIntoChunks(*plan.inventory, own);
  // Both inventories are sorted by name: the order of the chunks stays.
  for (layout::Chunk& chunk : list.chunks) {
    const int64_t index = run.Find((*plan.inventory)[static_cast<size_t>(chunk.tensor)].name);
    WC_CHECK(index >= 0);
    chunk.tensor = static_cast<int32_t>(index);
  }
  return list;
}

}  // namespace

Result<catalog::Run> BeginRun(os::World& world, catalog::Catalog& catalog, store::Store& store,
                              const RunStart& start) {
  Result<catalog::Run> existing = catalog.FindRun(start.name);
  if (!existing.ok() && existing.error().code != Code::kNotFound) return existing;
  if (existing.ok() && catalog.FindVersion(existing->uid, "0").ok()) return existing;
  if (start.seed != nullptr) {
    return WC_TRY(RegisterSeed(world, catalog, store, *start.seed,
                               {.run_name = start.name,
                                .carried = start.carried,
                                .threads = start.threads,
                                .progress = start.progress}))
        .run;
  }
  if (existing.ok()) return existing;
  return catalog.OpenRun({.name = start.name, .inventory = start.inventory, .carried = {}});
}

Result<int64_t> NextNumber(catalog::Catalog& catalog, const RunUid& run) {
  const Result<catalog::Version> latest = catalog.FindVersion(run, "latest");
  if (latest.ok()) return latest->number + 1;
  if (latest.error().code == Code::kNotFound) return 1;
  return latest.error();
}

Result<std::unique_ptr<Job>> Job::Open(os::World& world, catalog::Catalog& catalog,
                                       store::Store& store, catalog::Run run, JobOptions options) {
  const layout::Plan& plan = *options.plan;
  const auto rank = static_cast<size_t>(options.rank.value);
  if (options.rank.value < 0 || rank >= plan.ranks.size()) {
    return Error{Code::kInvalidArgument, "rank " + std::to_string(options.rank.value) +
                                             ": the layout has " +
                                             std::to_string(plan.ranks.size()) + " ranks"};
  }
  layout::ChunkList chunks = ChunksInRun(*run.inventory, plan, plan.ranks[rank]);
  const PlanHash hash = plan.Hash();
  const std::string number = std::to_string(rank);
  Baseline baseline =
      WC_TRY(Baseline::Open(world, options.baseline + "/" + hash.brief() + "-r" + number,
                            run.uid.hex() + " " + hash.hex() + " " + number, chunks));
  return std::unique_ptr<Job>(new Job(world, catalog, store, std::move(run), std::move(chunks),
                                      std::move(baseline), std::move(options)));
}

Job::Job(os::World& world, catalog::Catalog& catalog, store::Store& store, catalog::Run run,
         layout::ChunkList chunks, Baseline baseline, JobOptions options)
    : world_(world),
      catalog_(catalog),
      store_(store),
      run_(std::move(run)),
      chunks_(std::move(chunks)),
      baseline_(std::move(baseline)),
      options_(std::move(options)) {}

PublisherOptions Job::publisher_options(const std::function<void()>& encoded) const {
  return {.threads = options_.threads,
          .spool_bytes_max = options_.spool_bytes_max,
          .seed = options_.seed,
          .open_store = options_.open_store,
          .encoded = encoded};
}

RankShare Job::share(const ShardSet& shards) {
  return {run_, plan(), rank(), shards, chunks_, baseline_};
}

Result<PublishReport> Job::Publish(const ShardSet& shards, const PublishRequest& request,
                                   const std::function<void()>& encoded) {
  return PublishRank(world_, catalog_, store_, share(shards), request, publisher_options(encoded));
}

Status Job::PrepareBase() {
  const ShardSet none({});
  return trainer::PrepareBase(world_, catalog_, store_, share(none), publisher_options({}));
}

}  // namespace weightcast::trainer
