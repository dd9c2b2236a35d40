// log and show: what a catalog knows of versions.
#include <ctime>
#include <map>

#include "apps/command.h"
#include "apps/reports.h"
#include "apps/run_choice.h"
#include "base/text.h"

namespace weightcast::apps {
namespace {

using catalog::Run;
using catalog::Version;

// "2026-08-01 12:00:00" in UTC.
std::string TimeText(int64_t unix_ms) {
  const std::time_t seconds_since = unix_ms / 1000;
  std::tm parts = {};
  if (::gmtime_r(&seconds_since, &parts) == nullptr) return std::to_string(unix_ms);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return {text, length};
}

std::string ToLine(const Version& version, const std::vector<std::string>& aliases) {
  char text[160];
  std::snprintf(text, sizeof text, "%6lld  %s  %5lld  %-5s  %-9s  %9s  %9s  %s",
                static_cast<long long>(version.number), version.uid.brief().c_str(),
                static_cast<long long>(version.epoch.value),
                std::string(catalog::KindName(version.kind)).c_str(),
                std::string(catalog::StateName(version.state)).c_str(),
                PercentText(Density(version.stats)).c_str(),
                BytesText(version.stats.wire_bytes).c_str(),
                TimeText(version.created_unix_ms).c_str());
  std::string line = text;
  for (const std::string& alias : aliases) line += "  " + alias;
  for (const auto& [name, value] : version.labels) line += "  " + name + "=" + value;
  if (!version.failure.empty()) line += "  " + version.failure;
  return line + "\n";
}

Status Log(App& app, const std::string& catalog_url, const std::string& run_name) {
  const auto catalog = WC_TRY(app.OpenCatalog(catalog_url, /*create=*/false));
  std::vector<Run> runs;
  if (run_name.empty()) {
    runs = WC_TRY(catalog->ListRuns());
  } else {
    runs.push_back(WC_TRY(catalog->FindRun(run_name)));
  }
  Json versions = Json::array();
  std::string text;
  for (const Run& run : runs) {
    text += "run " + run.name + " (" + run.uid.hex() + ")\n";
    text += "number  uid       epoch  kind   state        changed      bytes  created (UTC)\n";
    const auto aliases = WC_TRY(catalog->ListAliases(run.uid));
    for (const Version& version : WC_TRY(catalog->ListVersions(run.uid))) {
      const std::vector<std::string> names = AliasesOf(aliases, version.uid);
      versions.push_back(ToJson(run, version, names));
      text += ToLine(version, names);
    }
  }
  app.Emit({{"versions", versions}}, text.empty() ? "no runs\n" : text);
  return Ok();
}

void AddDetails(const Run& run, const Version& version, Json* json, std::string* text) {
  Json side_files = Json::array();
  for (const catalog::SideFileRow& file : version.side_files) {
    side_files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256.hex()}});
    *text += "  side file " + file.name + ", " + BytesText(file.bytes) + "\n";
  }
  Json objects = Json::array();
  for (const catalog::ObjectRef& object : version.objects) {
    objects.push_back({{"role", catalog::RoleName(object.role)},
                       {"key", object.key},
                       {"bytes", object.bytes},
                       {"footer_bytes", object.footer_bytes},
                       {"footer_sha256", object.footer_sha256.hex()}});
    *text += "  " + std::string(catalog::RoleName(object.role)) + " part " + object.key + ", " +
             BytesText(object.bytes) + "\n";
  }
  Json carried = Json::array();
  for (const int32_t index : run.carried) {
    carried.push_back((*run.inventory)[static_cast<size_t>(index)].name);
  }
  (*json)["base_run"] = version.base_run.empty() ? "" : version.base_run.hex();
  (*json)["plan_hash"] = version.plan.empty() ? "" : version.plan.hex();
  (*json)["participants"] = version.participants;
  (*json)["elements"] = version.stats.elements;
  (*json)["changed_elements"] = version.stats.changed_elements;
  (*json)["payload_bytes"] = version.stats.payload_bytes;
  (*json)["tensors"] = run.inventory->size();
  (*json)["model_bytes"] = run.inventory->bytes();
  (*json)["carried"] = carried;
  (*json)["side_files"] = side_files;
  (*json)["objects"] = objects;
  (*json)["version_json"] =
      version.store_url + "/" + catalog::VersionJsonKey(version.run, version.uid);
}

Status Show(App& app, const std::string& catalog_url, const std::string& run_name,
            const std::string& version_name) {
  const auto catalog = WC_TRY(app.OpenCatalog(catalog_url, /*create=*/false));
  const Run run = WC_TRY(ChooseRun(*catalog, run_name));
  const Version version = WC_TRY(catalog->FindVersion(run.uid, version_name));
  const auto all_aliases = WC_TRY(catalog->ListAliases(run.uid));
  const std::vector<std::string> aliases = AliasesOf(all_aliases, version.uid);
  Json json = ToJson(run, version, aliases);
  std::string text =
      "version " + std::to_string(version.number) + " of run " + run.name + ", " +
      std::string(catalog::KindName(version.kind)) + ", " +
      std::string(catalog::StateName(version.state)) + "\n  uid  " + version.uid.hex() +
      "\n  root " + (version.root.empty() ? "none" : version.root.hex()) + "\n  base " +
      (version.base.empty() ? "none" : version.base.hex()) + "\n" + ToLine(version, aliases);
  AddDetails(run, version, &json, &text);
  app.Emit({{"versions", Json::array({json})}}, text);
  return Ok();
}

struct Values {
  std::string catalog;
  std::string run;
  std::string version;
};

}  // namespace

std::vector<Command> LogCommands() {
  return {
      {"log", "list every version and attempt, with what it cost",
       "  weightcast log --catalog sqlite:c.db\n"
       "  weightcast log --catalog sqlite:c.db --run policy --json\n",
       [](Flags& f) {
         auto v = std::make_shared<Values>();
         f.RequiredText("--catalog", &v->catalog, "sqlite:PATH")
             .Text("--run", &v->run, "name of the run; all if it is not given");
         return [v](App& app) { return Log(app, v->catalog, v->run); };
       }},
      {"show", "show all of one version: identity, lineage, parts, side files",
       "  weightcast show --catalog sqlite:c.db --run policy latest\n"
       "  weightcast show --catalog sqlite:c.db --run policy 7\n",
       [](Flags& f) {
         auto v = std::make_shared<Values>();
         f.RequiredText("--catalog", &v->catalog, "sqlite:PATH")
             .Text("--run", &v->run, "name of the run; the only one if it is not given")
             .Argument("VERSION", &v->version, "number, uid, alias or latest");
         return [v](App& app) { return Show(app, v->catalog, v->run, v->version); };
       }},
  };
}

}  // namespace weightcast::apps
