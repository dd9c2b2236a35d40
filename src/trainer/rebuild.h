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

// Makes `baseline` the rank's share of `version`. `seed` may be null.
// Errors: kUnavailable if neither the seed nor a full version can start the chain.
Status RebuildBaseline(os::World& world, catalog::Catalog& catalog, const OpenStore& open_store,
                       const tensor::HfDirectory* seed, const catalog::Run& run,
                       const VersionUid& version, const layout::ChunkList& chunks, int threads,
                       Baseline* baseline);

}  // namespace weightcast::trainer
