#include "catalog/version_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/text.h"

namespace weightcast::catalog {
namespace {

constexpr std::array<std::string_view, 3> kKinds = {"seed", "full", "delta"};
constexpr std::array<std::string_view, 3> kRoles = {"delta", "full", "carried"};

// The place of a word in a list that follows an enum.
template <typename Enum>
Result<Enum> JsonWord(const Json& object, std::string_view field,
                      std::span<const std::string_view> words) {
  const std::string text = WC_TRY(JsonString(object, field));
  const auto it = std::ranges::find(words, text);
  if (it == words.end()) {
    return Error{Code::kInvalidData, "field \"" + std::string(field) + "\": expected one of " +
                                         JoinNames({words.begin(), words.end()}) + ", found " +
                                         Quoted(text)};
  }
  return static_cast<Enum>(it - words.begin());
}

Json ToJson(const std::map<std::string, std::string>& labels) {
  Json object = Json::object();
  for (const auto& [name, value] : labels) object.emplace(name, value);
  return object;
}

Json ToJson(const SideFileRow& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"sha256", IdText(file.sha256)}};
}

Json ToJson(const ObjectRef& object) {
  return {{"role", RoleName(object.role)},
          {"key", object.key},
          {"bytes", object.bytes},
          {"footer_bytes", object.footer_bytes},
          {"footer_sha256", IdText(object.footer_sha256)}};
}

Json ToJson(const PublishStats& stats) {
  return {{"elements", stats.elements},
          {"changed_elements", stats.changed_elements},
          {"payload_bytes", stats.payload_bytes},
          {"wire_bytes", stats.wire_bytes}};
}

template <typename T>
Json ToJsonArray(const std::vector<T>& items) {
  Json array = Json::array();
  for (const T& item : items) array.push_back(ToJson(item));
  return array;
}

Result<std::map<std::string, std::string>> Labels(const Json& object) {
  const Json* json = WC_TRY(JsonObject(object, "labels"));
  std::map<std::string, std::string> labels;
  for (const auto& [name, value] : json->items()) {
    if (!value.is_string()) {
      return Error{Code::kInvalidData,
                   "label " + Quoted(name) + ": expected a string, found " + value.type_name()};
    }
    labels[name] = value.get<std::string>();
  }
  return labels;
}

Result<std::vector<SideFileRow>> SideFiles(const Json& object) {
  const Json* array = WC_TRY(JsonArray(object, "side_files"));
  std::vector<SideFileRow> files;
  for (const Json& json : *array) {
    SideFileRow file;
    WC_TRY(CheckFields(json, {"name", "bytes", "sha256"}));
    file.name = WC_TRY(JsonString(json, "name"));
    file.bytes = WC_TRY(JsonCount(json, "bytes"));
    file.sha256 = WC_TRY(JsonId<Sha256Digest>(json, "sha256"));
    files.push_back(std::move(file));
  }
  return files;
}

Result<std::vector<ObjectRef>> Objects(const Json& object) {
  const Json* array = WC_TRY(JsonArray(object, "objects"));
  std::vector<ObjectRef> objects;
  for (const Json& json : *array) {
    ObjectRef ref;
    WC_TRY(CheckFields(json, {"role", "key", "bytes", "footer_bytes", "footer_sha256"}));
    ref.role = WC_TRY(JsonWord<ObjectRole>(json, "role", kRoles));
    ref.key = WC_TRY(JsonString(json, "key"));
    ref.bytes = WC_TRY(JsonCount(json, "bytes"));
    ref.footer_bytes = WC_TRY(JsonCount(json, "footer_bytes"));
    ref.footer_sha256 = WC_TRY(JsonId<Sha256Digest>(json, "footer_sha256"));
    objects.push_back(std::move(ref));
  }
  return objects;
}

Result<PublishStats> Stats(const Json& object) {
  const Json* json = WC_TRY(JsonObject(object, "stats"));
  WC_TRY(CheckFields(*json, {"elements", "changed_elements", "payload_bytes", "wire_bytes"}));
  PublishStats stats;
  stats.elements = WC_TRY(JsonCount(*json, "elements"));
  stats.changed_elements = WC_TRY(JsonCount(*json, "changed_elements"));
  stats.payload_bytes = WC_TRY(JsonCount(*json, "payload_bytes"));
  stats.wire_bytes = WC_TRY(JsonCount(*json, "wire_bytes"));
  return stats;
}

}  // namespace

