#include "bridge/toy_worlds_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "bridge/shard_keys.h"
#include "layout/gather.h"

namespace weightcast::bridge {

using layout::Topology;

Topology World(int32_t layers, int32_t tp, int32_t pp, int32_t vpp, int32_t dp, int32_t cp) {
  Topology t;
  t.tp = t.etp = tp;
  t.pp = pp;
  t.vpp = vpp;
  t.cp = cp;
  t.world = tp * pp * dp * cp;
  t.num_layers = layers;
  return t;
}

std::string WorldText(const Topology& t) {
  std::string text = std::to_string(t.num_layers) + " layers on";
  const std::pair<const char*, int32_t> sizes[] = {
      {" tp ", t.tp}, {" pp ", t.pp},   {" vpp ", t.vpp}, {" cp ", t.cp},
      {" ep ", t.ep}, {" etp ", t.etp}, {" dp ", t.dp()}};
  for (const auto& [name, size] : sizes) text += name + std::to_string(size);
  return text;
}

HfConfig ModelOf(const ToyModel& m) { return HfConfig::Parse(ConfigJson(m)).value(); }

MegatronConfig TrainerOf(const ToyModel& m, const Topology& t) {
  return MegatronConfig::Parse(TopologyJson(m, t)).value();
}

Result<CompiledPlan> Compile(const ToyModel& m, const Topology& t, CompileOptions options) {
  if (options.expert_layout == ExpertLayout::kAuto && !options.reference && m.experts > 0) {
    options.expert_layout = m.layout == ToyExperts::kOutIn    ? ExpertLayout::kPackedOutIn
                            : m.layout == ToyExperts::kInOut  ? ExpertLayout::kPackedInOut
                            : m.layout == ToyExperts::kByName ? ExpertLayout::kPerName
                                                              : ExpertLayout::kAuto;
  }
  return CompilePlan(ModelOf(m), TrainerOf(m, t), options);
}

std::string Message(const Result<CompiledPlan>& result) {
  return result.ok() ? "" : result.error().message;
}

namespace {

// Where a rank's weights are determined: replicas differ in nothing of it.
auto Seat(const Topology& t, int32_t rank) {
  const layout::Coordinates at = t.At(rank);
  return std::tuple(at.pp, at.tp, at.ep, at.etp);
}

}  // namespace

ToyShards AllShards(const ToyModel& m, const Topology& t) {
  const ToyTensors hf = CanonicalTensors(m);
  std::map<decltype(Seat(t, 0)), std::shared_ptr<const ToyTensors>> seats;
  ToyShards shards;
  for (int32_t r = 0; r < t.world; ++r) {
    auto& shard = seats[Seat(t, r)];
    if (!shard) shard = std::make_shared<const ToyTensors>(ShardTensors(m, t, r, hf));
    shards.push_back(shard);
  }
  return shards;
}

std::vector<tensor::TensorSpec> SpecsOf(const ToyTensors& tensors) {
  std::vector<tensor::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.dims});
  return specs;
}

std::shared_ptr<const tensor::Inventory> InventoryOf(const ToyTensors& tensors) {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make(SpecsOf(tensors)).value());
}

std::map<std::string, Bytes> BytesOf(const ToyTensors& tensors, bool upper_half) {
  std::map<std::string, Bytes> bytes;
  for (const auto& [name, tensor] : tensors) bytes[name] = BytesOf(tensor, upper_half);
  return bytes;
}

std::map<std::string, Bytes> Gather(const layout::Plan& plan, const ToyShards& shards,
                                    bool upper_half) {
  std::map<std::string, Bytes> canonical;
  std::vector<Bytes*> tensors;
  for (const tensor::TensorSpec& spec : plan.inventory->tensors()) {
    tensors.push_back(&canonical[spec.name]);
    tensors.back()->resize(static_cast<size_t>(spec.bytes()));
  }
  std::map<const ToyTensors*, std::map<std::string, Bytes>> files;  // one for all replicas
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto [file, is_new] = files.try_emplace(shards[r].get());
    if (is_new) file->second = BytesOf(*shards[r], upper_half);
    for (const layout::Slice& slice : plan.ranks[r].slices) {
      const auto tensor = static_cast<size_t>(slice.tensor);
      const std::string& key = plan.ranks[r].params[static_cast<size_t>(slice.param)].key;
      layout::ScatterSlice((*plan.inventory)[tensor].matrix(), slice, file->second.at(key),
                           *tensors[tensor]);
    }
  }
  return canonical;
}

void ExpectRight(const ToyModel& m, const Topology& t, const CompiledPlan& compiled) {
  const layout::Plan& plan = *compiled.plan;
  const ToyShards shards = AllShards(m, t);
  std::map<const ToyTensors*, size_t> checked;
  for (size_t r = 0; r < shards.size(); ++r) {
    const auto [first, is_new] = checked.emplace(shards[r].get(), r);
    if (is_new) {
      const auto ignored =
          CheckShardKeys(plan.ranks[r], SpecsOf(*shards[r]), RankId{static_cast<int32_t>(r)});
      ASSERT_TRUE(ignored.ok()) << ignored.error().message;
    } else {
      ASSERT_EQ(plan.ranks[r].params, plan.ranks[first->second].params) << "rank " << r;
    }
  }
  const ToyTensors hf = CanonicalTensors(m);
  ASSERT_EQ(tensor::DifferenceText(*InventoryOf(hf), *plan.inventory), "");
  ASSERT_EQ(Gather(plan, shards), BytesOf(hf));
  if (m.bf16) {
    ASSERT_EQ(Gather(plan, shards, true), BytesOf(hf, true));
  }
}

void ExpectBalanced(const Topology& t, const layout::Plan& plan) {
  std::map<decltype(Seat(t, 0)), std::vector<int64_t>> loads;
  int64_t largest = 0;
  for (int32_t r = 0; r < t.world; ++r) {
    int64_t bytes = 0;
    for (const layout::Slice& s : plan.ranks[static_cast<size_t>(r)].slices) {
      const int unit_bytes = (*plan.inventory)[static_cast<size_t>(s.tensor)].matrix().unit_bytes;
      bytes += s.box.units() * unit_bytes;
      largest = std::max(largest, s.box.units() * unit_bytes);
    }
    loads[Seat(t, r)].push_back(bytes);
  }
  for (const auto& [seat, bytes] : loads) {
    const auto [low, high] = std::ranges::minmax(bytes);
    EXPECT_LE(high - low, largest)
        << "stage " << std::get<0>(seat) << ", tensor rank " << std::get<1>(seat);
  }
}

void ExpectRightPlan(const ToyModel& m, const Topology& t) {
  SCOPED_TRACE(m.architecture + ", " + WorldText(t));
  const auto compiled = Compile(m, t);
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  ASSERT_NO_FATAL_FAILURE(ExpectRight(m, t, *compiled));
  ExpectBalanced(t, *compiled->plan);
}

}  // namespace weightcast::bridge
