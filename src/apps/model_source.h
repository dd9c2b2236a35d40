// What `publish`, `convert` and friends are given: a Hugging Face directory, or Megatron's ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
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
};

struct ModelSource {
  layout::Plan plan;
  layout::Topology topology;
  std::vector<std::string> carried;  // names
  std::string side_files;            // directory of config, tokenizer, ...
  std::string shards;                // directory of the ranks, or "" for a Hugging Face directory

  // Opens only this rank's own file.
  Result<trainer::ShardSet> OpenShards(os::World& world, RankId rank) const;

 private:
  friend Result<ModelSource> OpenHfSource(os::World&, const std::string&, const SourceOptions&);
  std::shared_ptr<tensor::HfDirectory> directory_;
};

Result<ModelSource> OpenHfSource(os::World& world, const std::string& path,
                                 const SourceOptions& options);
// `config`: path of the model's config.json; "": DIR/../hf_source/config.json.
Result<ModelSource> OpenShardSource(os::World& world, const std::string& directory,
                                    const std::string& config, const SourceOptions& options);

// Tensors that match one of the patterns.
std::vector<std::string> CarriedNames(const tensor::Inventory& inventory,
                                      const std::vector<std::string>& patterns);

// A rank's chunks with tensor indices of the run's inventory (the plan's lacks carried tensors).
layout::ChunkList ChunksInRun(const tensor::Inventory& run, const layout::Plan& plan, RankId rank);

}  // namespace weightcast::apps
