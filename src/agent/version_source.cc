#include <map>
#include <optional>

#include "agent/agent.h"
#include "base/text.h"
#include "catalog/replay_plan.h"

namespace weightcast::agent {
namespace {

// As base/json.h. 60 bytes a tensor, and what the parts need.
constexpr int64_t kVersionJsonBytesMax = 256 * kMiB;

class CatalogSource final : public VersionSource {
 public:
  CatalogSource(catalog::Catalog& catalog, catalog::Run run, catalog::Version target)
      : catalog_(catalog), run_(std::move(run)), target_(std::move(target)) {}

  const catalog::Run& run() const override { return run_; }
  const catalog::Version& target() const override { return target_; }
  Result<std::vector<tensor::TensorDigest>> Digests(const VersionUid& version) override {
    return catalog_.GetDigests(version);
  }
  Result<catalog::ReplayPlan> Plan(const catalog::ReplayRequest& request) override {
    return catalog_.PlanReplay(request);
  }
  Status RenewLease(const LeaseId& lease, Duration lease_for) override {
    return catalog_.RenewLease(lease, lease_for);
  }
  Status EndLease(const LeaseId& lease) override { return catalog_.EndLease(lease); }

 private:
  catalog::Catalog& catalog_;
  const catalog::Run run_;
  const catalog::Version target_;
};

// Walks the lineage from file to file, as far as the plan asks. Nothing is leased: what is released
// meanwhile is found missing by the fetch.
class JsonSource final : public VersionSource {
 public:
  JsonSource(store::Store& store, catalog::VersionDocument target)
      : store_(store), target_(target.version.uid) {
    documents_.emplace(target_, std::move(target));
  }

  const catalog::Run& run() const override { return documents_.at(target_)->run; }
  const catalog::Version& target() const override { return documents_.at(target_)->version; }

  Result<std::vector<tensor::TensorDigest>> Digests(const VersionUid& version) override {
    const auto found = documents_.find(version);
    if (found != documents_.end() && found->second) return found->second->digests;
    return Error{Code::kNotFound, "version " + version.hex() + " was not read"};
  }

  Result<catalog::ReplayPlan> Plan(const catalog::ReplayRequest& request) override {
    RunUid run = documents_.at(target_)->run.uid;  // of the version that is asked for next
    return catalog::ChooseReplay(
        [&](const VersionUid& uid) -> Result<const catalog::Version*> {
          const catalog::VersionDocument* document = WC_TRY(Find(run, uid));
          if (document == nullptr) return nullptr;
          const catalog::Version& version = document->version;
          run = version.base_run.empty() ? version.run : version.base_run;
          return &version;
        },
        request);
  }

  Status RenewLease(const LeaseId&, Duration) override { return Ok(); }
  Status EndLease(const LeaseId&) override { return Ok(); }

 private:
  Result<const catalog::VersionDocument*> Find(const RunUid& run, const VersionUid& uid) {
    const auto found = documents_.find(uid);
    if (found != documents_.end()) return found->second ? &*found->second : nullptr;
    const std::string key = catalog::VersionJsonKey(run, uid);
    const auto text = store_.GetAll(key, kVersionJsonBytesMax);
    if (!text.ok()) {
      if (text.error().code != Code::kNotFound) return text.error();
      documents_.emplace(uid, std::nullopt);
      return nullptr;
    }
    catalog::VersionDocument document = WC_TRY(catalog::ParseVersionJson(AsText(*text)).With(key));
    if (document.version.uid != uid) {
      return Error{Code::kDataLoss, key + ": is of version " + document.version.uid.hex()};
    }
    return &*documents_.emplace(uid, std::move(document)).first->second;
  }

  store::Store& store_;
  const VersionUid target_;
  std::map<VersionUid, std::optional<catalog::VersionDocument>> documents_;  // empty: not there
};

}  // namespace

Result<std::unique_ptr<VersionSource>> FromCatalog(catalog::Catalog& catalog,
                                                   const std::string& run,
                                                   const std::string& version) {
  catalog::Run found = WC_TRY(catalog.FindRun(run));
  catalog::Version target = WC_TRY(catalog.FindVersion(found.uid, version));
  return std::unique_ptr<VersionSource>(
      std::make_unique<CatalogSource>(catalog, std::move(found), std::move(target)));
}

Result<std::unique_ptr<VersionSource>> FromVersionJson(store::Store& store,
                                                       const std::string& key) {
  const Bytes text = WC_TRY(store.GetAll(key, kVersionJsonBytesMax).With(store.url()));
  catalog::VersionDocument document = WC_TRY(catalog::ParseVersionJson(AsText(text)).With(key));
  return std::unique_ptr<VersionSource>(std::make_unique<JsonSource>(store, std::move(document)));
}

}  // namespace weightcast::agent
