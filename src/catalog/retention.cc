// Replays with their leases, and release.
#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "catalog/row_catalog.h"
#include "catalog/transaction.h"

namespace weightcast::catalog {
namespace {

Result<int64_t> LeaseMillis(Duration lease) {
  const int64_t ms = std::chrono::duration_cast<milliseconds>(lease).count();
  if (ms > 0) return ms;
  return Error{Code::kInvalidArgument, "a lease must last at least a millisecond"};
}

// The versions of a plan that have bytes to keep. An image may begin at a released one.
std::vector<VersionUid> Leased(const ReplayPlan& plan) {
  std::vector<VersionUid> versions;
  if (plan.start_version.state == VersionState::kReady) {
    versions.push_back(plan.start_version.uid);
  }
  for (const Version& step : plan.steps) versions.push_back(step.uid);
  return versions;
}

// Who holds a version by a lease; expired leases are removed on the way.
Result<std::vector<std::string>> LeaseHolders(Tables& tables, const VersionUid& version) {
  std::vector<std::string> holders;
  std::vector<LeaseId> expired;
  const int64_t now = tables.now();
  for (const auto& [id, lease] : WC_TRY(tables.Leases())) {
    if (lease.expires_unix_ms <= now) {
      expired.push_back(id);
    } else if (std::ranges::find(lease.versions, version) != lease.versions.end()) {
      holders.push_back("lease of " + Quoted(lease.holder) + " for " +
                        std::to_string((lease.expires_unix_ms - now) / 1000) + " s more");
    }
  }
  WC_TRY(tables.Delete(expired));
  return holders;
}

Result<std::vector<std::string>> Holders(Tables& tables, const VersionRow& row) {
  const Version& version = row.version;
  std::vector<std::string> holders = WC_TRY(LeaseHolders(tables, version.uid));
  const HeadRow head = WC_TRY(tables.Head(version.run));
  if (head.latest == version.uid) holders.push_back("it is the latest version of its run");
  if (row.pinned) holders.push_back("pin");
  for (const auto& [alias, uid] : head.aliases) {
    if (uid == version.uid) holders.push_back("alias " + alias);
  }
  const std::vector<Version> versions = WC_TRY(tables.AllVersions());
  for (const Version* lost : LostWithout(versions, version.uid)) {
    holders.push_back(VersionText(*lost) +
                      (lost->run == version.run ? "" : " of run " + lost->run.hex()) +
                      " has no other complete chain");
  }
  return holders;
}

}  // namespace

Result<ReplayPlan> RowCatalog::PlanReplay(const ReplayRequest& request) {
  const int64_t lease_ms = WC_TRY(LeaseMillis(request.lease));
  WC_TRY(CheckText("lease holder", request.holder));
  return InWrite(*rows_, [&](Tables& t) -> Result<ReplayPlan> {
    std::map<VersionUid, Version> looked_up;
    const FindVersionFn find = [&](const VersionUid& uid) -> Result<const Version*> {
      std::optional<VersionRow> row = WC_TRY(t.FindVersion(uid));
      if (!row) return nullptr;
      return &looked_up.insert_or_assign(uid, std::move(row->version)).first->second;
    };
    ReplayPlan plan = WC_TRY(ChooseReplay(find, request));
    plan.lease = os::NewId<LeaseId>(random_);
    WC_TRY(t.Create(plan.lease, LeaseRow{request.holder, t.now() + lease_ms, Leased(plan)}));
    return plan;
  });
}

Status RowCatalog::RenewLease(const LeaseId& lease, Duration lease_for) {
  const int64_t lease_ms = WC_TRY(LeaseMillis(lease_for));
  return InWrite(*rows_, [&](Tables& t) -> Status {
    LeaseRow row = WC_TRY(t.Lease(lease));
    if (row.expires_unix_ms <= t.now()) {
      return Error{Code::kNotFound,
                   "lease " + lease.hex() + " of " + Quoted(row.holder) + " expired " +
                       std::to_string((t.now() - row.expires_unix_ms) / 1000) + " s ago"};
    }
    row.expires_unix_ms = t.now() + lease_ms;
    return t.Save(lease, row);
  });
}

Status RowCatalog::EndLease(const LeaseId& lease) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    const Result<LeaseRow> row = t.Lease(lease);
    if (row.ok()) return t.Delete({lease});
    if (row.error().code == Code::kNotFound) return Ok();
    return row.error();
  });
}

Status RowCatalog::BeginRelease(const VersionUid& uid) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    VersionRow row = WC_TRY(t.Version(uid));
    if (row.version.state == VersionState::kReleasing) return Ok();  // a sweeper begins again
    if (row.version.state != VersionState::kReady) {
      return Error{Code::kConflict, VersionText(row.version) + " is " +
                                        std::string(StateName(row.version.state)) +
                                        ", only READY versions can be released"};
    }
    const std::vector<std::string> holders = WC_TRY(Holders(t, row));
    if (!holders.empty()) {
      return Error{Code::kConflict,
                   VersionText(row.version) + " cannot be released: " + JoinNames(holders)};
    }
    row.version.state = VersionState::kReleasing;
    return t.Save(row);
  });
}

Status RowCatalog::FinishRelease(const VersionUid& uid) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    VersionRow row = WC_TRY(t.Version(uid));
    if (row.version.state == VersionState::kReleased) return Ok();
    if (row.version.state != VersionState::kReleasing) {
      return Error{Code::kConflict, VersionText(row.version) + " is " +
                                        std::string(StateName(row.version.state)) +
                                        ", expected RELEASING"};
    }
    // No lease can hold it: release began when none did, and RELEASING grants none.
    row.version.state = VersionState::kReleased;
    return t.Save(row);
  });
}

}  // namespace weightcast::catalog
