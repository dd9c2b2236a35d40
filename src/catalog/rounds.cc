// Rounds: one at a time in a run, each step by compare-and-set. Who decides is src/fleet.
#include <algorithm>
#include <chrono>
#include <set>

#include "base/text.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "catalog/row_catalog.h"
#include "catalog/transaction.h"

namespace weightcast::catalog {
namespace {

// Of one round: its row is read and written whole at each step.
constexpr size_t kEnginesMax = 4096;

Status CheckEngines(const std::vector<std::string>& urls) {
  if (urls.empty() || urls.size() > kEnginesMax) {
    return Error{Code::kInvalidArgument, "a round has 1 to " + std::to_string(kEnginesMax) +
                                             " engines, found " + std::to_string(urls.size())};
  }
  std::set<std::string> seen;
  std::vector<std::string> twice;
  for (const std::string& url : urls) {
    WC_TRY(CheckText("engine", url));
    if (!seen.insert(url).second) twice.push_back(url);
  }
  if (twice.empty()) return Ok();
  return Error{Code::kInvalidArgument, "a round has each engine once; twice: " + JoinNames(twice)};
}

// The engines of an update are those of the round, and their texts may be kept.
Status CheckUpdate(const Round& round, const std::vector<RoundEngine>& engines) {
  if (!std::ranges::equal(round.engines, engines, {}, &RoundEngine::url, &RoundEngine::url)) {
    return Error{Code::kInvalidArgument, "round " + round.uid.hex() + " has other engines"};
  }
  for (const RoundEngine& engine : engines) {
    WC_TRY(CheckText("engine state", engine.state));
    WC_TRY(CheckText("engine incarnation", engine.incarnation));
    WC_TRY(CheckText("engine reason", engine.reason));
  }
  return Ok();
}

bool IsStep(RoundState from, RoundState to) {
  if (from == to) return true;
  if (from == RoundState::kPreparing) return to != RoundState::kCommitted;
  return from == RoundState::kApplying && Ended(to);
}

// Nothing is committed unproven, and nobody is left out in silence.
Status CheckCommit(const Round& round, const std::vector<RoundEngine>& engines) {
  std::vector<std::string> silent;
  for (const RoundEngine& engine : engines) {
    if (!engine.proven && engine.reason.empty()) silent.push_back(engine.url);
  }
  if (silent.empty() && std::ranges::any_of(engines, &RoundEngine::proven)) return Ok();
  return Error{Code::kConflict,
               "round " + round.uid.hex() + " cannot be committed: " +
                   (silent.empty() ? "no engine is proven"
                                   : "neither proven nor with a reason: " + JoinNames(silent))};
}

}  // namespace

Result<Round> RowCatalog::BeginRound(const RoundRequest& request) {
  const int64_t lease_ms = std::chrono::duration_cast<milliseconds>(request.lease).count();
  if (lease_ms <= 0) {
    return Error{Code::kInvalidArgument, "a round's lease must last at least a millisecond"};
  }
  WC_TRY(CheckEngines(request.engines));
  return InWrite(*rows_, [&](Tables& t) -> Result<Round> {
    HeadRow head = WC_TRY(t.Head(request.run));
    const Version version = WC_TRY(t.Version(request.version)).version;
    if (version.run != request.run || version.state != VersionState::kReady) {
      return Error{Code::kConflict, VersionText(version) + " is " +
                                        std::string(StateName(version.state)) + " in run " +
                                        version.run.hex() + ", expected READY in run " +
                                        request.run.hex()};
    }
    RoundRow row;
    row.round.uid = os::NewId<RoundUid>(random_);
    if (!head.round.empty()) {
      RoundRow last = WC_TRY(t.Round(head.round));
      const bool expired = last.round.expires_unix_ms <= t.now();
      if (!Ended(last.round.state) && !expired) {
        return Error{Code::kConflict,
                     "round " + last.round.uid.hex() + " of this run is " +
                         std::string(StateName(last.round.state)) + " for " +
                         std::to_string((last.round.expires_unix_ms - t.now() + 999) / 1000) +
                         " s more, if its coordinator does not renew or end it"};
      }
      if (!Ended(last.round.state)) {
        last.round.failure = "its lease expired while it was " +
                             std::string(StateName(last.round.state)) + "; round " +
                             row.round.uid.hex() + " took its place";
        last.round.state = RoundState::kFailed;
        WC_TRY(t.Save(last));
      }
    }
    row.round.run = request.run;
    row.round.version = request.version;
    for (const std::string& url : request.engines) row.round.engines.push_back({.url = url});
    row.round.created_unix_ms = t.now();
    row.round.expires_unix_ms = t.now() + lease_ms;
    row.lease_ms = lease_ms;
    WC_TRY(t.Create(&row, &head));
    WC_TRY(t.Save(request.run, head));
    return row.round;
  });
}

Result<Round> RowCatalog::UpdateRound(const RoundUid& uid, RoundState expected, RoundState next,
                                      const std::vector<RoundEngine>& engines) {
  return InWrite(*rows_, [&](Tables& t) -> Result<Round> {
    RoundRow row = WC_TRY(t.Round(uid));
    if (row.round.state != expected) {
      return Error{Code::kAborted, "round " + uid.hex() + " is " +
                                       std::string(StateName(row.round.state)) + ", expected " +
                                       std::string(StateName(expected)) +
                                       (row.round.failure.empty() ? "" : ": " + row.round.failure)};
    }
    if (!IsStep(expected, next)) {
      return Error{Code::kInvalidArgument, "round " + uid.hex() + ": from " +
                                               std::string(StateName(expected)) +
                                               " no step leads to " + std::string(StateName(next))};
    }
    WC_TRY(CheckUpdate(row.round, engines));
    if (expected == RoundState::kApplying && next == RoundState::kCommitted) {
      WC_TRY(CheckCommit(row.round, engines));
    }
    row.round.state = next;
    row.round.engines = engines;
    row.round.expires_unix_ms = t.now() + row.lease_ms;
    WC_TRY(t.Save(row));
    return row.round;
  });
}

Result<Round> RowCatalog::GetRound(const RoundUid& uid) {
  return InRead(*rows_, [&](Tables& t) -> Result<Round> { return WC_TRY(t.Round(uid)).round; });
}

Result<std::vector<Round>> RowCatalog::ListRounds(const RunUid& run) {
  return InRead(*rows_, [&](Tables& t) -> Result<std::vector<Round>> {
    WC_TRY(t.Head(run));  // there is such a run
    std::vector<Round> rounds;
    for (RoundRow& row : WC_TRY(t.Rounds())) {
      if (row.round.run == run) rounds.push_back(std::move(row.round));
    }
    return rounds;
  });
}

}  // namespace weightcast::catalog
