// round: the engines of a run brought to a version together.
#include "fleet/round.h"

#include <filesystem>

#include "apps/command.h"
#include "engine/vllm.h"

namespace weightcast::apps {
namespace {

struct RoundFlags {
  std::vector<std::string> engines;
  std::string catalog;
  std::string run;
  std::string version = "latest";
  std::string image;
  std::string seed;
  std::string store;
  int64_t threads = 0;
  bool keep_canonical = false;
  bool no_init = false;
  std::string pause_mode = "keep";
  int64_t ask_seconds = 20;
  int64_t prepare_seconds = 3600;
  int64_t pause_seconds = 120;
  int64_t update_seconds = 300;
  int64_t prove_seconds = 300;
  int64_t lease_seconds = 120;
};

std::string AbsolutePath(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

Result<fleet::RoundOptions> OptionsOf(const RoundFlags& flags) {
  fleet::RoundOptions options;
  if (flags.no_init == !flags.image.empty()) {
    return Error{Code::kInvalidArgument, "round: expected --image DIR, or --no-init"};
  }
  if (!flags.no_init) {
    engine::InitInfo info;
    info.catalog = WC_TRY(AbsoluteUrl(flags.catalog));
    info.run = flags.run;
    info.image = AbsolutePath(flags.image);
    info.seed = AbsolutePath(flags.seed);
    info.store = WC_TRY(AbsoluteUrl(flags.store));
    info.threads = flags.threads;
    info.keep_canonical = flags.keep_canonical;
    options.init = std::move(info);
  }
  options.pause_mode = flags.pause_mode == "wait"    ? engine::PauseMode::kWait
                       : flags.pause_mode == "abort" ? engine::PauseMode::kAbort
                                                     : engine::PauseMode::kKeep;
  options.ask_timeout = seconds(flags.ask_seconds);
  options.prepare_timeout = seconds(flags.prepare_seconds);
  options.pause_timeout = seconds(flags.pause_seconds);
  options.update_timeout = seconds(flags.update_seconds);
  options.prove_timeout = seconds(flags.prove_seconds);
  options.lease = seconds(flags.lease_seconds);
  return options;
}

Json ToJson(const fleet::RoundReport& report, const std::string& run,
            const catalog::Version& version) {
  Json engines = Json::array();
  for (size_t i = 0; i < report.engines.size(); ++i) {
    const catalog::RoundEngine& row = report.round.engines[i];
    const fleet::EngineReport& engine = report.engines[i];
    engines.push_back({{"url", row.url},
                       {"state", row.state},
                       {"version", row.version.empty() ? "" : row.version.hex()},
                       {"incarnation", row.incarnation},
                       {"reason", row.reason},
                       {"seconds",
                        {{"prepare", engine.seconds_prepare},
                         {"pause", engine.seconds_pause},
                         {"update", engine.seconds_update},
                         {"prove", engine.seconds_prove}}}});
  }
  return {{"round", report.round.uid.hex()}, {"run", run},
          {"version", version.uid.hex()},    {"number", version.number},
          {"root", version.root.hex()},      {"state", StateName(report.round.state)},
          {"engines", std::move(engines)},   {"seconds", report.seconds}};
}

std::string ToText(const fleet::RoundReport& report, const std::string& run,
                   const catalog::Version& version) {
  std::string text = "round " + report.round.uid.brief() + " " +
                     std::string(StateName(report.round.state)) + ": version " +
                     std::to_string(version.number) + " of run " + run + ", root " +
                     version.root.brief() + ", in " + SecondsText(report.seconds) + "\n";
  for (size_t i = 0; i < report.engines.size(); ++i) {
    const catalog::RoundEngine& row = report.round.engines[i];
    const fleet::EngineReport& engine = report.engines[i];
    text +=
        "  " + row.url + " " + row.state + ": prepared in " + SecondsText(engine.seconds_prepare) +
        ", paused for " + SecondsText(engine.seconds_pause) + " (updated in " +
        SecondsText(engine.seconds_update) + ", proven in " + SecondsText(engine.seconds_prove) +
        ")" + (row.reason.empty() ? "" : "; " + row.reason) + "\n";
  }
  return text;
}

Status Round(App& app, const RoundFlags& flags) {
  const fleet::RoundOptions options = WC_TRY(OptionsOf(flags));
  const auto catalog = WC_TRY(app.OpenCatalog(flags.catalog, /*create=*/false));
  const catalog::Run run = WC_TRY(catalog->FindRun(flags.run));
  const catalog::Version version = WC_TRY(catalog->FindVersion(run.uid, flags.version));
  std::vector<std::unique_ptr<engine::Face>> faces;
  for (const std::string& url : flags.engines) {
    faces.push_back(engine::NewVllmFace(url, app.world().clock));
  }
  const fleet::RoundReport report =
      WC_TRY(fleet::RunRound(app.world(), *catalog, version, faces, options));
  app.Emit(ToJson(report, run.name, version), ToText(report, run.name, version));
  return report.Outcome();
}

}  // namespace

std::vector<Command> RoundCommands() {
  return {{"round", "bring the engines of a run to a version together, and prove each",
           "  weightcast round --engines http://a:8000 http://b:8000 --catalog sqlite:c.db \\\n"
           "    --run policy --image /images/policy --seed SEED_DIR\n"
           "  weightcast round --engines http://a:8000 --catalog sqlite:c.db --run policy \\\n"
           "    --version 7 --no-init --pause-mode wait\n",
           [](Flags& f) {
             auto v = std::make_shared<RoundFlags>();
             f.RequiredList("--engines", &v->engines, "http://HOST:PORT of each")
                 .RequiredText("--catalog", &v->catalog, "sqlite:PATH, as the engines reach it too")
                 .RequiredText("--run", &v->run, "name of the run")
                 .Text("--version", &v->version, "number, uid, alias or latest")
                 .Text("--image", &v->image, "the image directory on the engines' hosts")
                 .Text("--seed", &v->seed, "the seed checkpoint on the engines' hosts")
                 .Text("--store", &v->store,
                       "where bytes lie now, instead of the URL that versions remember")
                 .Bool("--keep-canonical", &v->keep_canonical,
                       "engines on a CPU: linear layers keep their weights as checkpoints lay "
                       "them, so that "
                       "a delta costs what it changes; generation may be slower")
                 .Int("--threads", &v->threads, "of each engine worker; 0: all CPUs", kThreadsMax)
                 .Bool("--no-init", &v->no_init,
                       "the engines were told before where catalog and image are")
                 .Choice("--pause-mode", &v->pause_mode, {"wait", "abort", "keep"},
                         "running requests end first, end now, or stand still and go on")
                 .Int("--ask-seconds", &v->ask_seconds, "for an answer about its state",
                      kSecondsMax)
                 .Int("--prepare-seconds", &v->prepare_seconds,
                      "for init and for preparing, each, while it serves", kSecondsMax)
                 .Int("--pause-seconds", &v->pause_seconds, "for pause, flush and resume, each",
                      kSecondsMax)
                 .Int("--update-seconds", &v->update_seconds, "for start, update and finish, each",
                      kSecondsMax)
                 .Int("--prove-seconds", &v->prove_seconds, "for the proof", kSecondsMax)
                 .Int("--lease-seconds", &v->lease_seconds,
                      "how long the run is blocked if this process dies", kSecondsMax);
             return [v](App& app) { return Round(app, *v); };
           }}};
}

}  // namespace weightcast::apps
