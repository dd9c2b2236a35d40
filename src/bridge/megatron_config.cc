#include "bridge/megatron_config.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "bridge/hf_config.h"

namespace weightcast::bridge {
namespace {

using layout::kLayersMax;
using layout::Topology;

Error Bad(std::string what) { return {Code::kInvalidData, "topology.json: " + std::move(what)}; }

// Any size that a trainer gives; bounded so that products of two fit 64 bits.
constexpr int64_t kSizeMax = int64_t{1} << 31;
constexpr int64_t kCountMax = std::max<int64_t>(layout::kWorldMax, kLayersMax);

// Settings that change what a shard holds: by the plain rules such shards would give wrong weights
// in silence. These are the values that change nothing; a family may have others.
constexpr Setting kUsual[] = {
    {"layernorm_zero_centered_gamma", "false"},
    {"attention_output_gate", "false"},
    {"multi_latent_attention", "false"},
    {"heterogeneous_block_specs", "false"},
    {"fp8_param", "false"},
    {"fp4_param", "false"},
    {"gtp_weight_remat_size", "1"},
    {"tensor_parallel_num_weight_shards", "1"},
    {"moe_mlp_glu_interleave_size", ""},  // gate and up alternate, in the same shape
    {"moe_shared_expert_glu_interleave_size", ""},
    {"num_moe_experts", ""},
    {"mtp_num_layers", "0"},
    {"transformer_impl", "\"transformer_engine\"|\"local\""},
};

bool IsSize(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX;
}

// An integer that may be absent or null.
Result<std::optional<int64_t>> OptionalInt(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::optional<int64_t>();
  const int64_t value = WC_TRY(JsonInt(object, key).With("topology.json"));
  if (value < 0 || value > kSizeMax) {
    return Bad(std::string(key) + " " + std::to_string(value) + " is not in 0.." +
               std::to_string(kSizeMax));
  }
  return std::optional(value);
}

// A flag that may be absent or null.
Result<std::optional<bool>> OptionalFlag(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::optional<bool>();
  return std::optional(WC_TRY(JsonBool(object, key).With("topology.json")));
}

// The same, of ranks or layers.
Result<std::optional<int32_t>> OptionalCount(const Json& object, const char* key) {
  const std::optional<int64_t> value = WC_TRY(OptionalInt(object, key));
  if (!value) return std::optional<int32_t>();
  if (*value <= kCountMax) return std::optional(static_cast<int32_t>(*value));
  return Bad(std::string(key) + " " + std::to_string(*value) + " is not in 0.." +
             std::to_string(kCountMax));
}

struct Size {
  const char* key;
  int32_t Topology::* field;
};
constexpr Size kSizes[] = {
    {"tensor_model_parallel_size", &Topology::tp},
    {"pipeline_model_parallel_size", &Topology::pp},
    {"virtual_pipeline_model_parallel_size", &Topology::vpp},
    {"context_parallel_size", &Topology::cp},
    {"expert_model_parallel_size", &Topology::ep},
    {"expert_tensor_parallel_size", &Topology::etp},
    {"num_layers", &Topology::num_layers},
    {"num_layers_in_first_pipeline_stage", &Topology::layers_in_first_stage},
    {"num_layers_in_last_pipeline_stage", &Topology::layers_in_last_stage},
};

constexpr const char* kLayout = "pipeline_model_parallel_layout";

// Number of chunks a stage where only the layout says it. What does not fit is Topology::Check's.
Status ReadLayout(const Json& config, Topology* t) {
  const auto it = config.find(kLayout);
  if (it == config.end() || it->is_null()) return Ok();
  if (!it->is_string() && !it->is_array()) {
    return Bad(std::string(kLayout) + ": expected a text or a list of lists, found " +
               it->type_name());
  }
  const std::string text = it->is_string() ? it->get<std::string>() : it->dump();
  t->layout = WC_TRY(layout::ParsePipelineLayout(text).With("topology.json"));
  const auto chunks = static_cast<int32_t>(t->layout.size());
  const auto vpp = config.find("virtual_pipeline_model_parallel_size");
  const bool given = vpp != config.end() && !vpp->is_null();
  if (!given && t->pp > 0) t->vpp = std::max(1, chunks / t->pp);
  return Ok();
}

Status ReadTopology(const Json& json, const Json& config, Topology* t) {
  t->etp = 0;
  for (const Size& size : kSizes) {
    const std::optional<int32_t> value = WC_TRY(OptionalCount(config, size.key));
    if (value) t->*size.field = *value;
  }
  if (t->etp == 0) t->etp = t->tp;
  WC_TRY(ReadLayout(config, t));
  const std::optional<int32_t> world = WC_TRY(OptionalCount(json, "world"));
  if (!world) return Bad("world is missing");
  t->world = *world;
  t->account_for_embedding =
      WC_TRY(OptionalFlag(config, "account_for_embedding_in_pipeline_split")).value_or(false);
  t->account_for_loss =
      WC_TRY(OptionalFlag(config, "account_for_loss_in_pipeline_split")).value_or(false);
  return t->Check().With("topology.json");
}

// The rows that Megatron gives the embedding. A trainer that does not say pads nothing.
Result<int64_t> ReadPaddedVocab(const Json& config, int32_t tp) {
  if (const auto padded = WC_TRY(OptionalInt(config, "padded_vocab_size"))) return *padded;
  if (!WC_TRY(OptionalFlag(config, "should_pad_vocab")).value_or(false)) return int64_t{0};
  const auto vocab = WC_TRY(OptionalInt(config, "vocab_size"));
  const auto divisor = WC_TRY(OptionalInt(config, "make_vocab_size_divisible_by"));
  if (!vocab || !divisor || *divisor == 0) return int64_t{0};
  const int64_t multiple = *divisor * tp;
  return (*vocab + multiple - 1) / multiple * multiple;
}

// The modules that predict further tokens.
Status ReadPrediction(const Json& config, MegatronConfig* trainer) {
  const auto count = WC_TRY(OptionalCount(config, "mtp_num_layers"));
  trainer->mtp_layers = count.value_or(0);
  trainer->norm_with_last_layer = count.has_value();
  if (trainer->topology.layout.empty()) return Ok();
  int32_t placed = 0;
  for (const layout::PipelineChunk& chunk : trainer->topology.layout) placed += chunk.mtp_layers;
  if (placed == trainer->mtp_layers) return Ok();
  return Bad(std::string(kLayout) + " has " + std::to_string(placed) +
             " prediction modules (m), expected mtp_num_layers " +
             std::to_string(trainer->mtp_layers));
}

// One of `known`; "" where it is absent or null.
Result<std::string> OptionalWord(const Json& json, const char* key,
                                 std::span<const char* const> known) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return std::string();
  std::string word = WC_TRY(JsonString(json, key).With("topology.json"));
  if (std::ranges::count(known, word) > 0) return word;
  return Bad(std::string(key) + ": expected one of " + JoinNames({known.begin(), known.end()}) +
             ", found " + Quoted(word));
}

Result<Spelling> ReadSpelling(const Json& json) {
  constexpr const char* kAtRoot = "mtp_at_root";
  Spelling spelling;
  spelling.mtp_inner = WC_TRY(OptionalWord(json, "mtp_inner", kMtpInners));
  spelling.tower = WC_TRY(OptionalWord(json, "tower", kTowers));
  if (const auto it = json.find(kAtRoot); it != json.end() && !it->is_null()) {
    spelling.mtp_at_root = WC_TRY(JsonBool(json, kAtRoot).With("topology.json"));
  }
  return spelling;
}

// Names that a vision tower of one kind has and no other; Megatron's patches are spelled as the
// checkpoint's.
struct TowerName {
  const char* pattern;
  const char* tower;
};
constexpr TowerName kTowerNames[] = {
    {"vp*/vision_model.decoder.*", kTowers[0]},
    {"vp*/vision_model.merger.patch_norm.*", kTowers[0]},
    {"vp*/vision_model.blocks.*", kTowers[1]},
    {"vp*/vision_model.merger.norm.*", kTowers[1]},
    {"vp*/model.visual.*", kTowers[2]},
};

struct Recorded {
  const char* key;
  int32_t layout::Coordinates::* field;
};
constexpr Recorded kRecorded[] = {
    {"rank", &layout::Coordinates::rank}, {"tp", &layout::Coordinates::tp},
    {"pp", &layout::Coordinates::pp},     {"dp", &layout::Coordinates::dp},
    {"cp", &layout::Coordinates::cp},     {"ep", &layout::Coordinates::ep},
    {"etp", &layout::Coordinates::etp},   {"edp", &layout::Coordinates::edp},
};

// "vp1/decoder.layers.3" -> chunk 1, layer 3.
struct LocalLayer {
  int32_t chunk = 0;
  int32_t layer = 0;
};
std::optional<LocalLayer> ParseLocalLayer(std::string_view name) {
  constexpr std::string_view kChunk = "vp";
  constexpr std::string_view kLayer = "/decoder.layers.";
  LocalLayer local;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kChunk)) return std::nullopt;
  const auto chunk = std::from_chars(name.data() + kChunk.size(), end, local.chunk);
  const std::string_view rest(chunk.ptr, static_cast<size_t>(end - chunk.ptr));
  if (chunk.ec != std::errc() || !rest.starts_with(kLayer)) return std::nullopt;
  const auto layer = std::from_chars(chunk.ptr + kLayer.size(), end, local.layer);
  if (layer.ec != std::errc() || layer.ptr != end) return std::nullopt;
  return local;
}

