// A lost baseline (restart, other layout), rebuilt by decoding every old chunk that overlaps the
// rank's own, each proven by its own base and result digests.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "catalog/catalog.h"
#include "layout/cells.h"
#include "os/world.h"
#include "store/store.h"
#include "tensor/hf_directory.h"
#include "trainer/baseline.h"
#include "transfer/fetchers.h"

namespace weightcast::trainer {

using OpenStore = transfer::OpenStore;

struct RebuildJob {
  const catalog::Run& run;
  const VersionUid& version;
  const layout::ChunkList& chunks;
  const tensor::HfDirectory* seed;  // may be null
  const OpenStore& open_store;
  int threads;  // 0: all CPUs
};

// Makes `baseline` the rank's share of the version.
// Errors: kUnavailable if neither the seed nor a full version can start the chain.
Status RebuildBaseline(os::World& world, catalog::Catalog& catalog, const RebuildJob& job,
                       Baseline* baseline);

}  // namespace weightcast::trainer
