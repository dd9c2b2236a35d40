// The pass over a rank's chunks: gather, digest, compare, encode, in parallel, written in order.
#pragma once

#include <map>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "layout/cells.h"
#include "os/world.h"
#include "trainer/baseline.h"
#include "trainer/part_stream.h"
#include "trainer/shard_set.h"

namespace weightcast::trainer {

struct EncodeJob {
  const catalog::Run& run;
  const layout::ChunkList& chunks;
  const ShardSet& shards;
  // At the base version, or at none: then every chunk goes without a base, and the baseline gets
  // the new bytes at once. Else the redo file gets what must change in it.
  Baseline& baseline;
  PartStream* delta = nullptr;  // null: do not write a delta
  PartStream* full = nullptr;   // null: do not write a full part
  int threads = 0;
};

struct EncodeResult {
  std::vector<catalog::TensorPartial> partials;
  int64_t elements = 0;
  int64_t changed_elements = 0;
  double seconds_diff = 0;
  double seconds_encode = 0;
};

// Errors: of the streams; nothing is committed.
Result<EncodeResult> EncodeChunks(os::World& world, const EncodeJob& job);

// Only the digests of what the shards hold now: next partials by tensor.
Result<std::map<int32_t, tensor::Partial>> DigestShards(const catalog::Run& run,
                                                        const layout::ChunkList& chunks,
                                                        const ShardSet& shards, int threads);

}  // namespace weightcast::trainer
