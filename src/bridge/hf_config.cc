#include "bridge/hf_config.h"

#include <algorithm>

#include "base/json.h"
#include "base/text.h"

namespace weightcast::bridge {
namespace {

Error Bad(std::string what) { return {Code::kInvalidData, "config.json: " + std::move(what)}; }

// Numbers above 63 bits are no sizes; what needs the key will miss it.
bool IsInt(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
}

// Whole numbers, flags and lists of one level; what is there already stands.
void Collect(const Json& object, const std::string& prefix, HfConfig* config) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix + name;
    if (value.is_boolean()) config->flags.emplace(key, value.get<bool>());
    if (IsInt(value)) config->ints.emplace(key, value.get<int64_t>());
    if (!value.is_array()) continue;
    if (std::ranges::all_of(value, IsInt)) {
      config->int_lists.emplace(key, value.get<std::vector<int64_t>>());
    } else if (std::ranges::all_of(value, [](const Json& v) { return v.is_string(); })) {
      config->name_lists.emplace(key, value.get<std::vector<std::string>>());
    }
  }
}

// A level of its own, if it is there.
Result<const Json*> Nested(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return nullptr;
  if (it->is_object()) return &*it;
  return Bad(std::string(key) + ": expected an object, found " + it->type_name());
}

Status ReadArchitectures(const Json& json, HfConfig* config) {
  const Json* list = WC_TRY(JsonArray(json, "architectures").With("config.json"));
  for (const Json& entry : *list) {
    if (!entry.is_string()) return Bad("architectures: expected names, found " + entry.dump());
    config->architectures.push_back(entry.get<std::string>());
  }
  if (config->architectures.empty()) return Bad("architectures: expected a name, found none");
  return Ok();
}

// The first of the keys that is there and not null, in this object.
const Json* FirstOf(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

Status ReadDtype(const Json& object, HfConfig* config) {
  const Json* value = FirstOf(object, {"dtype", "torch_dtype"});
  if (value == nullptr || config->dtype) return Ok();
  if (!value->is_string()) return Bad("dtype: expected a name, found " + value->dump());
  const std::string name = value->get<std::string>();
  config->dtype = DTypeFromTorchName(name);
  if (!config->dtype) return Bad("dtype: unknown: " + Quoted(name));
  return Ok();
}

}  // namespace

std::optional<tensor::DType> DTypeFromTorchName(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bfloat16") return tensor::DType::kBf16;
  if (name == "float16") return tensor::DType::kF16;
  if (name == "float32") return tensor::DType::kF32;
  return std::nullopt;
}

std::optional<int64_t> HfConfig::Int(std::string_view key) const {
  const auto it = ints.find(key);
  return it == ints.end() ? std::nullopt : std::optional(it->second);
}

bool HfConfig::Flag(std::string_view key) const {
  const auto it = flags.find(key);
  return it != flags.end() && it->second;
}

Result<HfConfig> HfConfig::Parse(std::string_view text) {
  const Json json = WC_TRY(
      ParseJson(text, {.bytes_max = static_cast<size_t>(kHfConfigBytesMax)}).With("config.json"));
  HfConfig config;
  WC_TRY(ReadArchitectures(json, &config));
  Collect(json, "", &config);
  WC_TRY(ReadDtype(json, &config));
  if (const Json* tie = FirstOf(json, {"tie_word_embeddings"})) {
    if (!tie->is_boolean())
      return Bad("tie_word_embeddings: expected a flag, found " + tie->dump());
    config.tie_word_embeddings = tie->get<bool>();
  }
  if (const Json* version = FirstOf(json, {"transformers_version"});
      version && version->is_string()) {
    config.transformers_version = version->get<std::string>();
  }
  constexpr const char* kQuantization = "quantization_config";
  config.quantized = FirstOf(json, {kQuantization}) != nullptr;
  if (const Json* nested = WC_TRY(Nested(json, "text_config"))) {
    config.quantized |= FirstOf(*nested, {kQuantization}) != nullptr;
    Collect(*nested, "", &config);
    WC_TRY(ReadDtype(*nested, &config));
  }
  if (const Json* nested = WC_TRY(Nested(json, "vision_config"))) {
    Collect(*nested, "vision_config.", &config);
  }
  return config;
}

}  // namespace weightcast::bridge