std::string_view KindName(VersionKind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view RoleName(ObjectRole role) { return kRoles[static_cast<size_t>(role)]; }

Result<int64_t> JsonCount(const Json& object, std::string_view field) {
  const int64_t value = WC_TRY(JsonInt(object, field));
  if (value >= 0) return value;
  return Error{Code::kInvalidData,
               "field \"" + std::string(field) + "\": " + std::to_string(value) + " is negative"};
}

Result<std::vector<int32_t>> JsonIndices(const Json& object, std::string_view field) {
  const Json* array = WC_TRY(JsonArray(object, field));
  std::vector<int32_t> indices;
  int64_t above = -1;
  for (const Json& item : *array) {
    const bool fits =
        item.is_number_integer() && item >= 0 && item <= std::numeric_limits<int32_t>::max();
    if (!fits || item.get<int64_t>() <= above) {
      return Error{Code::kInvalidData, "field \"" + std::string(field) +
                                           "\": expected ascending numbers from 0, found " +
                                           (item.is_number() ? item.dump() : item.type_name())};
    }
    above = item.get<int64_t>();
    indices.push_back(static_cast<int32_t>(above));
  }
  return indices;
}

Status CheckFields(const Json& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) {
    return Error{Code::kInvalidData,
                 std::string("expected an object, found ") + object.type_name()};
  }
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) == known.end()) unknown.push_back(Quoted(name));
  }
  if (unknown.empty()) return Ok();
  return Error{Code::kInvalidData, "unknown fields " + JoinNames(unknown)};
}

Result<Json> ParseVersion1(std::string_view text) {
  Json json = WC_TRY(ParseJson(text));
  const int64_t v = WC_TRY(JsonInt(json, "v"));
  if (v == 1) return json;
  return Error{Code::kInvalidData,
               "format version " + std::to_string(v) + "; this release reads format version 1"};
}

Json VersionToJson(const Version& version) {
  return {{"uid", IdText(version.uid)},
          {"run", IdText(version.run)},
          {"epoch", version.epoch.value},
          {"number", version.number},
          {"kind", KindName(version.kind)},
          {"base", IdText(version.base)},
          {"base_run", IdText(version.base_run)},
          {"step_token", version.step_token},
          {"store_url", version.store_url},
          {"labels", ToJson(version.labels)},
          {"created_unix_ms", version.created_unix_ms},
          {"plan", IdText(version.plan)},
          {"participants", version.participants},
          {"side_files", ToJsonArray(version.side_files)},
          {"root", IdText(version.root)},
          {"objects", ToJsonArray(version.objects)},
          {"stats", ToJson(version.stats)}};
}

Result<Version> VersionFromJson(const Json& object) {
  WC_TRY(CheckFields(object, {"uid", "run", "epoch", "number", "kind", "base", "base_run",
                              "step_token", "store_url", "labels", "created_unix_ms", "plan",
                              "participants", "side_files", "root", "objects", "stats"}));
  Version version;
  version.uid = WC_TRY(JsonId<VersionUid>(object, "uid"));
  version.run = WC_TRY(JsonId<RunUid>(object, "run"));
  version.epoch.value = WC_TRY(JsonCount(object, "epoch"));
  version.number = WC_TRY(JsonCount(object, "number"));
  version.kind = WC_TRY(JsonWord<VersionKind>(object, "kind", kKinds));
  version.base = WC_TRY(JsonId<VersionUid>(object, "base"));
  version.base_run = WC_TRY(JsonId<RunUid>(object, "base_run"));
  version.step_token = WC_TRY(JsonString(object, "step_token"));
  version.store_url = WC_TRY(JsonString(object, "store_url"));
  version.labels = WC_TRY(Labels(object));
  version.created_unix_ms = WC_TRY(JsonInt(object, "created_unix_ms"));
  version.plan = WC_TRY(JsonId<PlanHash>(object, "plan"));
  version.participants = WC_TRY(JsonIndices(object, "participants"));
  version.side_files = WC_TRY(SideFiles(object));
  version.root = WC_TRY(JsonId<Root>(object, "root"));
  version.objects = WC_TRY(Objects(object));
  version.stats = WC_TRY(Stats(object));
  return version;
}

}  // namespace weightcast::catalog
