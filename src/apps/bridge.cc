// convert, plan and trace: Megatron shards as checkpoint tensors, and where each weight lies.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/spelling_flags.h"
#include "base/text.h"
#include "bridge/convert.h"
#include "bridge/families/family_table.h"
#include "bridge/mode.h"
#include "bridge/receiver.h"
#include "bridge/shard_dir.h"
#include "layout/cells.h"
#include "tensor/hf_directory.h"

namespace weightcast::apps {
namespace {

using bridge::CompiledPlan;

// "dir/" and "dir" name the same directory; siblings are made of the name.
std::string Trimmed(const std::string& path) {
  std::string text = std::filesystem::absolute(path).lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

int64_t OwnedBytes(const layout::Plan& plan, const layout::RankPlan& rank) {
  int64_t bytes = 0;
  for (const layout::Slice& slice : rank.slices) {
    bytes += slice.box.units() *
             (*plan.inventory)[static_cast<size_t>(slice.tensor)].matrix().unit_bytes;
  }
  return bytes;
}

// Parameters that repeat what another rank's, or another of the same rank, holds.
int64_t Replicas(const CompiledPlan& compiled) {
  int64_t n = 0;
  for (const bridge::ReplicaSet& set : compiled.replicas) {
    n += static_cast<int64_t>(set.places.size()) - 1;
  }
  return n;
}

// What convert and plan say of a plan. `coverage` is 1: a plan that covers less is an error.
Json ToJson(const CompiledPlan& compiled, const std::vector<std::string>& ignored,
            const std::string& mode) {
  const layout::Plan& plan = *compiled.plan;
  Json ranks = Json::array();
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"bytes", OwnedBytes(plan, plan.ranks[r])},
                     {"slices", plan.ranks[r].slices.size()},
                     {"params", plan.ranks[r].params.size()}});
  }
  Json aliases = Json::object();
  for (const bridge::Alias& alias : compiled.aliases) aliases[alias.name] = alias.of;
  return {{"family", plan.family},
          {"mode", mode},
          {"tensors", plan.inventory->size()},
          {"elements", plan.inventory->units()},
          {"bytes", plan.inventory->bytes()},
          {"plan_hash", compiled.hash.hex()},
          {"ranks", ranks},
          {"coverage", 1.0},
          {"carried", compiled.carried},
          {"ignored", ignored},
          {"replicas", Replicas(compiled)},
          {"aliases", aliases}};
}

std::string ToText(const CompiledPlan& compiled, const std::vector<std::string>& ignored) {
  const layout::Plan& plan = *compiled.plan;
  std::string text = "family " + plan.family + ": " + std::to_string(plan.inventory->size()) +
                     " tensors, " + BytesText(plan.inventory->bytes()) + ", each of " +
                     std::to_string(plan.inventory->units()) + " elements owned once; plan " +
                     compiled.hash.brief() + "\n";
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    text += "  rank " + std::to_string(r) + ": " + BytesText(OwnedBytes(plan, plan.ranks[r])) +
            " in " + std::to_string(plan.ranks[r].slices.size()) + " slices of " +
            std::to_string(plan.ranks[r].params.size()) + " parameters\n";
  }
  text += "  replicas: " + std::to_string(Replicas(compiled)) + " parameters\n";
  for (const bridge::Alias& alias : compiled.aliases)
    text += "  " + alias.name + " repeats " + alias.of + "\n";
  if (!compiled.carried.empty()) text += "  carried: " + JoinNames(compiled.carried) + "\n";
  if (!ignored.empty()) text += "  ignored: " + JoinNames(ignored) + "\n";
  return text;
}

constexpr const char* kSpecs[] = {"te", "local"};

// The trainer's layout for plan and trace: a directory of shards, or config.json and numbers.
struct PlanFlags {
  std::string shards;
  std::string config;
  std::string reference;
  std::string names;
  std::vector<std::string> carry;
  int64_t tp = 1, pp = 1, cp = 1, dp = 1, ep = 1;
  std::optional<int64_t> vpp, etp, first_stage, last_stage;
  std::string pipeline_layout;
  int64_t mtp_layers = 0;
  int64_t vocab_rows = 0;
  std::string spec = kSpecs[0];
  std::string mode = bridge::kModes[0];
  SpellingFlags spelling;
  bool families = false;        // plan only
  std::string unit;             // trace only
  std::optional<int64_t> rank;  // trace only
};

