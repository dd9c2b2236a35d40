#include "catalog/version_json.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "catalog/version_fields.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

constexpr const char* kFormatName = "weightcast version";

Json RunToJson(const Run& run) {
  return {{"uid", IdText(run.uid)},
          {"name", run.name},
          {"forked_from", IdText(run.forked_from)},
          {"created_unix_ms", run.created_unix_ms},
          {"carried", run.carried}};
}

Result<Run> RunFromJson(const Json& object) {
  WC_TRY(CheckFields(object, {"uid", "name", "forked_from", "created_unix_ms", "carried"}));
  Run run;
  run.uid = WC_TRY(JsonId<RunUid>(object, "uid"));
  run.name = WC_TRY(JsonString(object, "name"));
  run.forked_from = WC_TRY(JsonId<VersionUid>(object, "forked_from"));
  run.created_unix_ms = WC_TRY(JsonInt(object, "created_unix_ms"));
  run.carried = WC_TRY(JsonIndices(object, "carried"));
  return run;
}

Result<tensor::TensorSpec> TensorFromJson(const Json& object) {
  WC_TRY(CheckFields(object, {"name", "dtype", "shape", "digest"}));
  tensor::TensorSpec spec;
  spec.name = WC_TRY(JsonString(object, "name"));
  const std::string dtype = WC_TRY(JsonString(object, "dtype"));
  const auto known = tensor::DTypeFromName(dtype);
  if (!known) return Error{Code::kInvalidData, "unknown dtype " + Quoted(dtype)};
  spec.dtype = *known;
  for (const Json& dim : *WC_TRY(JsonArray(object, "shape"))) {
    if (!dim.is_number_integer() || dim < 0 || dim > (int64_t{1} << 62)) {
      return Error{Code::kInvalidData, "tensor " + Quoted(spec.name) + ": bad shape"};
    }
    spec.shape.push_back(dim.get<int64_t>());
  }
  return spec;
}

Status TensorsFromJson(const Json& array, VersionDocument* document) {
  std::vector<tensor::TensorSpec> specs;
  for (const Json& item : array) {
    specs.push_back(WC_TRY(TensorFromJson(item)));
    const std::string digest = WC_TRY(JsonString(item, "digest"));
    document->digests.push_back(
        WC_TRY(tensor::TensorDigest::ParseHex(digest).With("tensor " + Quoted(specs.back().name))));
  }
  if (!std::ranges::is_sorted(specs, {}, &tensor::TensorSpec::name)) {
    return Error{Code::kInvalidData, "tensors are not sorted by name"};
  }
  document->run.inventory =
      std::make_shared<const tensor::Inventory>(WC_TRY(tensor::Inventory::Make(std::move(specs))));
  return Ok();
}

// The document's outer object by hand: one line a field and one line a tensor, so that a person can
// read it and a diff shows what differs. Left open: the seal follows.
std::string OpenLines(const Json& document) {
  std::string text = "{";
  for (const auto& [name, value] : document.items()) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += Json(name).dump() + ": ";
    if (!value.is_array()) {
      text += value.dump();
      continue;
    }
    text += "[";
    for (size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "\n" : ",\n") + value[i].dump();
    text += "\n]";
  }
  return text;
}

// The last field: SHA-256 of every byte before it.
std::string Seal(std::string_view open_text) {
  return ",\n\"sha256\": \"" + Sha256::Of(AsBytes(open_text)).hex() + "\"\n}\n";
}

Status CheckSeal(std::string_view text) {
  const size_t seal_bytes = Seal("").size();
  const std::string_view open_text =
      text.substr(0, text.size() - std::min(text.size(), seal_bytes));
  if (text.substr(open_text.size()) == Seal(open_text)) return Ok();
  return Error{Code::kDataLoss,
               "version.json does not verify: expected it to end with" + Seal(open_text).substr(1)};
}

Error Bad(const Version& version, const std::string& why) {
  return {Code::kInvalidData, VersionText(version) + ": " + why};
}

int64_t CountRole(const Version& version, ObjectRole role) {
  return std::ranges::count(version.objects, role, &ObjectRef::role);
}

// Which objects each kind has: of every participant, and one of all for carried tensors.
Status CheckObjects(const Version& version, bool carried) {
  const bool seed = version.kind == VersionKind::kSeed;
  const bool full = version.kind == VersionKind::kFull;
  const auto ranks = seed ? 0 : static_cast<int64_t>(version.participants.size());
  const std::pair<ObjectRole, int64_t> expected[] = {
      {ObjectRole::kDelta, version.base.empty() ? 0 : ranks},
      {ObjectRole::kFull, full ? ranks : 0},
      {ObjectRole::kCarried, full && carried ? 1 : 0},
  };
  for (const auto& [role, count] : expected) {
    const int64_t found = CountRole(version, role);
    if (found == count) continue;
    return Bad(version, std::to_string(found) + " " + std::string(RoleName(role)) +
                            " objects, expected " + std::to_string(count));
  }
  for (const ObjectRef& object : version.objects) WC_TRY(CheckObject(object));
  return Ok();
}

