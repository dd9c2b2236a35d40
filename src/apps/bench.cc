// bench: measurements, and the models that they are made on.
#include <algorithm>
#include <cstring>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/toy_model.h"
#include "base/text.h"

namespace weightcast::apps {
namespace {

struct GenerateFlags {
  std::string out;
  std::string size = "demo";
  std::string from;
  std::string shards;
  int64_t steps = 1;
  int64_t seed = 7;
  double learning_rate = 1e-6;
};

// "2,2" -> TP2, PP2.
Result<layout::Topology> ParseLayout(const std::string& text, int64_t layers) {
  layout::Topology topology{.num_layers = static_cast<int32_t>(layers)};
  char end = 0;
  if (std::sscanf(text.c_str(), "%d,%d%c", &topology.tp, &topology.pp, &end) != 2) {
    return Error{Code::kInvalidArgument, "--shards " + Quoted(text) + ": expected TP,PP"};
  }
  topology.world = topology.tp * topology.pp;
  WC_TRY(topology.Check());
  return topology;
}

Status GenerateShards(App& app, const GenerateFlags& flags, const ToyDims& dims) {
  const layout::Topology topology = WC_TRY(ParseLayout(flags.shards, dims.layers));
  WC_TRY(WriteTopology(app.world(), topology, flags.out));
  const ModelSource source = WC_TRY(
      OpenShardSource(app.world(), flags.out, os::JoinPath(flags.from, "config.json"), {}));
  for (int32_t rank = 0; rank < topology.world; ++rank) {
    ToyRank shard = WC_TRY(ToyRank::Load(app.world(), *source.plan, source.topology, rank, flags.from,
                                         static_cast<float>(flags.learning_rate)));
    WC_TRY(shard.Save(flags.out));
  }
  return Ok();
}

Status Generate(App& app, const GenerateFlags& flags) {
  const ToyDims dims = flags.size == "large"   ? ToyDims::Large()
                       : flags.size == "small" ? ToyDims::Small()
                                               : ToyDims::Demo();
  if (flags.from.empty() && !flags.shards.empty()) {
    return Error{Code::kInvalidArgument, "--shards needs --from: the checkpoint that is cut"};
  }
  if (flags.from.empty()) {
    WC_TRY(MakeToyModel(app.world(), dims, static_cast<uint64_t>(flags.seed), flags.out));
  } else if (!flags.shards.empty()) {
    WC_TRY(GenerateShards(app, flags, dims));
  } else {
    WC_TRY(StepToyModel(app.world(), flags.from, static_cast<int>(flags.steps),
                        static_cast<float>(flags.learning_rate), static_cast<uint64_t>(flags.seed),
                        flags.out));
  }
  app.Emit({{"out", flags.out}}, "wrote " + flags.out + "\n");
  return Ok();
}

}  // namespace

std::vector<Command> BenchCommands() {
  return {
      {"bench generate", "write a model to measure on, move it by training steps, or cut it in shards",
       "  weightcast bench generate base                                # about 100 M parameters\n"
       "  weightcast bench generate base --size large                   # the shapes of a 0.6 B model\n"
       "  weightcast bench generate next --from base --steps 1          # one AdamW step later\n"
       "  weightcast bench generate shards --from base --shards 2,2     # TP2 x PP2\n",
       [](Flags& f) {
         auto v = std::make_shared<GenerateFlags>();
         f.Argument("OUT", &v->out, "directory to write")
             .Choice("--size", &v->size, {"small", "demo", "large"}, "20 M, 100 M or 600 M parameters")
             .Text("--from", &v->from, "a checkpoint made by this command")
             .Text("--shards", &v->shards, "TP,PP: write Megatron ranks of --from")
             .Int("--steps", &v->steps, "optimizer steps to move --from")
             .Int("--seed", &v->seed, "of the random numbers")
             .Double("--learning-rate", &v->learning_rate, "decides the density: 1e-6 changes about 0.8 %");
         return [v](App& app) { return Generate(app, *v); };
       }},
  };
}

}  // namespace weightcast::apps
