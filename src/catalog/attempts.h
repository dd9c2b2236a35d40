// The end of a STAGING attempt, and fencing. Inside of the catalog; each call works within a
// transaction.
#pragma once

#include <string>

#include "catalog/catalog.h"
#include "catalog/tables.h"

namespace weightcast::catalog {

// STAGING → FAILED. Saves the row; `head` is changed, not saved.
//   Requires: row is STAGING, and head is that of its run.
Status FailAttempt(Tables& tables, const std::string& reason, HeadRow* head, VersionRow* row);
// Fails the run's STAGING attempt, if there is one and `reason` is not empty.
Status FailStaging(Tables& tables, const std::string& reason, HeadRow* head);
// Fails the run's STAGING attempt if its deadline is over, and saves the head.
Status FailOverdue(Tables& tables, const RunUid& run, HeadRow* head);
bool Overdue(Tables& tables, const Version& version);

// kConflict unless `epoch` is the current one of the run and open.
Result<EpochRow> OpenEpochRow(Tables& tables, const RunUid& run, const HeadRow& head, Epoch epoch);

// Finds the READY or released version of a number (there is at most one). Null uid if none.
Result<VersionRow> VersionOfNumber(Tables& tables, const RunUid& run, const HeadRow& head,
                                   int64_t number);

}  // namespace weightcast::catalog
