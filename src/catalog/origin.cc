// Versions that were not published here: seeds, forks, and what a rebuild puts back.
#include <algorithm>

#include "base/text.h"
#include "catalog/attempts.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "catalog/row_catalog.h"
#include "catalog/transaction.h"
#include "catalog/version_json.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

// Puts a READY version into a run's rows and head.
Status PutReady(Tables& tables, const Version& version,
                const std::vector<tensor::TensorDigest>& digests, HeadRow* head) {
  WC_TRY(tables.Create(VersionRow{version, false, 0}, head));
  WC_TRY(tables.SaveDigests(version.uid, digests));
  if (version.number == 0) head->seed = version.uid;
  if (version.number > head->latest_number) {
    head->latest = version.uid;
    head->latest_number = version.number;
  }
  return tables.Save(version.run, *head);
}

Version SeedVersion(const VersionUid& uid, const RunUid& run, int64_t now) {
  Version version;
  version.uid = uid;
  version.run = run;
  version.kind = VersionKind::kSeed;
  version.state = VersionState::kReady;
  version.created_unix_ms = now;
  return version;
}

// The run of a restored document: created, or found equal.
Status RestoreRun(Tables& tables, const Run& run) {
  const std::optional<RunRow> found = WC_TRY(tables.RunByName(run.name));
  if (found) {
    const Run known = WC_TRY(tables.Whole(*found));
    const bool equal = known.uid == run.uid && *known.inventory == *run.inventory &&
                       known.carried == run.carried && known.forked_from == run.forked_from &&
                       known.created_unix_ms == run.created_unix_ms;
    if (equal) return Ok();
    return Error{Code::kConflict, "run " + run.name + " (" + run.uid.hex() +
                                      ") differs from the one in the catalog (" + known.uid.hex() +
                                      ")"};
  }
  const Result<RunRow> other = tables.RunByUid(run.uid);
  if (other.ok()) {
    return Error{Code::kConflict, "run " + run.uid.hex() + " is named " + run.name +
                                      ", in the catalog " + other->name};
  }
  if (other.error().code != Code::kNotFound) return other.error();
  RunRow row;
  row.uid = run.uid;
  row.name = run.name;
  row.tensors = static_cast<int64_t>(run.inventory->size());
  row.carried = run.carried;
  row.forked_from = run.forked_from;
  row.created_unix_ms = run.created_unix_ms;
  return tables.Create(row, *run.inventory);
}

// Epochs go on after the highest that was seen; that one stays closed.
Status RestoreEpoch(Tables& tables, const Version& version, HeadRow* head) {
  if (version.epoch.value == 0) return Ok();
  const std::vector<EpochRow> epochs = WC_TRY(tables.Epochs(version.run, *head));
  const auto found = std::ranges::find(epochs, version.epoch, &EpochRow::epoch);
  if (found != epochs.end()) {
    if (found->plan == version.plan && found->participants == version.participants) return Ok();
    return Error{Code::kConflict, "epoch " + std::to_string(version.epoch.value) + " has plan " +
                                      found->plan.hex() + ", " + VersionText(version) + " of it " +
                                      version.plan.hex() + " or other participants"};
  }
  head->epoch = std::max(head->epoch, version.epoch);
  return tables.Create(version.run,
                       EpochRow{version.epoch, "", version.plan, version.participants, true}, head);
}

// A version that is there already must be the same, to the byte of its version.json.
Status SameVersion(Tables& tables, const VersionRow& known, const VersionDocument& document) {
  if (known.version.state == VersionState::kReady) {
    const VersionDocument mine{document.run, known.version,
                               WC_TRY(tables.Digests(known.version.uid))};
    if (EncodeVersionJson(mine) == EncodeVersionJson(document)) return Ok();
  }
  return Error{Code::kConflict, VersionText(document.version) +
                                    " differs from the one in the catalog, which is " +
                                    std::string(StateName(known.version.state)) + " with root " +
                                    known.version.root.hex()};
}

}  // namespace