void AddLayoutFlags(Flags& f, const std::shared_ptr<PlanFlags>& v) {
  f.Text("--shards", &v->shards, "directory of shards; only its topology.json is read")
      .Text("--config", &v->config,
            "config.json of the model; default ../hf_source/ beside the shards")
      .Int("--tp", &v->tp, "tensor parallel size")
      .Int("--pp", &v->pp, "pipeline parallel size")
      .Int("--vpp", &v->vpp, "virtual pipeline chunks a rank")
      .Int("--cp", &v->cp, "context parallel size")
      .Int("--dp", &v->dp, "data parallel size")
      .Int("--ep", &v->ep, "expert parallel size, a factor of --tp x --cp x --dp")
      .Int("--etp", &v->etp, "expert tensor parallel size; default --tp")
      .Text("--pipeline-layout", &v->pipeline_layout,
            "Megatron's pipeline_model_parallel_layout, as \"Ett|t*3|tmL\"")
      .Int("--mtp-layers", &v->mtp_layers, "modules that predict further tokens",
           layout::kLayersMax)
      .Int("--first-stage-layers", &v->first_stage, "layers of the first stage, if uneven")
      .Int("--last-stage-layers", &v->last_stage, "layers of the last stage, if uneven")
      .Int("--vocab-rows", &v->vocab_rows, "rows of the embedding with padding; 0: as told",
           bridge::kVocabRowsMax)
      .Choice("--spec", &v->spec, {std::begin(kSpecs), std::end(kSpecs)},
              "how the trainer spells norms")
      .Text("--reference", &v->reference,
            "checkpoint directory whose tensors must be produced; or --names")
      .Text("--names", &v->names,
            "a file with the names that a receiver expects: a checkpoint's index, a JSON list, or "
            "one a line")
      .Texts("--carry", &v->carry,
             "reference tensors that the trainer does not hold (pattern with *)");
  AddMode(f, &v->mode);
  AddSpellingFlags(f, &v->spelling);
}

Result<bridge::MegatronConfig> LayoutFromFlags(const PlanFlags& flags,
                                               const bridge::HfConfig& model) {
  // The same reader as for a recorded layout, so that both are checked alike.
  Json config = {{"tensor_model_parallel_size", flags.tp},
                 {"pipeline_model_parallel_size", flags.pp},
                 {"context_parallel_size", flags.cp},
                 {"num_layers", model.Int("num_hidden_layers").value_or(0)},
                 {"transformer_impl", flags.spec == kSpecs[0] ? "transformer_engine" : "local"}};
  if (flags.first_stage) config["num_layers_in_first_pipeline_stage"] = *flags.first_stage;
  if (flags.last_stage) config["num_layers_in_last_pipeline_stage"] = *flags.last_stage;
  if (flags.vpp) config["virtual_pipeline_model_parallel_size"] = *flags.vpp;
  config["expert_model_parallel_size"] = flags.ep;
  if (flags.etp) config["expert_tensor_parallel_size"] = *flags.etp;
  if (!flags.pipeline_layout.empty()) {
    config["pipeline_model_parallel_layout"] = flags.pipeline_layout;
  }
  if (flags.mtp_layers > 0) config["mtp_num_layers"] = flags.mtp_layers;
  for (const int64_t size : {flags.tp, flags.pp, flags.cp, flags.dp, flags.ep,
                             flags.etp.value_or(1), flags.vpp.value_or(1)}) {
    if (size >= 1 && size <= layout::kWorldMax) continue;
    return Error{Code::kInvalidArgument, "parallel size " + std::to_string(size) +
                                             " is not in 1.." + std::to_string(layout::kWorldMax)};
  }
  const double world = static_cast<double>(flags.tp) * static_cast<double>(flags.pp) *
                       static_cast<double>(flags.cp) * static_cast<double>(flags.dp);
  if (world > layout::kWorldMax) {
    return Error{Code::kInvalidArgument,
                 "more than " + std::to_string(layout::kWorldMax) + " ranks"};
  }
  const Json topology = {{"world", static_cast<int64_t>(world)}, {"config", config}};
  Result<bridge::MegatronConfig> parsed = bridge::MegatronConfig::Parse(topology.dump());
  if (!parsed.ok()) {
    return Error{Code::kInvalidArgument,
                 "the layout that the options say: " + parsed.error().message};
  }
  bridge::MegatronConfig trainer = std::move(parsed).value();
  if (model.dtype) trainer.params_dtype = *model.dtype;
  return trainer;
}

