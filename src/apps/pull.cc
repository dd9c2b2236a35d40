// pull and verify: an image directory moved to a version, and proven.
#include "agent/agent.h"
#include "apps/command.h"
#include "apps/reports.h"
#include "apps/verify_engine.h"
#include "base/text.h"

namespace weightcast::apps {
namespace {

struct PullFlags {
  std::string catalog;
  std::string run;
  std::string version = "latest";
  std::string from;
  std::string seed;
  std::string store;
  std::string durability = "host";
  std::string image;
  int64_t threads = 0;
  int64_t journal_mib = 4096;
  int64_t hold_seconds = 60;
};

// "file:/data/bytes/runs/…/version.json" -> store URL and key.
Result<std::pair<std::string, std::string>> SplitVersionUrl(const std::string& url) {
  const size_t runs = url.find("/runs/");
  if (runs == std::string::npos || !url.ends_with("/version.json")) {
    return Error{Code::kInvalidArgument,
                 "--from " + Quoted(url) + ": expected STORE/runs/.../version.json"};
  }
  return std::pair(url.substr(0, runs), url.substr(runs + 1));
}

std::string ToText(const agent::PullReport& report, const std::string& run_name,
                   const std::string& image) {
  if (report.how == "current") {
    return image + " is at version " + std::to_string(report.number) + " of run " + run_name +
           " already, root " + report.root.brief() + "\n";
  }
  return image + ": version " + std::to_string(report.number) + " of run " + run_name + " (" +
         report.how + ", " + std::to_string(report.chain.size()) + " versions replayed), root " +
         report.root.brief() + "\n  fetched " + BytesText(report.fetched_bytes) + ", prepared in " +
         SecondsText(report.seconds_fetch + report.seconds_prepare) + ", applied in " +
         SecondsText(report.seconds_apply) + ", proven in " + SecondsText(report.seconds_verify) +
         "\n";
}

Status Pull(App& app, const PullFlags& flags) {
  if (flags.from.empty() && (flags.catalog.empty() || flags.run.empty())) {
    return Error{Code::kInvalidArgument, "pull: expected --catalog with --run, or --from URL"};
  }
  std::unique_ptr<catalog::Catalog> catalog;
  std::unique_ptr<agent::VersionSource> source;
  if (flags.from.empty()) {
    catalog = WC_TRY(app.OpenCatalog(flags.catalog, /*create=*/false));
    source = WC_TRY(agent::FromCatalog(*catalog, flags.run, flags.version));
  } else {
    const auto [url, key] = WC_TRY(SplitVersionUrl(flags.from));
    source = WC_TRY(agent::FromVersionJson(*WC_TRY(app.OpenStore(url)), key));
  }
  agent::AgentOptions options;
  options.durability =
      flags.durability == "host" ? agent::Durability::kHost : agent::Durability::kProcess;
  options.threads = static_cast<int>(flags.threads);
  options.journal_bytes_max = flags.journal_mib * kMiB;
  options.hold_timeout = seconds(flags.hold_seconds);
  options.turn_timeout = options.hold_timeout;
  agent::Agent agent(
      app.world(),
      [&](const std::string& url) {
        return app.OpenStore(flags.store.empty() ? url : flags.store);
      },
      options);
  const agent::PullReport report =
      WC_TRY(agent.Pull(*source, flags.image, flags.seed, [&](int64_t done, int64_t total) {
        app.Progress("pull", done, total);
        return Ok();
      }));
  const std::string name = source->run().name;
  app.Emit(ToJson(report, name), ToText(report, name, flags.image));
  return Ok();
}

struct VerifyFlags {
  std::string image;
  std::string engine;
  std::string run;
  int64_t engine_seconds = 600;
  std::string catalog;
  int64_t threads = 0;
};

Status Verify(App& app, const VerifyFlags& flags) {
  if (flags.image.empty() == flags.engine.empty()) {
    return Error{Code::kInvalidArgument, "verify: expected IMAGE_DIR, or --engine URL"};
  }
  if (!flags.engine.empty()) {
    return VerifyEngine(app, flags.engine, flags.catalog, flags.run, seconds(flags.engine_seconds));
  }
  std::unique_ptr<catalog::Catalog> catalog;
  if (!flags.catalog.empty()) catalog = WC_TRY(app.OpenCatalog(flags.catalog, /*create=*/false));
  const agent::VerifyReport report = WC_TRY(agent::VerifyImage(
      app.world(), flags.image, static_cast<int>(flags.threads), agent::DigestsIn(catalog.get()),
      [&](int64_t done) { app.Progress("verify", done, done); }));
  const Json document = ToJson(report);
  if (report.verified) {
    app.Emit(document, flags.image + ": verified, " + BytesText(report.bytes) + " at root " +
                           report.root.hex() + " in " + SecondsText(report.seconds) + "\n");
    return Ok();
  }
  app.Emit(document, flags.image + ": NOT verified\n");
  std::vector<std::string> names = report.tensors_bad;
  names.insert(names.end(), report.side_files_bad.begin(), report.side_files_bad.end());
  const std::string roots =
      report.root == report.claimed
          ? "root " + report.root.hex() + " is right, side files are not"
          : "root expected " + report.claimed.hex() + ", found " + report.root.hex();
  return Error{Code::kDataLoss,
               flags.image + ": does not verify: " + roots + "; bad: " + JoinNames(names)};
}

}  // namespace

std::vector<Command> PullCommands() {
  return {
      {"pull", "bring an image directory to a version, crash-safely, and prove it",
       "  weightcast pull --catalog sqlite:c.db --run policy --seed SEED_DIR /images/policy\n"
       "  weightcast pull --catalog sqlite:c.db --run policy --version 7 /images/policy\n"
       "  weightcast pull --from file:/data/bytes/runs/RUN/UID/version.json /images/policy\n",
       [](Flags& f) {
         auto v = std::make_shared<PullFlags>();
         f.Text("--catalog", &v->catalog, "sqlite:PATH")
             .Text("--run", &v->run, "name of the run")
             .Text("--version", &v->version, "number, uid, alias or latest; may be an older one")
             .Text("--from", &v->from, "a version.json in a store; wins over a catalog")
             .Text("--seed", &v->seed, "the seed checkpoint, where a chain begins at version 0")
             .Text("--store", &v->store,
                   "where bytes lie now, instead of the URL that versions remember")
             .Choice("--durability", &v->durability, {"process", "host"},
                     "what an update survives: the death of any process, or of the host too")
             .Int("--threads", &v->threads, "0: all CPUs", kThreadsMax)
             .Int("--journal-mib", &v->journal_mib,
                  "largest journal; checked before anything is applied", kInt32Max)
             .Int("--hold-seconds", &v->hold_seconds, "how long to wait for readers of the image",
                  kSecondsMax)
             .Argument("IMAGE_DIR", &v->image, "made if missing");
         return [v](App& app) { return Pull(app, *v); };
       }},
      {"verify", "digest every byte of an image directory again, or prove what an engine serves",
       "  weightcast verify /images/policy\n"
       "  weightcast verify /images/policy --catalog sqlite:c.db\n"
       "  weightcast verify --engine http://host:8000 --catalog sqlite:c.db\n",
       [](Flags& f) {
         auto v = std::make_shared<VerifyFlags>();
         f.OptionalArgument("IMAGE_DIR", &v->image, "an image made by pull")
             .Text("--engine", &v->engine, "http://HOST:PORT; proves its live parameters")
             .Text("--run", &v->run, "the engine must serve a version of this run")
             .Int("--engine-seconds", &v->engine_seconds, "how long the engine may take",
                  kSecondsMax)
             .Text("--catalog", &v->catalog,
                   "verify against the version that image or engine claims")
             .Int("--threads", &v->threads, "0: all CPUs", kThreadsMax);
         return [v](App& app) { return Verify(app, *v); };
       }},
  };
}

}  // namespace weightcast::apps
