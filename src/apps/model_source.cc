#include "apps/model_source.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "bridge/compile_plan.h"
#include "bridge/families/families.h"

namespace weightcast::apps {
namespace {

// A plan over `inventory` without the carried tensors.
Result<std::shared_ptr<const tensor::Inventory>> Without(const tensor::Inventory& inventory,
                                                         const std::vector<std::string>& carried) {
  const std::set<std::string> names(carried.begin(), carried.end());
  std::vector<tensor::TensorSpec> kept;
  for (const tensor::TensorSpec& spec : inventory.tensors()) {
    if (!names.contains(spec.name)) kept.push_back(spec);
  }
  return std::make_shared<const tensor::Inventory>(
      WC_TRY(tensor::Inventory::Make(std::move(kept))));
}

// What a rank's own shard says of the padded vocabulary; 0 if it holds none of it.
Result<int64_t> VocabRowsOfRank(os::World& world, const bridge::ShardDir& dir, RankId rank) {
  const bridge::Family& family = *WC_TRY(bridge::FindFamily(dir.model));
  const bridge::ShardFile file = WC_TRY(bridge::ShardFile::Open(world.fs, dir.weight_path(rank)));
  return bridge::VocabRowsOf(family, dir.trainer, file.specs());
}

}  // namespace

Result<trainer::ShardSet> ModelSource::OpenShards(os::World& world, RankId rank) const {
  const layout::RankPlan& own = plan->ranks[static_cast<size_t>(rank.value)];
  if (directory) return trainer::ShardSet::FromDirectory(world.fs, *directory, own);
  WC_TRY(bridge::CheckRecordOf(world.fs, *shards, rank));
  return trainer::ShardSet::FromFile(
      std::make_shared<const bridge::ShardFile>(
          WC_TRY(bridge::ShardFile::Open(world.fs, shards->weight_path(rank)))),
      own, rank);
}

Result<ModelSource> OpenHfSource(os::World& world, const std::string& path,
                                 const SourceOptions& options) {
  ModelSource source;
  source.directory = WC_TRY(tensor::HfDirectory::Open(world.fs, path).With(path));
  source.side_files = path;
  std::shared_ptr<const tensor::Inventory> expected = options.reference;
  if (expected != nullptr && !options.carry.empty()) {
    source.carried = WC_TRY(CarriedNames(*expected, options.carry));
    expected = WC_TRY(Without(*expected, source.carried));
  }
  const tensor::Inventory& found = *source.directory->inventory();
  if (expected != nullptr && !(*expected == found)) {
    return Error{Code::kConflict, path + ": other tensors than the run's: " +
                                      tensor::DifferenceText(*expected, found)};
  }
  source.plan =
      std::make_shared<const layout::Plan>(layout::IdentityPlan(source.directory->inventory()));
  return source;
}

Result<ModelSource> OpenShardSource(os::World& world, const std::string& directory,
                                    const std::string& config, const SourceOptions& options) {
  ModelSource source;
  source.shards = WC_TRY(bridge::OpenShardDir(world.fs, directory, config));
  source.side_files = os::ParentPath(source.shards->config_path);
  source.topology = source.shards->trainer.topology;
  bridge::CompileOptions compile{.reference = options.reference, .carry = options.carry};
  compile.vocab_rows = options.vocab_rows;
  if (options.rank && *options.rank >= source.topology.world) {
    return Error{Code::kInvalidArgument, "--rank " + std::to_string(*options.rank) +
                                             ": the layout has " +
                                             std::to_string(source.topology.world) + " ranks"};
  }
  if (compile.vocab_rows == 0 && options.rank) {
    compile.vocab_rows =
        WC_TRY(VocabRowsOfRank(world, *source.shards, RankId{static_cast<int32_t>(*options.rank)}));
  }
  const bridge::CompiledPlan compiled = WC_TRY(
      bridge::CompilePlan(source.shards->model, source.shards->trainer, compile).With(directory));
  source.vocab_rows = compile.vocab_rows;
  source.plan = compiled.plan;
  source.carried = compiled.carried;
  return source;
}

Result<std::vector<std::string>> CarriedNames(const tensor::Inventory& inventory,
                                              const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  for (const std::string& pattern : patterns) {
    const size_t before = names.size();
    for (const tensor::TensorSpec& spec : inventory.tensors()) {
      if (MatchesGlob(pattern, spec.name)) names.insert(spec.name);
    }
    if (names.size() == before) {
      return Error{Code::kInvalidArgument,
                   "--carry " + Quoted(pattern) + " matches no (further) tensor"};
    }
  }
  return std::vector<std::string>(names.begin(), names.end());
}

layout::ChunkList ChunksInRun(const tensor::Inventory& run, const layout::Plan& plan, RankId rank) {
  layout::ChunkList list =
      layout::CutIntoChunks(*plan.inventory, plan.ranks[static_cast<size_t>(rank.value)]);
  // Both inventories are sorted by name: the order of the chunks stays.
  for (layout::Chunk& chunk : list.chunks) {
    const int64_t index = run.Find((*plan.inventory)[static_cast<size_t>(chunk.tensor)].name);
    WC_CHECK(index >= 0);
    chunk.tensor = static_cast<int32_t>(index);
  }
  return list;
}

}  // namespace weightcast::apps
