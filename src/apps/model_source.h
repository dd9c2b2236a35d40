// What `publish` is given: a Hugging Face directory, or Megatron's ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/shard_dir.h"
#include "layout/cells.h"
#include "layout/plan.h"
#include "layout/topology.h"
#include "os/world.h"
#include "tensor/hf_directory.h"
#include "trainer/shard_set.h"

namespace weightcast::apps {

struct SourceOptions {
  // Inventory that plan and carried tensors together must equal; null: the plan's own.
  std::shared_ptr<const tensor::Inventory> reference;
  std::vector<std::string> carry;  // patterns of reference tensors that the trainer does not hold
  // Rows of the embedding over all tensor ranks, padding included. 0: told by the file of `rank` if
  // it is given and holds some of them, else by the trainer's config.
  int64_t vocab_rows = 0;
  std::optional<int64_t> rank;  // as the user says it: refused if the layout has no such rank
};

struct ModelSource {
  std::shared_ptr<const layout::Plan> plan;
  layout::Topology topology;
  std::vector<std::string> carried;  // names
  std::string side_files;            // directory of config, tokenizer, ...
  int64_t vocab_rows = 0;            // as SourceOptions, once told

  // Opens only this rank's own file.
  Result<trainer::ShardSet> OpenShards(os::World& world, RankId rank) const;

  std::optional<tensor::HfDirectory> directory;  // a Hugging Face directory
  std::optional<bridge::ShardDir> shards;        // or Megatron's ranks
};

Result<ModelSource> OpenHfSource(os::World& world, const std::string& path,
                                 const SourceOptions& options);
// `config`: path of the model's config.json; "": DIR/../hf_source/config.json.
Result<ModelSource> OpenShardSource(os::World& world, const std::string& directory,
                                    const std::string& config, const SourceOptions& options);

// Tensors that match one of the patterns. Errors: kInvalidArgument for a pattern without a match.
Result<std::vector<std::string>> CarriedNames(const tensor::Inventory& inventory,
                                              const std::vector<std::string>& patterns);

// A rank's chunks with tensor indices of the run's inventory (the plan's lacks carried tensors).
layout::ChunkList ChunksInRun(const tensor::Inventory& run, const layout::Plan& plan, RankId rank);

}  // namespace weightcast::apps
