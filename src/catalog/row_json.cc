// Rows that are JSON.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "catalog/row_format.h"
#include "catalog/version_fields.h"

namespace weightcast::catalog {
namespace {

constexpr std::array<std::string_view, 5> kStates = {"STAGING", "READY", "FAILED", "RELEASING",
                                                     "RELEASED"};

constexpr std::array<std::string_view, 4> kRoundStates = {"preparing", "applying", "committed",
                                                          "failed"};

Bytes ToBytes(const Json& json) {
  const std::string text = json.dump();
  return {text.begin(), text.end()};
}

Result<VersionUid> Uid(const Json& json) {
  if (json.is_string()) return IdFromText<VersionUid>(json.get<std::string>());
  return Error{Code::kInvalidData,
               std::string("expected a version uid, found ") + json.type_name()};
}

// Rows of a release before rounds do not have these fields.
Result<int64_t> RoundsOf(const Json& json) {
  return json.contains("rounds") ? JsonCount(json, "rounds") : 0;
}
Result<RoundUid> LastRoundOf(const Json& json) {
  return json.contains("round") ? JsonId<RoundUid>(json, "round") : RoundUid{};
}

Json ToJson(const RoundEngine& engine) {
  return {{"url", engine.url},
          {"state", engine.state},
          {"incarnation", engine.incarnation},
          {"version", IdText(engine.version)},
          {"proven", engine.proven},
          {"reason", engine.reason}};
}

Status FromJson(const Json& json, RoundEngine* engine) {
  engine->url = WC_TRY(JsonString(json, "url"));
  engine->state = WC_TRY(JsonString(json, "state"));
  engine->incarnation = WC_TRY(JsonString(json, "incarnation"));
  engine->version = WC_TRY(JsonId<VersionUid>(json, "version"));
  engine->proven = WC_TRY(JsonBool(json, "proven"));
  engine->reason = WC_TRY(JsonString(json, "reason"));
  return Ok();
}

}  // namespace

std::string_view StateName(VersionState state) { return kStates[static_cast<size_t>(state)]; }
std::string_view StateName(RoundState state) { return kRoundStates[static_cast<size_t>(state)]; }

Bytes Encode(const CatalogRow& row) {
  return ToBytes({{"v", 1},
                  {"incarnation", row.incarnation},
                  {"runs", row.runs},
                  {"leases", row.leases},
                  {"rounds", row.rounds}});
}

Status Decode(ByteSpan bytes, CatalogRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->incarnation = WC_TRY(JsonString(json, "incarnation"));
  row->runs = WC_TRY(JsonCount(json, "runs"));
  row->leases = WC_TRY(JsonCount(json, "leases"));
  row->rounds = WC_TRY(RoundsOf(json));
  return Ok();
}

Bytes Encode(const RunRow& row) {
  return ToBytes({{"v", 1},
                  {"uid", IdText(row.uid)},
                  {"name", row.name},
                  {"tensors", row.tensors},
                  {"carried", row.carried},
                  {"forked_from", IdText(row.forked_from)},
                  {"created_unix_ms", row.created_unix_ms}});
}

Status Decode(ByteSpan bytes, RunRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->uid = WC_TRY(JsonId<RunUid>(json, "uid"));
  row->name = WC_TRY(JsonString(json, "name"));
  row->tensors = WC_TRY(JsonCount(json, "tensors"));
  row->carried = WC_TRY(JsonIndices(json, "carried"));
  row->forked_from = WC_TRY(JsonId<VersionUid>(json, "forked_from"));
  row->created_unix_ms = WC_TRY(JsonInt(json, "created_unix_ms"));
  return Ok();
}

Bytes Encode(const HeadRow& row) {
  Json aliases = Json::object();
  for (const auto& [alias, version] : row.aliases) aliases[alias] = IdText(version);
  return ToBytes({{"v", 1},
                  {"latest", IdText(row.latest)},
                  {"latest_number", row.latest_number},
                  {"seed", IdText(row.seed)},
                  {"staging", IdText(row.staging)},
                  {"round", IdText(row.round)},
                  {"epoch", row.epoch.value},
                  {"versions", row.versions},
                  {"epochs", row.epochs},
                  {"aliases", std::move(aliases)}});
}

Status Decode(ByteSpan bytes, HeadRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->latest = WC_TRY(JsonId<VersionUid>(json, "latest"));
  row->latest_number = WC_TRY(JsonInt(json, "latest_number"));
  row->seed = WC_TRY(JsonId<VersionUid>(json, "seed"));
  row->staging = WC_TRY(JsonId<VersionUid>(json, "staging"));
  row->round = WC_TRY(LastRoundOf(json));
  row->epoch.value = WC_TRY(JsonCount(json, "epoch"));
  row->versions = WC_TRY(JsonCount(json, "versions"));
  row->epochs = WC_TRY(JsonCount(json, "epochs"));
  const Json* aliases = WC_TRY(JsonObject(json, "aliases"));
  row->aliases.clear();
  for (const auto& [alias, version] : aliases->items()) {
    row->aliases[alias] = WC_TRY(Uid(version));
  }
  return Ok();
}

Bytes Encode(const ListRow& row) {
  return ToBytes({{"v", 1}, {"uid", IdText(row.uid)}, {"number", row.number}});
}

Status Decode(ByteSpan bytes, ListRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->uid = WC_TRY(JsonId<VersionUid>(json, "uid"));
  row->number = WC_TRY(JsonCount(json, "number"));
  return Ok();
}

Bytes Encode(const VersionRow& row) {
  return ToBytes({{"v", 1},
                  {"version", VersionToJson(row.version)},
                  {"state", StateName(row.version.state)},
                  {"deadline_unix_ms", row.version.deadline_unix_ms},
                  {"failure", row.version.failure},
                  {"pinned", row.pinned},
                  {"announced", row.announced}});
}

Status Decode(ByteSpan bytes, VersionRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  const Json* version = WC_TRY(JsonObject(json, "version"));
  row->version = WC_TRY(VersionFromJson(*version));
  const std::string state = WC_TRY(JsonString(json, "state"));
  const auto it = std::ranges::find(kStates, state);
  if (it == kStates.end()) {
    return Error{Code::kInvalidData, "field \"state\": " + Quoted(state) + " is unknown"};
  }
  row->version.state = static_cast<VersionState>(it - kStates.begin());
  row->version.deadline_unix_ms = WC_TRY(JsonInt(json, "deadline_unix_ms"));
  row->version.failure = WC_TRY(JsonString(json, "failure"));
  row->pinned = WC_TRY(JsonBool(json, "pinned"));
  row->announced = WC_TRY(JsonCount(json, "announced"));
  return Ok();
}

Bytes Encode(const EpochRow& row) {
  return ToBytes({{"v", 1},
                  {"epoch", row.epoch.value},
                  {"token", row.token},
                  {"plan", IdText(row.plan)},
                  {"participants", row.participants},
                  {"closed", row.closed}});
}

Status Decode(ByteSpan bytes, EpochRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->epoch.value = WC_TRY(JsonCount(json, "epoch"));
  row->token = WC_TRY(JsonString(json, "token"));
  row->plan = WC_TRY(JsonId<PlanHash>(json, "plan"));
  row->participants = WC_TRY(JsonIndices(json, "participants"));
  row->closed = WC_TRY(JsonBool(json, "closed"));
  return Ok();
}

Bytes Encode(const LeaseRow& row) {
  Json versions = Json::array();
  for (const VersionUid& version : row.versions) versions.push_back(IdText(version));
  return ToBytes({{"v", 1},
                  {"holder", row.holder},
                  {"expires_unix_ms", row.expires_unix_ms},
                  {"versions", std::move(versions)}});
}

Status Decode(ByteSpan bytes, LeaseRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  row->holder = WC_TRY(JsonString(json, "holder"));
  row->expires_unix_ms = WC_TRY(JsonInt(json, "expires_unix_ms"));
  const Json* versions = WC_TRY(JsonArray(json, "versions"));
  row->versions.clear();
  for (const Json& version : *versions) row->versions.push_back(WC_TRY(Uid(version)));
  return Ok();
}

Bytes Encode(const RoundRow& row) {
  const Round& round = row.round;
  Json engines = Json::array();
  for (const RoundEngine& engine : round.engines) engines.push_back(ToJson(engine));
  return ToBytes({{"v", 1},
                  {"uid", IdText(round.uid)},
                  {"run", IdText(round.run)},
                  {"version", IdText(round.version)},
                  {"state", StateName(round.state)},
                  {"engines", std::move(engines)},
                  {"created_unix_ms", round.created_unix_ms},
                  {"expires_unix_ms", round.expires_unix_ms},
                  {"failure", round.failure},
                  {"position", row.position},
                  {"lease_ms", row.lease_ms}});
}

Status Decode(ByteSpan bytes, RoundRow* row) {
  const Json json = WC_TRY(ParseVersion1(AsText(bytes)));
  Round& round = row->round;
  round.uid = WC_TRY(JsonId<RoundUid>(json, "uid"));
  round.run = WC_TRY(JsonId<RunUid>(json, "run"));
  round.version = WC_TRY(JsonId<VersionUid>(json, "version"));
  const std::string state = WC_TRY(JsonString(json, "state"));
  const auto it = std::ranges::find(kRoundStates, state);
  if (it == kRoundStates.end()) {
    return Error{Code::kInvalidData, "field \"state\": " + Quoted(state) + " is unknown"};
  }
  round.state = static_cast<RoundState>(it - kRoundStates.begin());
  const Json* engines = WC_TRY(JsonArray(json, "engines"));
  round.engines.assign(engines->size(), {});
  for (size_t i = 0; i < engines->size(); ++i) {
    WC_TRY(FromJson((*engines)[i], &round.engines[i]));
  }
  round.created_unix_ms = WC_TRY(JsonInt(json, "created_unix_ms"));
  round.expires_unix_ms = WC_TRY(JsonInt(json, "expires_unix_ms"));
  round.failure = WC_TRY(JsonString(json, "failure"));
  row->position = WC_TRY(JsonCount(json, "position"));
  row->lease_ms = WC_TRY(JsonCount(json, "lease_ms"));
  return Ok();
}

}  // namespace weightcast::catalog