// Recorded numbers start at 1. Modules other than decoder layers are not numbered here.
void CompareLayers(const Topology& topology, int32_t pp, const Json& layers,
                   std::vector<std::string>* differences) {
  for (const auto& [name, number] : layers.items()) {
    const auto local = ParseLocalLayer(name);
    if (!local) continue;
    if (!number.is_number_integer()) {
      differences->push_back(name + ": expected a layer's number, found " + number.dump());
      continue;
    }
    if (local->chunk < 0 || local->chunk >= topology.vpp) {
      differences->push_back(name + ": there are " + std::to_string(topology.vpp) + " chunks");
      continue;
    }
    const Topology::LayerRange range = topology.LayersOf(pp, local->chunk);
    const bool inside = local->layer >= 0 && local->layer < range.count;
    const int64_t computed = inside ? int64_t{range.first} + local->layer + 1 : 0;
    if (number.get<int64_t>() == computed) continue;
    differences->push_back(name + ": recorded as layer " + number.dump() + ", computed " +
                           (inside ? std::to_string(computed) : "none"));
  }
}

}  // namespace

void Spelling::Learn(const std::vector<tensor::TensorSpec>& shard) {
  for (const tensor::TensorSpec& spec : shard) {
    for (const TowerName& name : kTowerNames) {
      if (tower.empty() && MatchesGlob(name.pattern, spec.name)) tower = name.tower;
    }
    if (!MatchesGlob("vp*mtp.layers.*", spec.name)) continue;
    if (!mtp_at_root) mtp_at_root = MatchesGlob("vp*/mtp.layers.*", spec.name);
    for (const char* name : kMtpInners) {
      const std::string pattern = std::string("vp*mtp.layers.*.") + name + ".*";
      if (mtp_inner.empty() && MatchesGlob(pattern, spec.name)) mtp_inner = name;
    }
  }
}

