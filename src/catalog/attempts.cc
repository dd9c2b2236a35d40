#include "catalog/attempts.h"

#include <algorithm>

#include "base/text.h"
#include "catalog/replay_plan.h"

namespace weightcast::catalog {
namespace {

// Reasons come from anywhere, also from errors that quote foreign bytes.
std::string CleanReason(const std::string& reason) {
  constexpr size_t kReasonBytesMax = 16 << 10;  // in every row that is read later
  std::string clean = ValidUtf8(reason) ? reason : Hex(AsBytes(reason));
  if (clean.size() <= kReasonBytesMax) return clean;
  size_t end = kReasonBytesMax;
  while ((clean[end] & 0xc0) == 0x80) --end;  // not inside a character
  return clean.substr(0, end) + "...";
}

Result<std::string> DeadlineReason(Tables& tables, const VersionRow& row) {
  std::vector<std::string> missing;
  const std::vector<Announcement> announced = WC_TRY(tables.Announcements(row));
  for (const int32_t rank : row.version.participants) {
    if (std::ranges::find(announced, RankId{rank}, &Announcement::rank) == announced.end()) {
      missing.push_back(std::to_string(rank));
    }
  }
  return "the deadline passed, ranks that did not announce: " + JoinNames(missing);
}

}  // namespace

bool Overdue(Tables& tables, const Version& version) {
  return version.state == VersionState::kStaging && tables.now() >= version.deadline_unix_ms;
}

Status FailAttempt(Tables& tables, const std::string& reason, HeadRow* head, VersionRow* row) {
  WC_CHECK(row->version.state == VersionState::kStaging && head->staging == row->version.uid);
  row->version.state = VersionState::kFailed;
  row->version.failure = CleanReason(reason);
  row->version.deadline_unix_ms = 0;
  head->staging = {};
  return tables.Save(*row);
}

Status FailStaging(Tables& tables, const std::string& reason, HeadRow* head) {
  if (head->staging.empty()) return Ok();
  VersionRow row = WC_TRY(tables.Version(head->staging));
  return FailAttempt(tables, reason, head, &row);
}

Status FailOverdue(Tables& tables, const RunUid& run, HeadRow* head) {
  if (head->staging.empty()) return Ok();
  VersionRow row = WC_TRY(tables.Version(head->staging));
  if (!Overdue(tables, row.version)) return Ok();
  const std::string reason = WC_TRY(DeadlineReason(tables, row));
  WC_TRY(FailAttempt(tables, reason, head, &row));
  return tables.Save(run, *head);
}

Result<EpochRow> OpenEpochRow(Tables& tables, const RunUid& run, const HeadRow& head, Epoch epoch) {
  const std::string text = "epoch " + std::to_string(epoch.value);
  const std::string current = "epoch " + std::to_string(head.epoch.value);
  if (epoch.value < 1 || epoch > head.epoch) {
    return Error{Code::kConflict,
                 text + " of run " + run.hex() + " was never opened; " +
                     (head.epoch.value > 0 ? "the current one is " + current : "no epoch was")};
  }
  if (epoch < head.epoch) {
    return Error{Code::kConflict, text + " of run " + run.hex() + " is fenced by " + current};
  }
  EpochRow row = WC_TRY(tables.CurrentEpoch(run, head));
  if (!row.closed) return row;
  return Error{Code::kConflict, text + " of run " + run.hex() +
                                    " belongs to the catalog from before the rebuild; open a "
                                    "new one"};
}

Result<VersionRow> VersionOfNumber(Tables& tables, const RunUid& run, const HeadRow& head,
                                   int64_t number) {
  if (number == head.latest_number) return tables.Version(head.latest);
  for (const ListRow& listed : WC_TRY(tables.List(run, head))) {
    if (listed.number != number) continue;
    VersionRow row = WC_TRY(tables.Version(listed.uid));
    const VersionState state = row.version.state;
    if (state != VersionState::kStaging && state != VersionState::kFailed) return row;
  }
  return Error{Code::kNotFound, "no attempt at version " + std::to_string(number) + " of run " +
                                    run.hex() + " became READY"};
}

}  // namespace weightcast::catalog
