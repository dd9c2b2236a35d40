// For tests: toy models in parallel worlds, the plans that are compiled for them, and whether a
// plan is right.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bridge/compile_plan.h"
#include "bridge/toy_trainer_testing.h"

namespace weightcast::bridge {

// A world without expert parallelism: expert tensor ranks are the tensor ranks.
layout::Topology World(int32_t layers, int32_t tp, int32_t pp = 1, int32_t vpp = 1, int32_t dp = 1,
                       int32_t cp = 1);
std::string WorldText(const layout::Topology& t);

HfConfig ModelOf(const ToyModel& m);
MegatronConfig TrainerOf(const ToyModel& m, const layout::Topology& t);
// As the toy has its experts, unless `options` say otherwise.
Result<CompiledPlan> Compile(const ToyModel& m, const layout::Topology& t,
                             CompileOptions options = {});
std::string Message(const Result<CompiledPlan>& result);  // of the error, or nothing

// What each rank holds; ranks that hold the same share it.
using ToyShards = std::vector<std::shared_ptr<const ToyTensors>>;
ToyShards AllShards(const ToyModel& m, const layout::Topology& t);
std::vector<tensor::TensorSpec> SpecsOf(const ToyTensors& tensors);
std::shared_ptr<const tensor::Inventory> InventoryOf(const ToyTensors& tensors);

// Fills the canonical tensors from all ranks' shards by the plan.
std::map<std::string, Bytes> Gather(const layout::Plan& plan, const ToyShards& shards,
                                    bool upper_half = false);
std::map<std::string, Bytes> BytesOf(const ToyTensors& tensors, bool upper_half = false);

// Expects that the shards' keys, shapes and dtypes are the plan's, and that what it gathers is the
// model, bit for bit.
void ExpectRight(const ToyModel& m, const layout::Topology& t, const CompiledPlan& compiled);
// Expects that ranks that hold the same shards send about equally much.
void ExpectBalanced(const layout::Topology& t, const layout::Plan& plan);
// Compiles, and expects both.
void ExpectRightPlan(const ToyModel& m, const layout::Topology& t);

}  // namespace weightcast::bridge
