#include "apps/reports.h"

namespace weightcast::apps {

double Density(const catalog::PublishStats& stats) {
  if (stats.elements == 0) return 0;
  return static_cast<double>(stats.changed_elements) / static_cast<double>(stats.elements);
}

Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const trainer::PublishReport& report) {
  const catalog::PublishStats& stats = report.stats;
  return {{"run", run.name},
          {"number", version.number},
          {"uid", version.uid.hex()},
          {"epoch", version.epoch.value},
          {"kind", catalog::KindName(version.kind)},
          {"state", catalog::StateName(version.state)},
          {"base", version.base.empty() ? Json() : Json(version.base.hex())},
          {"root", version.root.empty() ? Json() : Json(version.root.hex())},
          {"elements", stats.elements},
          {"changed_elements", stats.changed_elements},
          {"density", Density(stats)},
          {"payload_bytes", stats.payload_bytes},
          {"wire_bytes", stats.wire_bytes},
          {"baseline_rebuilt", report.baseline_rebuilt},
          {"already", report.already},
          {"seconds",
           {{"diff", report.seconds_diff},
            {"encode", report.seconds_encode},
            {"stall", report.seconds_stall},
            {"store", report.seconds_store},
            {"announce", report.seconds_announce},
            {"total", report.seconds_total}}}};
}

Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const std::vector<std::string>& aliases) {
  Json labels = Json::object();
  for (const auto& [name, value] : version.labels) labels[name] = value;
  return {{"run", run.name},
          {"number", version.number},
          {"uid", version.uid.hex()},
          {"epoch", version.epoch.value},
          {"kind", catalog::KindName(version.kind)},
          {"state", catalog::StateName(version.state)},
          {"base", version.base.empty() ? "" : version.base.hex()},
          {"root", version.root.empty() ? "" : version.root.hex()},
          {"created", static_cast<double>(version.created_unix_ms) / 1000},
          {"wire_bytes", version.stats.wire_bytes},
          {"density", Density(version.stats)},
          {"step", version.step_token},
          {"store", version.store_url},
          {"failure", version.failure},
          {"labels", labels},
          {"aliases", aliases}};
}

Json ToJson(const agent::PullReport& report, const std::string& run_name) {
  Json chain = Json::array();
  for (const VersionUid& uid : report.chain) chain.push_back(uid.hex());
  Json sources = Json::object();
  for (const auto& [kind, bytes] : report.sources) sources[kind] = bytes;
  return {{"run", run_name},
          {"number", report.number},
          {"uid", report.version.hex()},
          {"root", report.root.hex()},
          {"how", report.how},
          {"chain", chain},
          {"fetched_bytes", report.fetched_bytes},
          {"sources", sources},
          {"journal_bytes", report.journal_bytes},
          {"changed_elements", report.changed_units},
          {"seconds",
           {{"fetch", report.seconds_fetch},
            {"verify", report.seconds_verify},
            {"prepare", report.seconds_prepare},
            {"apply", report.seconds_apply},
            {"total", report.seconds_total}}}};
}

Json ToJson(const agent::VerifyReport& report) {
  return {{"root", report.root.hex()},         {"claimed", report.claimed.hex()},
          {"verified", report.verified},       {"bytes", report.bytes},
          {"tensors_bad", report.tensors_bad}, {"side_files_bad", report.side_files_bad},
          {"seconds", report.seconds}};
}

std::vector<std::string> AliasesOf(const std::map<std::string, VersionUid>& aliases,
                                   const VersionUid& uid) {
  std::vector<std::string> names;
  for (const auto& [name, version] : aliases) {
    if (version == uid) names.push_back(name);
  }
  return names;
}

}  // namespace weightcast::apps
