// The publish protocol: epochs, attempts, announcements, READY.
#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "catalog/attempts.h"
#include "catalog/checks.h"
#include "catalog/prove.h"
#include "catalog/replay_plan.h"
#include "catalog/row_catalog.h"
#include "catalog/transaction.h"

namespace weightcast::catalog {
namespace {

std::string EpochText(Epoch epoch) { return "epoch " + std::to_string(epoch.value); }

std::string RanksText(const std::vector<int32_t>& ranks) {
  std::vector<std::string> names;
  for (const int32_t rank : ranks) names.push_back(std::to_string(rank));
  return JoinNames(names);
}

Status CheckEpochRequest(const EpochRequest& request) {
  if (request.token.empty() != request.number.has_value()) {
    return Error{Code::kInvalidArgument,
                 "an epoch is opened by a job token or by a number, by "
                 "exactly one of them"};
  }
  if (request.number && (request.number->value < 1 || request.number->value > kNumberMax)) {
    return Error{Code::kInvalidArgument,
                 EpochText(*request.number) + ": expected 1 to " + std::to_string(kNumberMax)};
  }
  if (request.plan.empty()) return Error{Code::kInvalidArgument, "an epoch needs a plan hash"};
  WC_TRY(CheckText("job token", request.token));
  return CheckParticipants(request.participants);
}

// The epoch row that the request names, if there is one: the current one, or kConflict.
Result<std::optional<EpochRow>> NamedEpoch(Tables& tables, const EpochRequest& request,
                                           const HeadRow& head) {
  Epoch named;
  if (request.number) {
    if (*request.number > head.epoch) return std::optional<EpochRow>();
    named = *request.number;
  } else {
    const std::vector<EpochRow> epochs = WC_TRY(tables.Epochs(request.run, head));
    const auto it = std::ranges::find(epochs, request.token, &EpochRow::token);
    if (it == epochs.end()) return std::optional<EpochRow>();
    named = it->epoch;
  }
  return std::optional<EpochRow>(WC_TRY(OpenEpochRow(tables, request.run, head, named)));
}

Status SameEpoch(const EpochRow& row, const EpochRequest& request) {
  if (row.plan != request.plan) {
    return Error{Code::kConflict, EpochText(row.epoch) + " has another plan: expected " +
                                      row.plan.hex() + ", found " + request.plan.hex()};
  }
  if (row.participants != request.participants) {
    return Error{Code::kConflict, EpochText(row.epoch) + " (plan " + row.plan.hex() +
                                      ") has other participants: expected " +
                                      RanksText(row.participants) + "; found " +
                                      RanksText(request.participants)};
  }
  return Ok();
}

Status CheckBeginRequest(const BeginRequest& request) {
  if (request.number < 1 || request.number > kNumberMax) {
    return Error{Code::kInvalidArgument, "version " + std::to_string(request.number) +
                                             ": expected a number from 1 to " +
                                             std::to_string(kNumberMax)};
  }
  if (request.step_token.empty() || request.store_url.empty()) {
    return Error{Code::kInvalidArgument, "a version needs a step token and the URL of its store"};
  }
  if (request.staging_timeout <= Duration::zero()) {
    return Error{Code::kInvalidArgument, "the staging timeout must be positive"};
  }
  WC_TRY(CheckText("step token", request.step_token));
  WC_TRY(CheckText("store URL", request.store_url));
  WC_TRY(CheckLabels(request.labels));
  return CheckSideFiles(request.side_files);
}

VersionKind KindFor(const BeginRequest& request, const VersionUid& base) {
  return request.full || base.empty() ? VersionKind::kFull : VersionKind::kDelta;
}

std::string RequestText(int64_t number, const std::string& step_token, VersionKind kind) {
  return "number " + std::to_string(number) + ", step token " + Quoted(step_token) + ", " +
         std::string(KindName(kind));
}

// A request for what is STAGING already.
Result<Version> JoinAttempt(const Version& version, const BeginRequest& request, int64_t now) {
  const VersionKind kind = KindFor(request, version.base);
  const std::string asked = RequestText(request.number, request.step_token, kind);
  if (version.number != request.number || version.step_token != request.step_token) {
    return Error{Code::kUnavailable,
                 "asked for " + asked + ", while " + VersionText(version) + ", step token " +
                     Quoted(version.step_token) + ", of the same epoch is STAGING for at most " +
                     std::to_string((version.deadline_unix_ms - now) / 1000) + " s more"};
  }
  if (version.kind != kind || version.store_url != request.store_url) {
    return Error{Code::kConflict,
                 VersionText(version) + " is " + std::string(KindName(version.kind)) + " in " +
                     version.store_url + "; asked for " + asked + " in " + request.store_url};
  }
  return version;
}

// A request for a number that is not above the latest.
Result<Version> JoinPublished(Tables& tables, const BeginRequest& request, const HeadRow& head) {
  const Result<VersionRow> found = VersionOfNumber(tables, request.run, head, request.number);
  if (!found.ok() && found.error().code != Code::kNotFound) return found.error();
  const std::string latest =
      "; the latest of run " + request.run.hex() + " is " + std::to_string(head.latest_number);
  if (!found.ok()) {
    return Error{Code::kConflict,
                 "version " + std::to_string(request.number) + " is not above the latest" + latest};
  }
  const Version& version = found->version;
  const VersionKind kind = KindFor(request, version.base);
  if (version.state == VersionState::kReady && version.step_token == request.step_token &&
      version.kind == kind) {
    return version;
  }
  return Error{Code::kConflict,
               VersionText(version) + " is " + std::string(StateName(version.state)) + " by " +
                   RequestText(version.number, version.step_token, version.kind) + "; asked for " +
                   RequestText(request.number, request.step_token, kind) + latest};
}

// What all announcements prove together: the outer error is the database's, the inner one ends the
// attempt.
Result<std::optional<Proof>> ProveAttempt(Tables& tables, const VersionRow& row, Error* disproof) {
  const Version& version = row.version;
  const RunRow run_row = WC_TRY(tables.RunByUid(version.run));
  const Run run = WC_TRY(tables.Whole(run_row));
  const std::vector<Announcement> announcements = WC_TRY(tables.Announcements(row));
  std::vector<tensor::TensorDigest> base;
  if (!version.base.empty()) base = WC_TRY(tables.Digests(version.base));
  Result<Proof> proof = Prove(run, version, announcements, base);
  if (proof.ok()) return std::optional<Proof>(std::move(*proof));
  *disproof = proof.error();
  return std::optional<Proof>();
}

Status MakeReady(Tables& tables, Proof proof, HeadRow* head, VersionRow* row) {
  Version& version = row->version;
  version.state = VersionState::kReady;
  version.deadline_unix_ms = 0;
  version.root = proof.root;
  version.objects = std::move(proof.objects);
  version.stats = proof.stats;
  head->staging = {};
  head->latest = version.uid;
  head->latest_number = version.number;
  WC_TRY(tables.SaveDigests(version.uid, proof.digests));
  return tables.Save(*row);
}

// The answer to a rank whose announcement is there already.
Result<Version> Repeated(const Announcement& first, const Announcement& again,
                         const Version& version) {
  const std::string who =
      "rank " + std::to_string(again.rank.value) + " of " + VersionText(version);
  if (version.state == VersionState::kFailed) {
    return Error{Code::kConflict, who + " is fenced: the attempt is FAILED: " + version.failure};
  }
  if (first == again) return version;
  return Error{Code::kConflict,
               who + " was announced already, with another part; the first stands"};
}

Status NotFenced(const Announcement& announcement, const Version& version, const HeadRow& head) {
  const std::string who =
      "rank " + std::to_string(announcement.rank.value) + " of " + VersionText(version);
  if (announcement.epoch != version.epoch || version.epoch != head.epoch) {
    return Error{Code::kConflict, who + " is fenced: announced in " +
                                      EpochText(announcement.epoch) + ", the attempt is of " +
                                      EpochText(version.epoch) + ", the current one is " +
                                      EpochText(head.epoch)};
  }
  if (version.state == VersionState::kStaging) return Ok();
  return Error{Code::kConflict, who + " is fenced: the attempt is " +
                                    std::string(StateName(version.state)) +
                                    (version.failure.empty() ? "" : ": " + version.failure)};
}

}  // namespace

Result<Epoch> RowCatalog::OpenEpoch(const EpochRequest& request) {
  WC_TRY(CheckEpochRequest(request));
  return InWrite(*rows_, [&](Tables& t) -> Result<Epoch> {
    HeadRow head = WC_TRY(t.Head(request.run));
    const std::optional<EpochRow> found = WC_TRY(NamedEpoch(t, request, head));
    if (found) {
      WC_TRY(SameEpoch(*found, request));
      return found->epoch;
    }
    const Epoch epoch = request.number.value_or(Epoch{head.epoch.value + 1});
    WC_TRY(FailStaging(t, "fenced by " + EpochText(epoch), &head));
    head.epoch = epoch;
    WC_TRY(t.Create(request.run,
                    EpochRow{epoch, request.token, request.plan, request.participants, false},
                    &head));
    WC_TRY(t.Save(request.run, head));
    return epoch;
  });
}

Result<Version> RowCatalog::BeginVersion(const BeginRequest& request) {
  WC_TRY(CheckBeginRequest(request));
  return InWrite(*rows_, [&](Tables& t) -> Result<Version> {
    HeadRow head = WC_TRY(t.Head(request.run));
    const EpochRow epoch = WC_TRY(OpenEpochRow(t, request.run, head, request.epoch));
    WC_TRY(FailOverdue(t, request.run, &head));
    if (!head.staging.empty()) {
      return JoinAttempt(WC_TRY(t.Version(head.staging)).version, request, t.now());
    }
    if (request.number <= head.latest_number) return JoinPublished(t, request, head);

    const RunRow run = WC_TRY(t.RunByUid(request.run));
    if (!run.carried.empty() && head.seed.empty()) {
      return Error{Code::kConflict, "run " + run.name +
                                        " has carried tensors: register the seed "
                                        "that holds them before publishing"};
    }
    VersionRow row;
    Version& version = row.version;
    version.uid = os::NewId<VersionUid>(random_);
    version.run = request.run;
    version.epoch = request.epoch;
    version.number = request.number;
    version.kind = KindFor(request, head.latest);
    version.step_token = request.step_token;
    version.store_url = request.store_url;
    version.labels = request.labels;
    version.created_unix_ms = t.now();
    version.deadline_unix_ms =
        t.now() + std::chrono::duration_cast<milliseconds>(request.staging_timeout).count();
    version.plan = epoch.plan;
    version.participants = epoch.participants;
    version.side_files = request.side_files;
    if (!head.latest.empty()) {
      const Version base = WC_TRY(t.Version(head.latest)).version;
      version.base = base.uid;
      version.base_run = base.run;
      if (version.side_files.empty()) version.side_files = base.side_files;
    }
    head.staging = version.uid;
    WC_TRY(t.Create(row, &head));
    WC_TRY(t.Save(request.run, head));
    return version;
  });
}

Result<Version> RowCatalog::Announce(const Announcement& announcement) {
  // Set when the transaction commits the end of the attempt.
  std::optional<Error> refusal;
  Result<Version> answer = InWrite(*rows_, [&](Tables& t) -> Result<Version> {
    refusal.reset();
    VersionRow row = WC_TRY(t.Version(announcement.version));
    const std::optional<Announcement> first =
        WC_TRY(t.FindAnnouncement(announcement.version, announcement.rank));
    if (first) return Repeated(*first, announcement, row.version);

    HeadRow head = WC_TRY(t.Head(row.version.run));
    WC_TRY(NotFenced(announcement, row.version, head));
    if (Overdue(t, row.version)) {
      WC_TRY(FailOverdue(t, row.version.run, &head));
      row = WC_TRY(t.Version(announcement.version));
      refusal = Error{Code::kDeadlineExceeded,
                      VersionText(row.version) + " is FAILED: " + row.version.failure};
      return row.version;
    }
    const RunRow run = WC_TRY(t.RunByUid(row.version.run));
    WC_TRY(CheckAnnouncement(announcement, row.version, run.tensors, run.carried));
    WC_TRY(t.Save(announcement));
    ++row.announced;
    if (row.announced < static_cast<int64_t>(row.version.participants.size())) {
      WC_TRY(t.Save(row));
      return row.version;
    }
    Error disproof;
    std::optional<Proof> proof = WC_TRY(ProveAttempt(t, row, &disproof));
    if (proof) {
      WC_TRY(MakeReady(t, std::move(*proof), &head, &row));
    } else {
      WC_TRY(FailAttempt(t, disproof.message, &head, &row));
      refusal = disproof;
    }
    WC_TRY(t.Save(row.version.run, head));
    return row.version;
  });
  if (answer.ok() && refusal) return *refusal;
  return answer;
}

Status RowCatalog::FailVersion(const VersionUid& uid, const std::string& reason) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    VersionRow row = WC_TRY(t.Version(uid));
    if (row.version.state == VersionState::kFailed) return Ok();
    if (row.version.state != VersionState::kStaging) {
      return Error{Code::kConflict, VersionText(row.version) + " is " +
                                        std::string(StateName(row.version.state)) +
                                        ", only a STAGING attempt can fail"};
    }
    HeadRow head = WC_TRY(t.Head(row.version.run));
    WC_TRY(FailAttempt(t, reason, &head, &row));
    return t.Save(row.version.run, head);
  });
}

}  // namespace weightcast::catalog