// What each kind has and has not.
Status CheckKind(const Version& version) {
  const bool seed = version.kind == VersionKind::kSeed;
  if (seed != (version.number == 0)) return Bad(version, "only version 0 is a seed");
  if (seed != (version.epoch.value == 0)) return Bad(version, "only a seed has epoch 0");
  if (version.kind == VersionKind::kDelta && version.base.empty()) {
    return Bad(version, "a delta needs a base");
  }
  if (version.base.empty() != version.base_run.empty()) {
    return Bad(version, "base and base_run go together");
  }
  if (!seed && !version.base.empty() && version.base_run != version.run) {
    return Bad(version, "only version 0 may have a base in another run");
  }
  if (!seed && version.plan.empty()) return Bad(version, "no plan");
  if (!seed) return CheckParticipants(version.participants).With(VersionText(version));
  return Ok();
}

}  // namespace

Status CheckDocument(const VersionDocument& document) {
  const Run& run = document.run;
  const Version& version = document.version;
  if (run.inventory == nullptr || document.digests.size() != run.inventory->size()) {
    return Bad(version, "expected one digest a tensor");
  }
  if (run.uid.empty() || version.uid.empty() || version.run != run.uid) {
    return Bad(version, "version and run do not belong together");
  }
  if (version.base == version.uid) return Bad(version, "it is its own base");
  if (version.state != VersionState::kReady) return Bad(version, "it is not READY");
  if (version.number == 0 && version.base != run.forked_from) {
    return Bad(version, "its base is not what the run was forked from");
  }
  WC_TRY(CheckName("run", run.name));
  WC_TRY(CheckCarried(run.carried, *run.inventory));
  WC_TRY(CheckText("step token", version.step_token));
  WC_TRY(CheckText("store URL", version.store_url));
  WC_TRY(CheckLabels(version.labels));
  WC_TRY(CheckSideFiles(version.side_files));
  WC_TRY(CheckKind(version));
  WC_TRY(CheckObjects(version, !run.carried.empty()));
  const Root root = tensor::ComputeRoot(*run.inventory, document.digests);
  if (root == version.root) return Ok();
  return Error{Code::kDataLoss, VersionText(version) + ": its tensor digests give root " +
                                    root.hex() + ", it says " + version.root.hex()};
}

std::string EncodeVersionJson(const VersionDocument& document) {
  const tensor::Inventory& inventory = *document.run.inventory;
  WC_CHECK(document.digests.size() == inventory.size());
  Json tensors = Json::array();
  for (size_t i = 0; i < inventory.size(); ++i) {
    tensors.push_back({{"name", inventory[i].name},
                       {"dtype", tensor::DTypeName(inventory[i].dtype)},
                       {"shape", inventory[i].shape},
                       {"digest", document.digests[i].hex()}});
  }
  const std::string text = OpenLines({{"format", kFormatName},
                                      {"v", 1},
                                      {"run", RunToJson(document.run)},
                                      {"version", VersionToJson(document.version)},
                                      {"tensors", std::move(tensors)}});
  return text + Seal(text);
}

Result<VersionDocument> ParseVersionJson(std::string_view text) {
  return ParseVersionDocument(text, &CheckSeal);
}

Result<VersionDocument> ParseVersionDocument(std::string_view text,
                                             Status (*check_seal)(std::string_view)) {
  const Json json = WC_TRY(ParseVersion1(text));
  if (WC_TRY(JsonString(json, "format")) != kFormatName) {
    return Error{Code::kInvalidData, std::string("not a \"") + kFormatName + "\" document"};
  }
  WC_TRY(check_seal(text));
  WC_TRY(CheckFields(json, {"format", "v", "run", "version", "tensors", "sha256"}));
  VersionDocument document;
  const Json* run = WC_TRY(JsonObject(json, "run"));
  const Json* version = WC_TRY(JsonObject(json, "version"));
  const Json* tensors = WC_TRY(JsonArray(json, "tensors"));
  document.run = WC_TRY(RunFromJson(*run).With("run"));
  document.version = WC_TRY(VersionFromJson(*version).With("version"));
  document.version.state = VersionState::kReady;
  WC_TRY(TensorsFromJson(*tensors, &document));
  const Status whole = CheckDocument(document);
  if (whole.ok()) return document;
  // The checks of requests speak of a wrong call; here it is data.
  const Error& error = whole.error();
  return Error{error.code == Code::kInvalidArgument ? Code::kInvalidData : error.code,
               error.message};
}

}  // namespace weightcast::catalog