// Shards say their layout themselves: flags that could say another are refused.
Status CheckNoLayout(const PlanFlags& flags) {
  const std::pair<const char*, bool> given[] = {
      {"--tp", flags.tp != 1},
      {"--pp", flags.pp != 1},
      {"--vpp", flags.vpp.has_value()},
      {"--cp", flags.cp != 1},
      {"--dp", flags.dp != 1},
      {"--ep", flags.ep != 1},
      {"--etp", flags.etp.has_value()},
      {"--pipeline-layout", !flags.pipeline_layout.empty()},
      {"--mtp-layers", flags.mtp_layers != 0},
      {"--first-stage-layers", flags.first_stage.has_value()},
      {"--last-stage-layers", flags.last_stage.has_value()},
      {"--spec", flags.spec != kSpecs[0]}};
  std::vector<std::string> unfit;
  for (const auto& [flag, is_given] : given) {
    if (is_given) unfit.emplace_back(flag);
  }
  if (unfit.empty()) return Ok();
  return Error{Code::kInvalidArgument,
               "--shards has the layout in its topology.json; found also " + JoinNames(unfit)};
}

// The layout that the flags name, its plan, and where its shards lie ("" if nowhere).
struct Planned {
  bridge::MegatronConfig trainer;
  CompiledPlan compiled;
  std::optional<bridge::ShardDir> dir;
};
Result<Planned> PlanFrom(App& app, const PlanFlags& flags) {
  os::Fs& fs = app.world().fs;
  WC_TRY(app.CheckInputs({{"--shards", flags.shards},
                          {"--config", flags.config},
                          {"--reference", flags.reference},
                          {"--names", flags.names}}));
  Planned planned;
  bridge::HfConfig model;
  if (!flags.shards.empty()) {
    WC_TRY(CheckNoLayout(flags));
    planned.dir = WC_TRY(bridge::OpenShardDir(fs, flags.shards, flags.config));
    model = planned.dir->model;
    planned.trainer = planned.dir->trainer;
  } else if (!flags.config.empty()) {
    const Bytes text = WC_TRY(fs.ReadAll(flags.config, bridge::kHfConfigBytesMax));
    model = WC_TRY(bridge::HfConfig::Parse(AsText(text)).With(flags.config));
    planned.trainer = WC_TRY(LayoutFromFlags(flags, model));
  } else {
    return Error{Code::kInvalidArgument, "expected --shards DIR or --config config.json"};
  }
  bridge::CompileOptions options{.reference = nullptr, .carry = flags.carry, .ignore = {}};
  options.expert_layout = bridge::ExpertLayoutOf(flags.spelling.expert_layout);
  options.vocab_rows = flags.vocab_rows;
  if (!flags.reference.empty()) {
    options.reference =
        WC_TRY(tensor::HfDirectory::Open(fs, flags.reference).With(flags.reference)).inventory();
  }
  if (!flags.names.empty()) {
    const Bytes text = WC_TRY(fs.ReadAll(flags.names, bridge::kNamesBytesMax));
    options.names = WC_TRY(bridge::ParseNames(AsText(text)).With(flags.names));
  }
  planned.trainer.spelling = planned.trainer.spelling.Or(flags.spelling.trainers());
  planned.compiled =
      WC_TRY(bridge::Compile(bridge::ModeOf(flags.mode), model, planned.trainer, options));
  return planned;
}

void EmitFamilies(App& app) {
  Json families = Json::array();
  for (const bridge::FamilyRow& row : bridge::FamilyRows()) {
    families.push_back({{"family", row.family},
                        {"architectures", row.architectures},
                        {"experts", row.experts},
                        {"spellings", row.spellings},
                        {"settings", row.settings},
                        {"refused", row.refused}});
  }
  app.Emit({{"families", families}}, bridge::FamilyTable());
}

Status Plan(App& app, const PlanFlags& flags) {
  if (flags.families) {
    if (!flags.shards.empty() || !flags.config.empty()) {
      return Error{Code::kInvalidArgument, "--families stands alone; found also a model"};
    }
    EmitFamilies(app);
    return Ok();
  }
  const Planned planned = WC_TRY(PlanFrom(app, flags));
  // No shard is read: keys that would not be sent are known by pattern.
  const std::vector<std::string>& ignored = planned.compiled.plan->ranks[0].ignored;
  Json document = ToJson(planned.compiled, ignored, flags.mode);
  document["world"] = planned.trainer.topology.world;
  app.Emit(document, ToText(planned.compiled, ignored));
  return Ok();
}

