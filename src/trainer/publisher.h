// One rank publishes its part of one version. Ranks work alone: they share a plan hash, an epoch
// and the catalog, which counts parts; there is no collective.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "catalog/catalog.h"
#include "layout/cells.h"
#include "layout/plan.h"
#include "os/world.h"
#include "store/store.h"
#include "tensor/hf_directory.h"
#include "trainer/baseline.h"
#include "trainer/rebuild.h"
#include "trainer/shard_set.h"

namespace weightcast::trainer {

struct PublishRequest {
  Epoch epoch;
  int64_t number = 0;
  std::string step_token;
  bool full = false;
  std::string store_url;
  std::map<std::string, std::string> labels;
  std::vector<catalog::SideFileRow> side_files;
  Duration staging_timeout = seconds(3600);
  std::optional<Duration> wait_ready;  // none: return after announcing
};

struct PublisherOptions {
  int threads = 0;                            // 0: all CPUs
  int64_t spool_bytes_max = 64 * kMiB;        // encoded bytes that wait for the upload, per object
  const tensor::HfDirectory* seed = nullptr;  // for a lost baseline, and for carried tensors
  OpenStore open_store;                       // of an older version, by its URL
  // Called once nothing reads the shards any more, so that they may change while bytes are still on
  // their way; not called where the publish fails before.
  std::function<void()> encoded;
};

// What one rank publishes: its share of a plan of a run, where it lies, and what it was last.
struct RankShare {
  const catalog::Run& run;
  const layout::Plan& plan;
  RankId rank;
  const ShardSet& shards;
  const layout::ChunkList& chunks;  // of the rank, in the run's tensor indices
  Baseline& baseline;
};

struct PublishReport {
  catalog::Version version;  // as last seen
  catalog::PublishStats stats;
  bool baseline_rebuilt = false;
  bool raw = false;           // announced without a baseline
  bool already = false;       // the number was READY, or this rank's announcement stood
  double seconds_diff = 0;    // gather, base digest (sum over threads / threads)
  double seconds_encode = 0;  // compare, encode, result digest (same)
  double seconds_stall = 0;   // until the last byte was in the spool: the trainer stands still
  double seconds_store = 0;   // from then until the objects were durable
  double seconds_announce = 0;
  double seconds_total = 0;
};

// Publishes a rank's share. The shards must not change until `encoded` is called, or it returns.
// `catalog` and `store` are shared by all ranks. A failed call is retried without harm: nothing of
// it is visible until announced, objects have new random keys, and the baseline advances only when
// the version is READY.
// Errors: kConflict (fenced, other number, READY with other content), kUnavailable,
// kDeadlineExceeded (not READY in time; the announcement stands), kDataLoss / kInvalidData (the
// version FAILED: why).
Result<PublishReport> PublishRank(os::World& world, catalog::Catalog& catalog, store::Store& store,
                                  const RankShare& share, const PublishRequest& request,
                                  const PublisherOptions& options);

// Brings a rank's baseline to the latest READY version, if there is one; where nothing can rebuild
// it, it is left at none. The shards are not read.
Status PrepareBase(os::World& world, catalog::Catalog& catalog, store::Store& store,
                   const RankShare& share, const PublisherOptions& options);

// Writes version.json, create-only; fine if it is there. Anyone may, once READY.
Status WriteVersionJson(catalog::Catalog& catalog, store::Store& store,
                        const catalog::Version& version);

// Waits until the version is READY (or beyond), by polling. Errors: kDeadlineExceeded,
// kDataLoss/kConflict if it FAILED.
Result<catalog::Version> WaitReady(os::World& world, catalog::Catalog& catalog,
                                   const VersionUid& uid, Duration timeout);

// Ranks of a plan that own something, ascending: those that must announce.
std::vector<int32_t> Participants(const layout::Plan& plan);

}  // namespace weightcast::trainer
