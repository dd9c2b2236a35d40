#include "apps/model_source.h"

#include <algorithm>
#include <set>

#include "base/text.h"

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

// What a rank's own shard shows, where nobody says it: the rows of the padded vocabulary, the
// spelling of prediction modules and of the vision tower.
Status LearnFromShards(os::World& world, const bridge::ShardDir& dir, SourceOptions* told) {
  if (!told->rank) return Ok();
  const RankId rank{static_cast<int32_t>(*told->rank)};
  const auto file = WC_TRY(bridge::ShardFile::Open(world.fs, dir.weight_path(rank)));
  if (told->vocab_rows == 0) {
    told->vocab_rows =
        WC_TRY(bridge::VocabRowsOf(told->mode, dir.model, dir.trainer, file.specs()));
  }
  told->spelling.Learn(file.specs());
  if (!told->for_every_rank || dir.trainer.mtp_layers == 0 || told->spelling.mtp_known()) {
    return Ok();
  }
  const layout::Topology& t = dir.trainer.topology;
  const RankId predicts{t.MtpAt().stage * (t.world / t.pp)};
  told->spelling.Learn(
      WC_TRY(bridge::ShardFile::Open(world.fs, dir.weight_path(predicts))).specs());
  return Ok();
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

SourceOptions ReferenceOf(const catalog::Run* run, const tensor::HfDirectory* seed,
                          std::vector<std::string> carry) {
  SourceOptions options;
  if (run != nullptr) {
    options.reference = run->inventory;
    for (const int32_t index : run->carried) {
      options.carry.push_back((*run->inventory)[static_cast<size_t>(index)].name);
    }
  } else if (seed != nullptr) {
    options.reference = seed->inventory();
    options.carry = std::move(carry);
  }
  return options;
}

Result<ModelSource> PlanForTensors(std::shared_ptr<const tensor::Inventory> inventory,
                                   const std::string& name, const SourceOptions& options) {
  ModelSource source;
  std::shared_ptr<const tensor::Inventory> expected = options.reference;
  if (expected != nullptr && !options.carry.empty()) {
    source.carried = WC_TRY(CarriedNames(*expected, options.carry));
    expected = WC_TRY(Without(*expected, source.carried));
  }
  if (expected != nullptr && !(*expected == *inventory)) {
    return Error{Code::kConflict, name + ": other tensors than the run's: " +
                                      tensor::DifferenceText(*expected, *inventory)};
  }
  source.plan = std::make_shared<const layout::Plan>(layout::IdentityPlan(std::move(inventory)));
  return source;
}

Result<ModelSource> PlanForRanks(const bridge::HfConfig& model,
                                 const bridge::MegatronConfig& trainer,
                                 const SourceOptions& options) {
  bridge::CompileOptions compile{.reference = options.reference, .carry = options.carry};
  compile.vocab_rows = options.vocab_rows;
  compile.expert_layout = options.expert_layout;
  bridge::MegatronConfig spelled = trainer;
  spelled.spelling = trainer.spelling.Or(options.spelling);
  const bridge::CompiledPlan compiled =
      WC_TRY(bridge::Compile(options.mode, model, spelled, compile));
  ModelSource source;
  source.topology = trainer.topology;
  source.spelling = spelled.spelling;
  source.vocab_rows = options.vocab_rows;
  source.plan = compiled.plan;
  source.carried = compiled.carried;
  return source;
}

Result<ModelSource> OpenHfSource(os::World& world, const std::string& path,
                                 const SourceOptions& options) {
  tensor::HfDirectory directory = WC_TRY(tensor::HfDirectory::Open(world.fs, path).With(path));
  ModelSource source = WC_TRY(PlanForTensors(directory.inventory(), path, options));
  source.directory = std::move(directory);
  source.side_files = path;
  return source;
}

Result<ModelSource> OpenShardSource(os::World& world, const std::string& directory,
                                    const std::string& config, const SourceOptions& options) {
  bridge::ShardDir shards = WC_TRY(bridge::OpenShardDir(world.fs, directory, config));
  const int32_t world_size = shards.trainer.topology.world;
  if (options.rank && *options.rank >= world_size) {
    return Error{Code::kInvalidArgument, "--rank " + std::to_string(*options.rank) +
                                             ": the layout has " + std::to_string(world_size) +
                                             " ranks"};
  }
  SourceOptions told = options;
  told.spelling = shards.trainer.spelling.Or(options.spelling);
  WC_TRY(LearnFromShards(world, shards, &told));
  ModelSource source = WC_TRY(PlanForRanks(shards.model, shards.trainer, told).With(directory));
  source.side_files = os::ParentPath(shards.config_path);
  source.shards = std::move(shards);
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

}  // namespace weightcast::apps