struct ConvertFlags {
  std::string shards;
  std::string out;
  bridge::ConvertOptions options;
  int64_t threads = 0;
  std::string mode = bridge::kModes[0];
  std::string expert_layout = bridge::kExpertLayouts[0];
};

Status Convert(App& app, ConvertFlags& flags) {
  WC_TRY(app.CheckInputs({{"--shards", flags.shards},
                          {"--config", flags.options.config},
                          {"--reference", flags.options.reference}}));
  flags.options.mode = bridge::ModeOf(flags.mode);
  flags.options.threads = static_cast<int>(flags.threads);
  flags.options.expert_layout = bridge::ExpertLayoutOf(flags.expert_layout);
  flags.options.progress = [&](int64_t done, int64_t total) {
    app.Progress("convert", done, total);
  };
  const auto start = app.world().clock.Now();
  const bridge::ConvertReport report = WC_TRY(
      bridge::ConvertShards(app.world().fs, flags.shards, Trimmed(flags.out), flags.options));
  const double seconds = ToSeconds(app.world().clock.Now() - start);
  Json document = ToJson(report.compiled, report.ignored, flags.mode);
  document["out"] = flags.out;
  document["seconds"] = seconds;
  app.Emit(document, ToText(report.compiled, report.ignored) + flags.out + ": " +
                         BytesText(report.bytes) + " written in " + SecondsText(seconds) + "\n");
  return Ok();
}

// "model.norm.weight[3]" -> name and indices.
struct UnitName {
  std::string tensor;
  std::vector<int64_t> index;
};
Result<UnitName> ParseUnitName(const std::string& text) {
  UnitName name;
  const size_t open = text.find('[');
  name.tensor = text.substr(0, open);
  if (open == std::string::npos) return name;
  const char* at = text.data() + open + 1;
  const char* end = text.data() + text.size();
  while (at < end) {
    int64_t value = 0;
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc() || parsed.ptr == end || (*parsed.ptr != ',' && *parsed.ptr != ']'))
      break;
    name.index.push_back(value);
    at = parsed.ptr + 1;
    if (*parsed.ptr == ']' && at == end) return name;
  }
  return Error{Code::kInvalidArgument, Quoted(text) + ": expected NAME[i,j,...]"};
}

// Position of an element in the tensor's matrix of units.
Result<std::pair<int64_t, int64_t>> UnitAt(const tensor::TensorSpec& spec, const UnitName& name) {
  bool inside = name.index.size() == spec.shape.size();
  int64_t flat = 0;
  for (size_t d = 0; inside && d < spec.shape.size(); ++d) {
    inside = name.index[d] >= 0 && name.index[d] < spec.shape[d];
    flat = flat * spec.shape[d] + name.index[d];
  }
  if (!inside) {
    return Error{Code::kInvalidArgument,
                 name.tensor + " is " + tensor::SpecText(spec) + ": no such element"};
  }
  if (tensor::BitsOf(spec.dtype) < 8) flat = flat * tensor::BitsOf(spec.dtype) / 8;  // its byte
  const int64_t cols = spec.matrix().cols;
  return std::pair(flat / cols, flat % cols);
}

// An element of a checkpoint tensor.
struct Element {
  int32_t tensor = 0;
  int64_t row = 0;
  int64_t col = 0;
};

// "NAME[i,j]" of a place in the tensor's matrix; of types smaller than a byte, the byte's first.
std::string ElementText(const tensor::TensorSpec& spec, const Element& at) {
  int64_t flat = at.row * spec.matrix().cols + at.col;
  if (tensor::BitsOf(spec.dtype) < 8) flat = flat * 8 / tensor::BitsOf(spec.dtype);
  std::string index;
  for (size_t d = spec.shape.size(); d-- > 0;) {
    index = std::to_string(flat % spec.shape[d]) + (index.empty() ? "" : ",") + index;
    flat /= spec.shape[d];
  }
  return spec.name + "[" + index + "]";
}

Result<Element> ElementOfTensor(const layout::Plan& plan, const UnitName& name) {
  const int64_t tensor = plan.inventory->Find(name.tensor);
  if (tensor < 0) {
    return Error{Code::kInvalidData, name.tensor + ": the trainer produces no such tensor"};
  }
  const auto [row, col] = WC_TRY(UnitAt((*plan.inventory)[static_cast<size_t>(tensor)], name));
  return Element{static_cast<int32_t>(tensor), row, col};
}