std::string MegatronConfig::Said(std::string_view key) const {
  if (const auto it = ints.find(key); it != ints.end()) return std::to_string(it->second);
  const auto it = others.find(key);
  return it == others.end() ? "" : it->second;
}

Result<MegatronConfig> MegatronConfig::Parse(std::string_view text) {
  const Json json = WC_TRY(
      ParseJson(text, {.bytes_max = static_cast<size_t>(kTopologyBytesMax)}).With("topology.json"));
  const Json* settings = WC_TRY(JsonObject(json, "config").With("topology.json"));
  MegatronConfig config;
  for (const Setting& setting : kUsual) {
    const auto it = settings->find(setting.key);
    if (it == settings->end() || it->is_null()) continue;
    config.settings.emplace(setting.key, it->dump());
  }
  WC_TRY(ReadTopology(json, *settings, &config.topology));
  config.padded_vocab = WC_TRY(ReadPaddedVocab(*settings, config.topology.tp));
  const auto impl = settings->find("transformer_impl");
  config.local_spec = impl != settings->end() && *impl == "local";
  config.router_bias =
      WC_TRY(OptionalFlag(*settings, "moe_router_enable_expert_bias")).value_or(true);
  config.sequential_experts =
      !WC_TRY(OptionalFlag(*settings, "moe_grouped_gemm")).value_or(true) || config.local_spec;
  WC_TRY(ReadPrediction(*settings, &config));
  config.spelling = WC_TRY(ReadSpelling(json));
  if (const auto dtype = settings->find("params_dtype");
      dtype != settings->end() && !dtype->is_null()) {
    const auto known =
        dtype->is_string() ? DTypeFromTorchName(dtype->get<std::string>()) : std::nullopt;
    if (!known) return Bad("params_dtype: unknown: " + dtype->dump());
    config.params_dtype = *known;
  }
  config.tied = WC_TRY(OptionalFlag(*settings, "share_embeddings_and_output_weights"));
  for (const auto& [key, value] : settings->items()) {
    if (IsSize(value)) {
      config.ints.emplace(key, value.get<int64_t>());
    } else if (value.is_array() && std::ranges::all_of(value, IsSize)) {
      config.int_lists.emplace(key, value.get<std::vector<int64_t>>());
    } else if (value.is_primitive() && !value.is_null()) {
      config.others.emplace(key, value.dump());
    }
  }
  return config;
}

