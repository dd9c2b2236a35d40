#include "agent/manifest.h"

#include "base/hash.h"
#include "base/json.h"

namespace weightcast::agent {
namespace {

constexpr int64_t kFormat = 1;
constexpr std::string_view kSeal = ",\"sha256\":\"";  // then 64 digits, then "}

Json ToJson(const std::vector<Step>& steps) {
  Json json = Json::array();
  for (const Step& step : steps) json.push_back({step.from, step.to});
  return json;
}

Error Bad(const std::string& what) { return {Code::kDataLoss, what}; }

Result<std::vector<Step>> ParseSteps(const Json& json, std::string_view field) {
  std::vector<Step> steps;
  for (const Json& item : *WC_TRY(JsonArray(json, field))) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_number_integer() ||
        !item[1].is_number_integer()) {
      return Bad(std::string(field) + ": expected pairs of generations");
    }
    steps.push_back({item[0].get<int64_t>(), item[1].get<int64_t>()});
  }
  return steps;
}

template <typename Id>
Result<Id> ParseId(const Json& json, std::string_view field) {
  return Id::Parse(WC_TRY(JsonString(json, field))).With(field);
}

Result<Manifest> FromJson(const Json& json) {
  const int64_t format = WC_TRY(JsonInt(json, "format"));
  if (format != kFormat) {
    return Bad("format " + std::to_string(format) + ", this program reads " +
               std::to_string(kFormat));
  }
  Manifest m;
  m.generation = WC_TRY(JsonInt(json, "generation"));
  m.run = WC_TRY(ParseId<RunUid>(json, "run"));
  m.version = WC_TRY(ParseId<VersionUid>(json, "version"));
  m.number = WC_TRY(JsonInt(json, "number"));
  m.root = WC_TRY(ParseId<Root>(json, "root"));
  m.layout = WC_TRY(ParseId<LayoutSignature>(json, "layout"));
  const std::string durability = WC_TRY(JsonString(json, "durability"));
  m.durability = durability == "host" ? Durability::kHost : Durability::kProcess;
  m.boot_id = WC_TRY(JsonString(json, "boot"));
  m.synced = WC_TRY(JsonInt(json, "synced"));
  m.journals = WC_TRY(ParseSteps(json, "journals"));
  m.undo = WC_TRY(JsonBool(json, "undo"));
  m.steps = WC_TRY(ParseSteps(json, "steps"));
  for (const Json& row : *WC_TRY(JsonArray(json, "weight_files"))) {
    WeightFileRow& file = m.weight_files.emplace_back();
    file.name = WC_TRY(JsonString(row, "name"));
    file.bytes = WC_TRY(JsonInt(row, "bytes"));
    file.header_sha256 = WC_TRY(ParseId<Sha256Digest>(row, "header_sha256"));
  }
  for (const Json& row : *WC_TRY(JsonArray(json, "side_files"))) {
    catalog::SideFileRow& file = m.side_files.emplace_back();
    file.name = WC_TRY(JsonString(row, "name"));
    file.bytes = WC_TRY(JsonInt(row, "bytes"));
    file.sha256 = WC_TRY(ParseId<Sha256Digest>(row, "sha256"));
  }
  for (const Json& digest : *WC_TRY(JsonArray(json, "digests"))) {
    if (!digest.is_string()) return Bad("digests: expected texts");
    m.digests.push_back(WC_TRY(tensor::TensorDigest::ParseHex(digest.get<std::string>())));
  }
  return m;
}

}  // namespace

std::string EncodeManifest(const Manifest& m) {
  Json weight_files = Json::array();
  for (const WeightFileRow& row : m.weight_files) {
    weight_files.push_back(
        {{"name", row.name}, {"bytes", row.bytes}, {"header_sha256", row.header_sha256.hex()}});
  }
  Json side_files = Json::array();
  for (const catalog::SideFileRow& row : m.side_files) {
    side_files.push_back({{"name", row.name}, {"bytes", row.bytes}, {"sha256", row.sha256.hex()}});
  }
  Json digests = Json::array();
  for (const tensor::TensorDigest& digest : m.digests) digests.push_back(digest.hex());
  const Json json = {{"format", kFormat},
                     {"generation", m.generation},
                     {"run", m.run.hex()},
                     {"version", m.version.hex()},
                     {"number", m.number},
                     {"root", m.root.hex()},
                     {"layout", m.layout.hex()},
                     {"durability", m.durability == Durability::kHost ? "host" : "process"},
                     {"boot", m.boot_id},
                     {"synced", m.synced},
                     {"journals", ToJson(m.journals)},
                     {"undo", m.undo},
                     {"steps", ToJson(m.steps)},
                     {"weight_files", weight_files},
                     {"side_files", side_files},
                     {"digests", digests}};
  std::string text = json.dump();
  const std::string digest = Sha256::Of(AsBytes(text)).hex();
  text.pop_back();
  return text.append(kSeal).append(digest).append("\"}");
}

Result<Manifest> ParseManifest(std::string_view text) {
  const size_t seal = kSeal.size() + 64 + 2;
  if (text.size() < seal || text.substr(text.size() - seal, kSeal.size()) != kSeal ||
      !text.ends_with("\"}")) {
    return Bad("no checksum at its end");
  }
  std::string body(text.substr(0, text.size() - seal));
  body += '}';
  const std::string_view claimed = text.substr(text.size() - 66, 64);
  const std::string found = Sha256::Of(AsBytes(body)).hex();
  if (claimed != found) {
    return Bad("checksum: expected " + std::string(claimed) + ", found " + found);
  }
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return Bad(json.error().message);
  Result<Manifest> manifest = FromJson(*json);
  if (!manifest.ok()) return Bad(manifest.error().message);
  return manifest;
}

}  // namespace weightcast::agent
