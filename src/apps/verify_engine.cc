#include "apps/verify_engine.h"

#include <numeric>

#include "engine/vllm.h"

namespace weightcast::apps {
namespace {

// The version that the engine says it serves.
Result<catalog::Version> Claimed(catalog::Catalog& catalog, const engine::EngineStatus& status,
                                 const std::string& run_name) {
  if (status.version.empty()) {
    return Error{Code::kConflict, "it is " + std::string(StateName(status.state)) +
                                      " and serves no version" +
                                      (status.reason.empty() ? "" : ": " + status.reason)};
  }
  catalog::Version version = WC_TRY(catalog.GetVersion(status.version));
  if (run_name.empty()) return version;
  const catalog::Run run = WC_TRY(catalog.FindRun(run_name));
  if (run.uid == version.run) return version;
  return Error{Code::kConflict, "it serves version " + version.uid.hex() + " of run " +
                                    version.run.hex() + ", expected one of run " + run_name + " (" +
                                    run.uid.hex() + ")"};
}

std::string ToText(const engine::Verdict& verdict, const std::string& url,
                   const catalog::Version& version, double took) {
  const bool verified = verdict.Check().ok();
  return url + ": " + (verified ? "verified" : "NOT verified") + ", version " +
         std::to_string(version.number) + " at root " + version.root.hex() + " in " +
         SecondsText(took) + "\n  tensors: " + std::to_string(verdict.live) + " live, " +
         std::to_string(verdict.repacked) + " repacked, " + std::to_string(verdict.probed) +
         " probed, " + std::to_string(verdict.unproven.size()) + " unproven, " +
         std::to_string(verdict.bad.size()) + " bad\n";
}

}  // namespace

Status VerifyEngine(App& app, const std::string& url, const std::string& catalog_url,
                    const std::string& run_name, Duration timeout) {
  if (catalog_url.empty()) {
    return Error{Code::kInvalidArgument, "verify --engine: expected --catalog"};
  }
  const SteadyTime begin = app.world().clock.Now();
  const auto catalog = WC_TRY(app.OpenCatalog(catalog_url, /*create=*/false));
  const auto face = engine::NewVllmFace(url, app.world().clock);
  const engine::EngineStatus status = WC_TRY(face->Ask(timeout));
  const catalog::Version version = WC_TRY(Claimed(*catalog, status, run_name).With(url));
  const catalog::Run run = WC_TRY(catalog->GetRun(version.run));
  const auto digests = WC_TRY(catalog->GetDigests(version.uid));
  const auto workers = WC_TRY(face->Prove(engine::ProofScope::kAll, timeout));
  WC_TRY(engine::CheckVersion(workers, version.uid).With(url));
  std::vector<int32_t> all(digests.size());
  std::iota(all.begin(), all.end(), 0);
  const engine::Verdict verdict = engine::Compare(*run.inventory, digests, all, workers);
  const Status checked = verdict.Check().With(url);
  const double took = ToSeconds(app.world().clock.Now() - begin);
  Json bad = Json::array();
  for (const engine::BadTensor& tensor : verdict.bad) bad.push_back(tensor.name);
  app.Emit({{"engine", url},
            {"run", run.name},
            {"version", version.uid.hex()},
            {"number", version.number},
            {"root", version.root.hex()},
            {"state", StateName(status.state)},
            {"verified", checked.ok()},
            {"tensors",
             {{"live", verdict.live},
              {"repacked", verdict.repacked},
              {"probed", verdict.probed},
              {"unproven", verdict.unproven}}},
            {"tensors_bad", std::move(bad)},
            {"seconds", took}},
           ToText(verdict, url, version, took));
  return checked;
}

}  // namespace weightcast::apps