std::vector<std::string> Unsupported(const MegatronConfig& trainer, std::span<const Setting> own) {
  std::vector<std::string> found;
  for (const Setting& usual : kUsual) {
    const auto it = trainer.settings.find(usual.key);
    if (it == trainer.settings.end()) continue;
    const auto mine = std::ranges::find(own, usual.key, &Setting::key);
    const std::string_view values = mine == own.end() ? usual.values : mine->values;
    if (values == "*") continue;
    const std::string among = "|" + std::string(values) + "|";
    if (among.find("|" + it->second + "|") == std::string::npos) {
      found.push_back(std::string(usual.key) + " = " + it->second);
    }
  }
  return found;
}

Status CheckRankRecord(const Topology& topology, int32_t rank, std::string_view text) {
  const std::string what = "rank" + std::to_string(rank) + ".json";
  const Json json =
      WC_TRY(ParseJson(text, {.bytes_max = static_cast<size_t>(kTopologyBytesMax)}).With(what));
  const Json* coords = WC_TRY(JsonObject(json, "coords").With(what));
  const layout::Coordinates computed = topology.At(rank);
  std::vector<std::string> differences;
  for (const Recorded& recorded : kRecorded) {
    if (!coords->contains(recorded.key)) continue;
    const int64_t value = WC_TRY(JsonInt(*coords, recorded.key).With(what));
    if (value == computed.*recorded.field) continue;
    differences.push_back(std::string(recorded.key) + ": recorded " + std::to_string(value) +
                          ", computed " + std::to_string(computed.*recorded.field));
  }
  if (const auto params = json.find("params"); params != json.end() && params->is_object()) {
    if (params->contains("_layers")) {
      const Json* layers = WC_TRY(JsonObject(*params, "_layers").With(what));
      CompareLayers(topology, computed.pp, *layers, &differences);
    }
  }
  if (differences.empty()) return Ok();
  return Error{Code::kInvalidData, what + " does not fit topology.json: " + JoinNames(differences)};
}

}  // namespace weightcast::bridge
