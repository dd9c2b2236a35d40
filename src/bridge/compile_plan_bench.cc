// Time to compile a plan: names x ranks.
#include <benchmark/benchmark.h>

#include "bridge/compile_plan.h"
#include "bridge/families/families.h"
#include "bridge/toy_trainer_testing.h"

namespace weightcast::bridge {
namespace {

void Compile(benchmark::State& state) {
  ToyModel model{.architecture = std::string(kFamilies[0]->architectures[0])};
  model.layers = static_cast<int32_t>(state.range(0));
  model.heads = model.kv_heads = 8, model.ffn = 64, model.padded_vocab = 16;
  layout::Topology topology;
  topology.tp = 8;
  topology.world = 8 * static_cast<int32_t>(state.range(1));
  topology.num_layers = model.layers;
  const HfConfig config = HfConfig::Parse(ConfigJson(model)).value();
  const MegatronConfig trainer = MegatronConfig::Parse(TopologyJson(model, topology)).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(CompilePlan(config, trainer, {}).value().hash);
  }
  state.counters["names"] = static_cast<double>(model.layers * 9 + 3);
  state.counters["ranks"] = topology.world;
}
BENCHMARK(Compile)->Args({36, 1})->Args({36, 16})->Args({80, 128})->Args({2222, 1})->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace weightcast::bridge