// Which places hold the same as this one, itself included.
std::vector<layout::Place> SamePlaces(const CompiledPlan& compiled, const layout::Place& place) {
  for (const bridge::ReplicaSet& set : compiled.replicas) {
    if (std::ranges::count(set.places, place) > 0) return set.places;
  }
  return {place};
}

// What the element of a rank's parameter is of the checkpoint, whichever of its replicas is sent.
Result<Element> ElementOfParam(const CompiledPlan& compiled, const UnitName& name, int64_t rank) {
  const layout::Plan& plan = *compiled.plan;
  if (rank >= static_cast<int64_t>(plan.ranks.size())) {
    return Error{Code::kInvalidArgument, "--rank " + std::to_string(rank) + ": the layout has " +
                                             std::to_string(plan.ranks.size()) + " ranks"};
  }
  const std::vector<layout::Param>& params = plan.ranks[static_cast<size_t>(rank)].params;
  const auto param = std::ranges::find(params, name.tensor, &layout::Param::key);
  if (param == params.end()) {
    return Error{Code::kInvalidData,
                 "rank " + std::to_string(rank) + " has no parameter " + name.tensor};
  }
  const tensor::TensorSpec spec{param->key, param->dtype, param->shape};
  const auto [row, col] = WC_TRY(UnitAt(spec, name));
  const int64_t unit = row * spec.matrix().cols + col;
  const layout::Place asked{static_cast<int32_t>(rank),
                            static_cast<int32_t>(param - params.begin())};
  for (const layout::Place& place : SamePlaces(compiled, asked)) {
    const auto found =
        layout::FindTensorUnit(plan.ranks[static_cast<size_t>(place.rank)], place.param, unit);
    if (found) return Element{found->tensor, found->row, found->col};
  }
  return Error{Code::kInvalidData,
               name.tensor + " of rank " + std::to_string(rank) +
                   ": that element is not sent: padding, or a copy that Megatron does not use"};
}

// The bytes of a unit, if the shards are at hand.
Result<std::string> BytesOf(App& app, const Planned& planned, const layout::Owner& owner) {
  if (!planned.dir) return std::string();
  const layout::RankPlan& rank = planned.compiled.plan->ranks[static_cast<size_t>(owner.rank)];
  const auto index = static_cast<size_t>(owner.slice->param);
  const auto file =
      WC_TRY(bridge::ShardFile::Open(app.world().fs, planned.dir->weight_path(RankId{owner.rank})));
  const auto params = WC_TRY(file.Params(rank, RankId{owner.rank}, nullptr));
  const auto unit_bytes = static_cast<size_t>(tensor::UnitBytes(rank.params[index].dtype));
  return Hex(params[index].subspan(static_cast<size_t>(owner.unit) * unit_bytes, unit_bytes));
}

constexpr const char* kComputed[] = {"", "one is added", "widened to F32"};  // by ValueMap

