#include "apps/toy_model.h"

#include <algorithm>

#include "base/hash.h"
#include "base/json.h"
#include "base/task_pool.h"
#include "tensor/safetensors.h"

namespace weightcast::apps {
namespace {

using tensor::TensorSpec;

uint64_t SeedOf(uint64_t seed, const std::string& name) { return Xxh3(AsBytes(name)) ^ seed; }

ByteSpan BytesOf(const std::vector<uint16_t>& weights) {
  return {reinterpret_cast<const uint8_t*>(weights.data()), 2 * weights.size()};
}

// Writes one safetensors file whose tensors are made one at a time, in parallel.
Status WriteWeights(os::World& world, const std::vector<TensorSpec>& specs, const std::string& path,
                    const std::function<std::vector<uint16_t>(const TensorSpec&)>& make) {
  tensor::SafetensorsHeader header;
  const Bytes head = WC_TRY(tensor::MakeSafetensorsHeader(specs, {{"format", "pt"}}, &header));
  const std::string temporary = path + ".tmp";
  const std::unique_ptr<os::File> file = WC_TRY(world.fs.OpenFile(temporary, os::Open::kCreate));
  WC_TRY(file->Allocate(header.file_bytes));
  WC_TRY(file->Write(0, head));
  WC_TRY(ParallelFor(header.tensors.size(), 0, [&](size_t i, int) -> Status {
    const std::vector<uint16_t> weights = make(header.tensors[i].spec);
    return file->Write(header.tensors[i].offset, BytesOf(weights));
  }));
  return world.fs.Rename(temporary, path);
}

Status WriteText(os::World& world, const std::string& path, const Json& document) {
  return world.fs.WriteAtomically(path, AsBytes(document.dump(2)), /*durable=*/false);
}

}  // namespace

Status MakeToyModel(os::World& world, const ToyDims& dims, uint64_t seed,
                    const std::string& directory) {
  WC_TRY(world.fs.MakeDirectories(directory));
  WC_TRY(world.fs.WriteAtomically(os::JoinPath(directory, "config.json"),
                                  AsBytes(bridge::ExampleConfig(dims)), /*durable=*/false));
  return WriteWeights(world, bridge::ExampleTensors(dims),
                      os::JoinPath(directory, tensor::kSingleWeightFile),
                      [&](const TensorSpec& spec) {
                        const delta::AdamOptions options{.seed = SeedOf(seed, spec.name)};
                        return delta::AdamSim(options, static_cast<size_t>(spec.units())).weights();
                      });
}

Status StepToyModel(os::World& world, const std::string& like, int steps, float learning_rate,
                    uint64_t seed, const std::string& directory) {
  const tensor::HfDirectory source = WC_TRY(tensor::HfDirectory::Open(world.fs, like));
  const tensor::MappedWeights weights =
      WC_TRY(tensor::MappedWeights::Map(world.fs, source, /*writable=*/false));
  WC_TRY(world.fs.MakeDirectories(directory));
  const Bytes config = WC_TRY(world.fs.ReadAll(os::JoinPath(like, "config.json"), kMiB));
  WC_TRY(world.fs.WriteAtomically(os::JoinPath(directory, "config.json"), config, false));
  return WriteWeights(
      world, source.inventory()->tensors(), os::JoinPath(directory, tensor::kSingleWeightFile),
      [&](const TensorSpec& spec) {
        const auto index = static_cast<size_t>(source.inventory()->Find(spec.name));
        std::vector<uint16_t> start(static_cast<size_t>(spec.units()));
        std::memcpy(start.data(), weights.tensor(index).data(), 2 * start.size());
        delta::AdamSim optimizer(
            {.seed = SeedOf(seed, spec.name), .learning_rate = learning_rate, .settled = true},
            start);
        for (int step = 0; step < steps; ++step) optimizer.Step();
        return optimizer.weights();
      });
}

Result<ToyRank> ToyRank::Load(os::World& world, const layout::Plan& plan,
                              const layout::Topology& topology, int32_t rank,
                              const std::string& checkpoint, float learning_rate) {
  const tensor::HfDirectory source = WC_TRY(tensor::HfDirectory::Open(world.fs, checkpoint));
  const tensor::MappedWeights weights =
      WC_TRY(tensor::MappedWeights::Map(world.fs, source, /*writable=*/false));
  ToyRank out(world, rank);
  const layout::RankPlan& own = plan.ranks[static_cast<size_t>(rank)];
  out.params_ = own.params;
  const layout::Coordinates here = topology.At(rank);

  for (const layout::Param& param : own.params) {
    const TensorSpec spec{param.key, param.dtype, param.shape};
    std::vector<uint16_t> shard(static_cast<size_t>(spec.units()));
    // Slices of this parameter are listed at their owner; a replica is filled from the owner's
    // list.
    std::vector<int32_t> owners;
    for (int32_t other = 0; other < topology.world; ++other) {
      const layout::Coordinates there = topology.At(other);
      if (there.pp != here.pp) continue;
      const layout::RankPlan& peer = plan.ranks[static_cast<size_t>(other)];
      const bool owns = std::ranges::any_of(peer.slices, [&](const layout::Slice& slice) {
        return peer.params[static_cast<size_t>(slice.param)].key == param.key;
      });
      if (owns) owners.push_back(other);
    }
    WC_CHECK(!owners.empty());
    const bool replicated = std::ranges::find(owners, rank) == owners.end() || owners.size() == 1;
    const int32_t from = replicated ? owners.front() : rank;
    const layout::RankPlan& peer = plan.ranks[static_cast<size_t>(from)];
    for (const layout::Slice& slice : peer.slices) {
      if (peer.params[static_cast<size_t>(slice.param)].key != param.key) continue;
      const auto index = static_cast<size_t>(
          source.inventory()->Find((*plan.inventory)[static_cast<size_t>(slice.tensor)].name));
      const ByteSpan canonical = weights.tensor(index);
      const int64_t cols = (*plan.inventory)[static_cast<size_t>(slice.tensor)].matrix().cols;
      for (int64_t i = 0; i < slice.box.rows; ++i) {
        for (int64_t j = 0; j < slice.box.cols; ++j) {
          const int64_t unit = (slice.box.row + i * slice.box.row_step) * cols + slice.box.col +
                               j * slice.box.col_step;
          const int64_t at = slice.source + i * slice.row_stride + j * slice.col_stride;
          std::memcpy(&shard[static_cast<size_t>(at)], canonical.data() + 2 * unit, 2);
        }
      }
    }
    // Replicas take the same steps; shards of one parameter take different ones.
    const std::string stream = param.key + "/" + std::to_string(here.pp) + "/" +
                               (replicated ? "all" : std::to_string(here.tp));
    out.optimizers_.emplace_back(
        delta::AdamOptions{.seed = SeedOf(1, stream), .learning_rate = learning_rate}, shard);
  }
  return out;
}

void ToyRank::Step() {
  for (delta::AdamSim& optimizer : optimizers_) optimizer.Step();
}

Status ToyRank::Save(const std::string& directory) const {
  std::vector<TensorSpec> specs;
  std::map<std::string_view, const delta::AdamSim*> by_key;
  for (size_t i = 0; i < params_.size(); ++i) {
    specs.push_back({params_[i].key, params_[i].dtype, params_[i].shape});
    by_key[params_[i].key] = &optimizers_[i];
  }
  return WriteWeights(*world_, specs,
                      os::JoinPath(directory, "rank" + std::to_string(rank_) + ".safetensors"),
                      [&](const TensorSpec& spec) { return by_key.at(spec.name)->weights(); });
}

Status WriteTopology(os::World& world, const layout::Topology& topology,
                     const std::string& directory) {
  layout::Topology t = topology;
  t.etp = t.tp;  // Megatron's default
  WC_TRY(world.fs.MakeDirectories(directory));
  const Json config = {
      {"tensor_model_parallel_size", t.tp}, {"pipeline_model_parallel_size", t.pp},
      {"expert_model_parallel_size", t.ep}, {"expert_tensor_parallel_size", t.etp},
      {"context_parallel_size", t.cp},      {"num_layers", t.num_layers},
      {"params_dtype", "torch.bfloat16"},   {"transformer_impl", "transformer_engine"}};
  WC_TRY(WriteText(world, os::JoinPath(directory, "topology.json"),
                   {{"world", t.world}, {"config", config}}));
  for (int32_t rank = 0; rank < t.world; ++rank) {
    const layout::Coordinates c = t.At(rank);
    WC_TRY(WriteText(world, os::JoinPath(directory, "rank" + std::to_string(rank) + ".json"),
                     {{"coords",
                       {{"rank", c.rank},
                        {"tp", c.tp},
                        {"pp", c.pp},
                        {"dp", c.dp},
                        {"cp", c.cp},
                        {"ep", c.ep},
                        {"etp", c.etp},
                        {"edp", c.edp}}}}));
  }
  return Ok();
}

}  // namespace weightcast::apps
