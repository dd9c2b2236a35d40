// bench: measurements, and the models that they are made on.
#include <algorithm>
#include <cstring>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/spelling_flags.h"
#include "apps/toy_model.h"
#include "base/text.h"
#include "bridge/plan_report.h"
#include "delta/codec_report.h"

namespace weightcast::apps {
namespace {

struct GenerateFlags {
  std::string out;
  std::string size = "demo";
  std::string from;
  std::string shards;
  int64_t steps = 1;
  int64_t random_seed = 7;
  double learning_rate = 1e-6;
};

// "2,2" -> TP2, PP2.
Result<layout::Topology> ParseLayout(const std::string& text, int64_t layers) {
  layout::Topology topology{.num_layers = static_cast<int32_t>(layers)};
  char end = 0;
  if (std::sscanf(text.c_str(), "%d,%d%c", &topology.tp, &topology.pp, &end) != 2) {
    return Error{Code::kInvalidArgument, "--shards " + Quoted(text) + ": expected TP,PP"};
  }
  if (topology.tp > layout::kWorldMax || topology.pp > layout::kWorldMax) {
    return Error{Code::kInvalidArgument, "--shards " + Quoted(text) + ": more than " +
                                             std::to_string(layout::kWorldMax) + " ranks"};
  }
  topology.world = topology.tp * topology.pp;
  WC_TRY(topology.Check());
  return topology;
}

Status GenerateShards(App& app, const GenerateFlags& flags) {
  const std::string path = os::JoinPath(flags.from, "config.json");
  const Bytes text = WC_TRY(app.world().fs.ReadAll(path, bridge::kHfConfigBytesMax));
  const bridge::HfConfig model = WC_TRY(bridge::HfConfig::Parse(AsText(text)).With(path));
  const layout::Topology topology =
      WC_TRY(ParseLayout(flags.shards, model.Int("num_hidden_layers").value_or(0)));
  WC_TRY(WriteTopology(app.world(), topology, flags.out));
  const ModelSource source = WC_TRY(OpenShardSource(app.world(), flags.out, path, {}));
  for (int32_t rank = 0; rank < topology.world; ++rank) {
    ToyRank shard = WC_TRY(ToyRank::Load(app.world(), *source.plan, source.topology, rank,
                                         flags.from, static_cast<float>(flags.learning_rate)));
    WC_TRY(shard.Save(flags.out));
  }
  return Ok();
}

Status Generate(App& app, const GenerateFlags& flags) {
  const ToyDims dims = flags.size == "large"   ? kLargeToy
                       : flags.size == "small" ? kSmallToy
                                               : kDemoToy;
  if (flags.from.empty() && !flags.shards.empty()) {
    return Error{Code::kInvalidArgument, "--shards needs --from: the checkpoint that is cut"};
  }
  WC_TRY(app.CheckInputs({{"--from", flags.from}}));
  WC_TRY(app.CheckEmpty(flags.out));
  if (flags.from.empty()) {
    WC_TRY(MakeToyModel(app.world(), dims, static_cast<uint64_t>(flags.random_seed), flags.out));
  } else if (!flags.shards.empty()) {
    WC_TRY(GenerateShards(app, flags));
  } else {
    WC_TRY(StepToyModel(app.world(), flags.from, static_cast<int>(flags.steps),
                        static_cast<float>(flags.learning_rate),
                        static_cast<uint64_t>(flags.random_seed), flags.out));
  }
  app.Emit({{"out", flags.out}}, "wrote " + flags.out + "\n");
  return Ok();
}

struct CodecFlags {
  std::string base;
  std::string next;
  int64_t units = int64_t{16} << 20;
  int64_t steps = 30;
  int64_t rounds = 3;
  double learning_rate = 1e-6;
  bool no_baselines = false;
};

// The bf16 tensors of a checkpoint, one after the other, as one state.
Result<Bytes> Bf16State(os::Fs& fs, const std::string& path) {
  const tensor::HfDirectory directory = WC_TRY(tensor::HfDirectory::Open(fs, path).With(path));
  const tensor::MappedWeights weights =
      WC_TRY(tensor::MappedWeights::Map(fs, directory, /*writable=*/false));
  Bytes state;
  for (size_t i = 0; i < directory.inventory()->size(); ++i) {
    if ((*directory.inventory())[i].dtype != tensor::DType::kBf16) continue;
    const ByteSpan bytes = weights.tensor(i);
    state.insert(state.end(), bytes.begin(), bytes.end());
  }
  return state;
}

Result<delta::CodecReport> Measure(App& app, const CodecFlags& flags) {
  delta::CodecBenchOptions options{.units = flags.units,
                                   .steps = static_cast<int>(flags.steps),
                                   .rounds = static_cast<int>(flags.rounds),
                                   .baselines = !flags.no_baselines};
  options.training.learning_rate = static_cast<float>(flags.learning_rate);
  if (flags.base.empty()) return delta::RunCodecBench(options, app.world().clock);
  if (flags.next.empty()) {
    return Error{Code::kInvalidArgument, "bench codec: expected two directories, or none"};
  }
  WC_TRY(app.CheckInputs({{"BASE_DIR", flags.base}, {"NEXT_DIR", flags.next}}));
  const Bytes base = WC_TRY(Bf16State(app.world().fs, flags.base));
  const Bytes next = WC_TRY(Bf16State(app.world().fs, flags.next));
  if (base.size() != next.size()) {
    return Error{Code::kInvalidArgument, "bench codec: " + flags.base + " has " +
                                             std::to_string(base.size()) + " bytes of BF16, " +
                                             flags.next + " has " + std::to_string(next.size())};
  }
  return delta::MeasureCodec(base, next, options, app.world().clock);
}

Status BenchCodec(App& app, const CodecFlags& flags) {
  const delta::CodecReport r = WC_TRY(Measure(app, flags));
  Json baselines = Json::object();
  Json rates = Json::object();
  std::string text = std::to_string(r.changed_elements) + " of " + std::to_string(r.elements) +
                     " elements changed (" + PercentText(r.density) + ")\n";
  char line[160];
  std::snprintf(
      line, sizeof line,
      "wire %s, %.3f bytes a changed element (bounds: %.3f without the base, %.3f with it)\n",
      BytesText(r.wire_bytes).c_str(), r.bytes_per_changed, r.bound_l0, r.bound_l1);
  text += line;
  for (const auto& [name, bytes] : r.baselines) {
    baselines[name] = bytes;
    text += "  " + name + ": " + BytesText(bytes) + "\n";
  }
  const double memcpy_rate = r.gb_per_s.contains("memcpy") ? r.gb_per_s.at("memcpy") : 0.0;
  for (const auto& [name, rate] : r.gb_per_s) {
    rates[name] = rate;
    std::snprintf(line, sizeof line, "  %-20s %6.2f GB/s  %.2f x memcpy\n", name.c_str(), rate,
                  memcpy_rate > 0 ? rate / memcpy_rate : 0.0);
    text += line;
  }
  app.Emit({{"elements", r.elements},
            {"changed_elements", r.changed_elements},
            {"density", r.density},
            {"wire_bytes", r.wire_bytes},
            {"bytes_per_changed", r.bytes_per_changed},
            {"bound_l0", r.bound_l0},
            {"bound_l1", r.bound_l1},
            {"full_bytes", r.full_bytes},
            {"baselines", baselines},
            {"gb_per_s", rates},
            {"digest_update_per_s", r.digest_update_per_s}},
           text);
  return Ok();
}

struct PlanFlags {
  std::string model;
  std::string mode = bridge::kModes[0];
  bool apply = false;
};

Status BenchPlan(App& app, const PlanFlags& flags) {
  const bridge::PlanReport r = WC_TRY(bridge::RunPlanBench(flags.model, bridge::ModeOf(flags.mode),
                                                           flags.apply, app.world().clock));
  char text[240];
  std::snprintf(text, sizeof text, "%lld tensors on %lld ranks, %lld slices: compiled in %.3f s\n",
                static_cast<long long>(r.tensors), static_cast<long long>(r.ranks),
                static_cast<long long>(r.slices), r.compile_seconds);
  Json document = {{"model", flags.model},      {"mode", flags.mode},
                   {"ranks", r.ranks},          {"tensors", r.tensors},
                   {"slices", r.slices},        {"bytes", r.bytes},
                   {"plan_hash", r.hash.hex()}, {"compile_seconds", r.compile_seconds}};
  std::string all = text;
  if (flags.apply) {
    std::snprintf(text, sizeof text, "%s applied at %.2f GB/s, %.2f x memcpy\n",
                  BytesText(r.bytes).c_str(), r.apply_gb_per_s,
                  r.apply_gb_per_s / r.memcpy_gb_per_s);
    all += text;
    document["gb_per_s"] = {{"apply", r.apply_gb_per_s}, {"memcpy", r.memcpy_gb_per_s}};
  }
  app.Emit(document, all);
  return Ok();
}

}  // namespace

std::vector<Command> BenchCommands() {
  return {
      {"bench plan", "measure how fast a large model's plan is compiled, and applied to its shards",
       "  weightcast bench plan moe              # 128 experts on 8 ranks, compiled only\n"
       "  weightcast bench plan moe --apply      # 1.4 GB, twice in memory\n",
       [](Flags& f) {
         auto v = std::make_shared<PlanFlags>();
         f.Argument("MODEL", &v->model, "one of " + JoinNames(bridge::PlanBenchModels()))
             .Bool("--apply", &v->apply, "fill the model's tensors from all ranks' shards, too");
         AddMode(f, &v->mode);
         return [v](App& app) { return BenchPlan(app, *v); };
       }},
      {"bench codec", "measure the delta codec: size against the limits, speed against memcpy",
       "  weightcast bench codec                          # on simulated training\n"
       "  weightcast bench codec step_100 step_101        # on two checkpoints\n",
       [](Flags& f) {
         auto v = std::make_shared<CodecFlags>();
         f.OptionalArgument("BASE_DIR", &v->base, "a checkpoint directory")
             .OptionalArgument("NEXT_DIR", &v->next, "the same model, later")
             .Int("--units", &v->units, "bf16 elements to simulate", int64_t{1} << 50)
             .Int("--steps", &v->steps, "optimizer steps before the one that is measured",
                  kInt32Max)
             .Int("--rounds", &v->rounds, "each speed is the best of so many", kInt32Max)
             .Double("--learning-rate", &v->learning_rate, "decides the density")
             .Bool("--no-baselines", &v->no_baselines, "leave out other encodings");
         return [v](App& app) { return BenchCodec(app, *v); };
       }},
      {"bench generate",
       "write a model to measure on, move it by training steps, or cut it in shards",
       "  weightcast bench generate base                                # about 100 M parameters\n"
       "  weightcast bench generate base --size large                   # the shapes of a 0.6 B "
       "model\n"
       "  weightcast bench generate next --from base --steps 1          # one AdamW step later\n"
       "  weightcast bench generate shards --from base --shards 2,2     # TP2 x PP2\n",
       [](Flags& f) {
         auto v = std::make_shared<GenerateFlags>();
         f.Argument("OUT", &v->out, "directory to write")
             .Choice("--size", &v->size, {"small", "demo", "large"},
                     "20 M, 100 M or 600 M parameters")
             .Text("--from", &v->from, "a checkpoint made by this command")
             .Text("--shards", &v->shards, "TP,PP: write Megatron ranks of --from")
             .Int("--steps", &v->steps, "optimizer steps to move --from", kInt32Max)
             .Int("--random-seed", &v->random_seed, "of the random numbers")
             .Double("--learning-rate", &v->learning_rate,
                     "decides the density: 1e-6 changes about 0.8 %");
         return [v](App& app) { return Generate(app, *v); };
       }},
  };
}

}  // namespace weightcast::apps
