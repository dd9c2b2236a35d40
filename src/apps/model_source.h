// What `publish` is given: a Hugging Face directory, or Megatron's ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/mode.h"
#include "bridge/shard_dir.h"
#include "catalog/catalog.h"
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
  // Where topology.json does not say it; else told by the file of `rank`, or, in a process that
  // speaks for every rank (and is of the first stage, as a vision tower), by the file of one that
  // holds prediction modules.
  bridge::Spelling spelling;
  bool for_every_rank = false;
  bridge::ExpertLayout expert_layout = bridge::ExpertLayout::kAuto;
  bridge::Mode mode = bridge::Mode::kBridge;
  std::optional<int64_t> rank;  // as the user says it: refused if the layout has no such rank
};

struct ModelSource {
  std::shared_ptr<const layout::Plan> plan;
  layout::Topology topology;
  std::vector<std::string> carried;  // names
  std::string side_files;            // directory of config, tokenizer, ...
  int64_t vocab_rows = 0;            // as SourceOptions, once told
  bridge::Spelling spelling;         // the same

  // Opens only this rank's own file.
  Result<trainer::ShardSet> OpenShards(os::World& world, RankId rank) const;

  std::optional<tensor::HfDirectory> directory;  // a Hugging Face directory
  std::optional<bridge::ShardDir> shards;        // or Megatron's ranks
};

// What the tensors of a source are compared with: the run's own inventory, where the run is there
// (what is carried was decided when it began), else the seed's, if one is given.
SourceOptions ReferenceOf(const catalog::Run* run, const tensor::HfDirectory* seed,
                          std::vector<std::string> carry);

// One writer that holds whole canonical tensors. Errors: kConflict naming the difference to the
// reference. `name`: of the source, for messages.
Result<ModelSource> PlanForTensors(std::shared_ptr<const tensor::Inventory> inventory,
                                   const std::string& name, const SourceOptions& options);
// Megatron's ranks, known by their configs alone. Errors: as bridge::Compile.
Result<ModelSource> PlanForRanks(const bridge::HfConfig& model,
                                 const bridge::MegatronConfig& trainer,
                                 const SourceOptions& options);

Result<ModelSource> OpenHfSource(os::World& world, const std::string& path,
                                 const SourceOptions& options);
// `config`: path of the model's config.json; "": DIR/../hf_source/config.json.
Result<ModelSource> OpenShardSource(os::World& world, const std::string& directory,
                                    const std::string& config, const SourceOptions& options);

// Tensors that match one of the patterns. Errors: kInvalidArgument for a pattern without a match.
Result<std::vector<std::string>> CarriedNames(const tensor::Inventory& inventory,
                                              const std::vector<std::string>& patterns);

}  // namespace weightcast::apps