Status Trace(App& app, const PlanFlags& flags) {
  const UnitName name = WC_TRY(ParseUnitName(flags.unit));
  const Planned planned = WC_TRY(PlanFrom(app, flags));
  const layout::Plan& plan = *planned.compiled.plan;
  const Element at = flags.rank ? WC_TRY(ElementOfParam(planned.compiled, name, *flags.rank))
                                : WC_TRY(ElementOfTensor(plan, name));
  const tensor::TensorSpec& spec = (*plan.inventory)[static_cast<size_t>(at.tensor)];
  const auto owner = layout::FindOwner(plan, at.tensor, at.row, at.col);
  WC_CHECK(owner.has_value());  // the plan's coverage is proven
  const layout::RankPlan& rank = plan.ranks[static_cast<size_t>(owner->rank)];
  const layout::Param& param = rank.params[static_cast<size_t>(owner->slice->param)];
  const std::string coordinates = layout::CoordinatesText(planned.trainer.topology.At(owner->rank));
  const int64_t cell = layout::CellGrid::For(spec.matrix()).CellAt(at.row, at.col);
  const tensor::TensorSpec shard{param.key, param.dtype, param.shape};
  const int64_t row = owner->unit / shard.matrix().cols;
  const int64_t col = owner->unit % shard.matrix().cols;
  const int64_t offset = owner->unit * tensor::UnitBytes(param.dtype);
  Json places = Json::array();
  std::string replicas;
  const layout::Place sent{owner->rank, owner->slice->param};
  const std::vector<layout::Place> same = SamePlaces(planned.compiled, sent);
  for (const layout::Place& p : same) {
    if (same.size() == 1) break;
    const auto& held = plan.ranks[static_cast<size_t>(p.rank)].params[static_cast<size_t>(p.param)];
    places.push_back({{"rank", p.rank}, {"param", held.key}});
    if (p.rank != owner->rank) replicas += " " + std::to_string(p.rank);
  }
  const std::string element = ElementText(spec, at);
  const std::string bits = WC_TRY(BytesOf(app, planned, *owner));
  Json document = {{"name", spec.name},
                   {"element", element},
                   {"tensor", tensor::SpecText(spec)},
                   {"cell", cell},
                   {"rank", owner->rank},
                   {"coordinates", coordinates},
                   {"param", param.key},
                   {"param_row", row},
                   {"param_col", col},
                   {"param_offset", offset},
                   {"param_spec", tensor::SpecText(shard)},
                   {"replicas", places}};
  std::string text = element + " (" + tensor::SpecText(spec) + ", cell " + std::to_string(cell) +
                     ")\n  is row " + std::to_string(row) + ", column " + std::to_string(col) +
                     ", byte " + std::to_string(offset) + " of " + param.key + " (" +
                     tensor::SpecText(shard) + ")\n  sent by " + coordinates + "\n";
  if (owner->slice->map != layout::ValueMap::kCopy) {
    const char* computed = kComputed[static_cast<size_t>(owner->slice->map)];
    document["computed"] = computed;
    text += std::string("  the checkpoint's is computed: ") + computed + "\n";
  }
  if (!replicas.empty()) text += "  also held by rank" + replicas + "\n";
  if (!bits.empty()) document["bytes"] = bits;
  if (!bits.empty()) text += "  bytes " + bits + "\n";
  app.Emit(document, text);
  return Ok();
}

}  // namespace

std::vector<Command> BridgeCommands() {
  return {
      {"convert", "write Megatron shards as a Hugging Face checkpoint directory",
       "  weightcast convert --shards step_100 --config seed/config.json --out step_100_hf\n"
       "  weightcast convert --shards step_100 --out hf --reference seed --carry "
       "'model.visual.*'\n",
       [](Flags& f) {
         auto v = std::make_shared<ConvertFlags>();
         f.RequiredText("--shards", &v->shards,
                        "directory with topology.json and rankN.safetensors")
             .RequiredText("--out", &v->out, "new directory for the checkpoint")
             .Text("--config", &v->options.config,
                   "config.json; default ../hf_source/ beside the shards")
             .Text("--reference", &v->options.reference,
                   "checkpoint directory whose tensors the result must have")
             .Texts("--carry", &v->options.carry,
                    "reference tensors that the trainer does not hold (pattern with *): copied")
             .Texts("--ignore", &v->options.ignore, "shard keys that are not sent (pattern with *)")
             .Int("--threads", &v->threads, "0: all CPUs", kThreadsMax);
         AddMode(f, &v->mode);
         AddExpertLayout(f, &v->expert_layout);
         return [v](App& app) { return Convert(app, *v); };
       }},
      {"plan", "show which rank sends how much of a model, for a parallel layout",
       "  weightcast plan --config config.json --tp 2 --pp 2\n"
       "  weightcast plan --shards step_100 --json\n",
       [](Flags& f) {
         auto v = std::make_shared<PlanFlags>();
         AddLayoutFlags(f, v);
         f.Bool("--families", &v->families, "show the model families that are known, and end");
         return [v](App& app) { return Plan(app, *v); };
       }},
      {"trace", "show where one weight of the checkpoint lies in the trainer, or the way back",
       "  weightcast trace 'model.layers.3.self_attn.k_proj.weight[17,5]' --shards step_100\n"
       "  weightcast trace 'model.norm.weight[0]' --config config.json --tp 4\n"
       "  weightcast trace 'vp0/decoder.layers.1.mlp.linear_fc1.weight[5,3]' --rank 2 --shards "
       "step_100\n",
       [](Flags& f) {
         auto v = std::make_shared<PlanFlags>();
         f.Argument("ELEMENT", &v->unit,
                    "an element of a checkpoint tensor; with --rank of that rank's parameter")
             .Int("--rank", &v->rank, "from this rank's parameter to the checkpoint");
         AddLayoutFlags(f, v);
         return [v](App& app) { return Trace(app, *v); };
       }},
  };
}

}  // namespace weightcast::apps
