// What of a rank stands from version to version: run, plan, chunks, baseline. A trainer process
// makes one Job and publishes with it; the command line makes one for one version.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "layout/cells.h"
#include "layout/plan.h"
#include "os/world.h"
#include "store/store.h"
#include "tensor/hf_directory.h"
#include "trainer/baseline.h"
#include "trainer/publisher.h"
#include "trainer/shard_set.h"

namespace weightcast::trainer {

struct RunStart {
  std::string name;
  std::shared_ptr<const tensor::Inventory> inventory;  // of the trainer; for a run without a seed
  const tensor::HfDirectory* seed = nullptr;           // registered as version 0 if there is none
  std::vector<std::string> carried;                    // names of the seed's that nobody trains
  int threads = 0;
  std::function<void(int64_t)> progress;  // bytes of the seed digested so far
};
// The run, made if it is missing, with its version 0 if a seed is given. Every rank may call it.
// Errors: as OpenRun and RegisterSeed.
Result<catalog::Run> BeginRun(os::World& world, catalog::Catalog& catalog, store::Store& store,
                              const RunStart& start);

// The number after the run's latest READY version; 1 if there is none.
Result<int64_t> NextNumber(catalog::Catalog& catalog, const RunUid& run);

struct JobOptions {
  std::shared_ptr<const layout::Plan> plan;
  RankId rank;
  std::string baseline;                       // directory; each rank and plan has its own below it
  int threads = 0;                            // 0: all CPUs
  int64_t spool_bytes_max = 64 * kMiB;        // encoded bytes that wait for the upload, per object
  const tensor::HfDirectory* seed = nullptr;  // outlives the job
  OpenStore open_store;                       // of an older version, by its URL
};

// Not thread-safe: one call at a time. Catalog and store outlive it.
class Job {
 public:
  // Errors: as Baseline::Open; kInvalidArgument if the plan has no such rank.
  static Result<std::unique_ptr<Job>> Open(os::World& world, catalog::Catalog& catalog,
                                           store::Store& store, catalog::Run run,
                                           JobOptions options);

  const catalog::Run& run() const { return run_; }
  const layout::Plan& plan() const { return *options_.plan; }
  RankId rank() const { return options_.rank; }
  const layout::RankPlan& own() const { return plan().ranks[static_cast<size_t>(rank().value)]; }

  // As PublishRank. `encoded`, if set, is called once the shards may change again, at the latest
  // before it returns.
  Result<PublishReport> Publish(const ShardSet& shards, const PublishRequest& request,
                                const std::function<void()>& encoded = {});
  // Brings the baseline to the latest READY version ahead of the next publish, which would do it
  // while the trainer waits. Fine if there is none yet, or nothing to rebuild it from.
  Status PrepareBase();

 private:
  Job(os::World& world, catalog::Catalog& catalog, store::Store& store, catalog::Run run,
      layout::ChunkList chunks, Baseline baseline, JobOptions options);
  PublisherOptions publisher_options(const std::function<void()>& encoded) const;
  RankShare share(const ShardSet& shards);

  os::World& world_;
  catalog::Catalog& catalog_;
  store::Store& store_;
  const catalog::Run run_;
  const layout::ChunkList chunks_;
  Baseline baseline_;
  const JobOptions options_;
};

}  // namespace weightcast::trainer
