// The catalog's protocol, written once over rows: docs/design/catalog_protocol.md. A database is a
// Rows underneath.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "catalog/rows.h"
#include "os/world.h"

namespace weightcast::catalog {

class RowCatalog : public Catalog {
 public:
  // Puts the first row into an empty database. Errors: kDataLoss if there are rows, but not that
  // one. Random bytes become uids; `random` must outlive the catalog.
  static Result<std::unique_ptr<Catalog>> Open(std::unique_ptr<Rows> rows, os::Random& random);

  // row_catalog.cc: runs, versions as they are, aliases, pins.
  Result<Run> OpenRun(const RunRequest& request) override;
  Result<Run> FindRun(const std::string& name) override;
  Result<Run> GetRun(const RunUid& uid) override;
  Result<std::vector<Run>> ListRuns() override;
  Result<Version> GetVersion(const VersionUid& uid) override;
  Result<Version> FindVersion(const RunUid& run, const std::string& text) override;
  Result<std::vector<Version>> ListVersions(const RunUid& run) override;
  Result<std::vector<tensor::TensorDigest>> GetDigests(const VersionUid& uid) override;
  Result<std::vector<Announcement>> GetAnnouncements(const VersionUid& uid) override;
  Status SetAlias(const RunUid& run, const std::string& alias, const VersionUid& version) override;
  Status RemoveAlias(const RunUid& run, const std::string& alias) override;
  Result<std::map<std::string, VersionUid>> ListAliases(const RunUid& run) override;
  Status SetPin(const VersionUid& version, bool pinned) override;
  Result<std::string> Incarnation() override;

  // origin.cc: where versions come from without being published.
  Result<Run> ForkRun(const std::string& name, const VersionUid& version) override;
  Result<Version> RegisterSeed(const SeedRequest& request) override;
  Status Restore(const Run& run, const Version& version,
                 const std::vector<tensor::TensorDigest>& digests) override;

  // publish.cc
  Result<Epoch> OpenEpoch(const EpochRequest& request) override;
  Result<Version> BeginVersion(const BeginRequest& request) override;
  Result<Version> Announce(const Announcement& announcement) override;
  Status FailVersion(const VersionUid& uid, const std::string& reason) override;

  // retention.cc
  Result<ReplayPlan> PlanReplay(const ReplayRequest& request) override;
  Status RenewLease(const LeaseId& lease, Duration lease_for) override;
  Status EndLease(const LeaseId& lease) override;
  Status BeginRelease(const VersionUid& uid) override;
  Status FinishRelease(const VersionUid& uid) override;

  // rounds.cc
  Result<Round> BeginRound(const RoundRequest& request) override;
  Result<Round> UpdateRound(const RoundUid& uid, RoundState expected, RoundState next,
                            const std::vector<RoundEngine>& engines) override;
  Result<Round> GetRound(const RoundUid& uid) override;
  Result<std::vector<Round>> ListRounds(const RunUid& run) override;

 private:
  RowCatalog(std::unique_ptr<Rows> rows, os::Random& random)
      : rows_(std::move(rows)), random_(random) {}

  const std::unique_ptr<Rows> rows_;
  os::Random& random_;
};

}  // namespace weightcast::catalog