Result<Version> RowCatalog::RegisterSeed(const SeedRequest& request) {
  WC_TRY(CheckSideFiles(request.side_files));
  WC_TRY(CheckText("store URL", request.store_url));
  return InWrite(*rows_, [&](Tables& t) -> Result<Version> {
    const auto inventory = WC_TRY(t.Inventory(request.run));
    if (request.digests.size() != inventory->size()) {
      return Error{Code::kInvalidData, "seed: expected digests of " +
                                           std::to_string(inventory->size()) + " tensors, found " +
                                           std::to_string(request.digests.size())};
    }
    const Root root = tensor::ComputeRoot(*inventory, request.digests);
    HeadRow head = WC_TRY(t.Head(request.run));
    WC_TRY(FailOverdue(t, request.run, &head));
    if (!head.seed.empty()) {
      Version seed = WC_TRY(t.Version(head.seed)).version;
      if (seed.root == root) return seed;
      return Error{Code::kConflict, "seed of run " + request.run.hex() + ": expected root " +
                                        seed.root.hex() + ", found " + root.hex()};
    }
    if (!head.latest.empty() || !head.staging.empty()) {
      return Error{
          Code::kConflict,
          "run " + request.run.hex() + " began without a seed; its versions have no place for one"};
    }
    Version version = SeedVersion(os::NewId<VersionUid>(random_), request.run, t.now());
    version.store_url = request.store_url;
    version.side_files = request.side_files;
    version.root = root;
    WC_TRY(PutReady(t, version, request.digests, &head));
    return version;
  });
}

Result<Run> RowCatalog::ForkRun(const std::string& name, const VersionUid& origin) {
  WC_TRY(CheckName("run", name));
  return InWrite(*rows_, [&](Tables& t) -> Result<Run> {
    const std::optional<RunRow> found = WC_TRY(t.RunByName(name));
    if (found) {
      if (found->forked_from == origin) return t.Whole(*found);
      return Error{Code::kConflict,
                   "run " + name + " was " +
                       (found->forked_from.empty() ? "not forked"
                                                   : "forked from " + found->forked_from.hex()) +
                       "; asked for a fork of " + origin.hex()};
    }
    const Version from = WC_TRY(t.Version(origin)).version;
    if (from.state != VersionState::kReady) {
      return Error{Code::kConflict, VersionText(from) + " is " +
                                        std::string(StateName(from.state)) +
                                        ", only READY versions can be forked"};
    }
    RunRow row = WC_TRY(t.RunByUid(from.run));
    row.uid = os::NewId<RunUid>(random_);
    row.name = name;
    row.forked_from = origin;
    row.created_unix_ms = t.now();
    const auto inventory = WC_TRY(t.Inventory(from.run));
    const auto digests = WC_TRY(t.Digests(origin));
    WC_TRY(t.Create(row, *inventory));

    Version version = SeedVersion(os::NewId<VersionUid>(random_), row.uid, t.now());
    version.base = from.uid;
    version.base_run = from.run;
    version.store_url = from.store_url;
    version.side_files = from.side_files;
    version.root = from.root;
    HeadRow head;
    WC_TRY(PutReady(t, version, digests, &head));
    return t.Whole(row);
  });
}

Status RowCatalog::Restore(const Run& run, const Version& version,
                           const std::vector<tensor::TensorDigest>& digests) {
  const VersionDocument document{run, version, digests};
  WC_TRY(CheckDocument(document));
  return InWrite(*rows_, [&](Tables& t) -> Status {
    WC_TRY(RestoreRun(t, run));
    const std::optional<VersionRow> known = WC_TRY(t.FindVersion(version.uid));
    if (known) return SameVersion(t, *known, document);

    HeadRow head = WC_TRY(t.Head(run.uid));
    const Result<VersionRow> same = VersionOfNumber(t, run.uid, head, version.number);
    if (same.ok()) {
      return Error{Code::kConflict, VersionText(version) + " of run " + run.name + ": " +
                                        VersionText(same->version) + " has that number already"};
    }
    if (same.error().code != Code::kNotFound) return same.error();
    WC_TRY(FailStaging(t, "fenced by a rebuild of the catalog", &head));
    WC_TRY(RestoreEpoch(t, version, &head));
    return PutReady(t, version, digests, &head);
  });
}

}  // namespace weightcast::catalog
