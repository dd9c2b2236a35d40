// Time to compile a plan: names x ranks.
#include <benchmark/benchmark.h>

#include "bridge/compile_plan.h"
#include "bridge/families/example.h"

namespace weightcast::bridge {
namespace {

void Compile(benchmark::State& state) {
  const ExampleDims dims{.hidden = 8,
                         .intermediate = 64,
                         .layers = state.range(0),
                         .heads = 8,
                         .kv_heads = 8,
                         .head_dim = 3,
                         .vocabulary = 16};
  const HfConfig config = HfConfig::Parse(ExampleConfig(dims)).value();
  MegatronConfig trainer;
  trainer.topology.tp = trainer.topology.etp = 8;
  trainer.topology.world = 8 * static_cast<int32_t>(state.range(1));
  trainer.topology.num_layers = static_cast<int32_t>(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(CompilePlan(config, trainer, {}).value().hash);
  }
  state.counters["names"] = static_cast<double>(dims.layers * 11 + 3);
  state.counters["ranks"] = trainer.topology.world;
}
BENCHMARK(Compile)->Args({36, 1})->Args({36, 16})->Args({80, 128})->Args({2222, 1})->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace weightcast::bridge
