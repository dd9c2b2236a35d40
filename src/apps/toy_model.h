// Models made up here: for the demo and the benchmarks. Real shapes and file formats, weights that
// move as AdamW moves them (delta/adam_sim.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/families/example.h"
#include "delta/adam_sim.h"
#include "layout/plan.h"
#include "layout/topology.h"
#include "os/world.h"
#include "tensor/hf_directory.h"

namespace weightcast::apps {

using ToyDims = bridge::ExampleDims;
// About 20 M parameters; about 100 M, as the demo trains; the shapes of a 0.6 B model (1.2 GB).
inline constexpr ToyDims kSmallToy = {256, 768, 6, 8, 4, 32, 32000};
inline constexpr ToyDims kDemoToy = {};
inline constexpr ToyDims kLargeToy = {1024, 3072, 28, 16, 8, 128, 151936};

// Writes `directory` with config.json and one weight file of random weights.
Status MakeToyModel(os::World& world, const ToyDims& dims, uint64_t seed,
                    const std::string& directory);

// Writes a checkpoint directory with the same tensors as `like`, moved by `steps` AdamW steps.
Status StepToyModel(os::World& world, const std::string& like, int steps, float learning_rate,
                    uint64_t seed, const std::string& directory);

// A trainer rank's weights in memory, cut from a checkpoint by the plan, and their optimizer.
class ToyRank {
 public:
  static Result<ToyRank> Load(os::World& world, const layout::Plan& plan,
                              const layout::Topology& topology, int32_t rank,
                              const std::string& checkpoint, float learning_rate);
  void Step();
  // Writes rank<K>.safetensors into `directory`, replacing it atomically.
  Status Save(const std::string& directory) const;

 private:
  ToyRank(os::World& world, int32_t rank) : world_(&world), rank_(rank) {}
  os::World* world_;
  int32_t rank_;
  std::vector<layout::Param> params_;
  std::vector<delta::AdamSim> optimizers_;
};

// Writes topology.json and rank<K>.json of a layout, as `--shards DIR` expects them.
Status WriteTopology(os::World& world, const layout::Topology& topology,
                     const std::string& directory);

}  // namespace weightcast::apps
