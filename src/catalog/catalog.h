// The catalog: versions, states, lineage, leases. Small rows in a database; never a weight byte,
// and it does not know what is inside a part.
//
//   run ── epochs (one life of the trainer job; a new one fences the older ones)
//    └──── versions: STAGING → READY → RELEASING → RELEASED, or STAGING → FAILED
//            └── announcements, one a rank; the last one makes READY
//
// Every call is one transaction and may be made from any thread and any process. Errors:
//   kNotFound            no such run, version, alias, lease
//   kConflict            fenced epoch, other plan, number not above the latest, wrong state, wrong
//   base kInvalidData/kDataLoss  what was announced does not add up; a row that does not verify
//   kUnavailable         database locked or not reachable; an attempt of this epoch is still
//   STAGING
//   kAborted             a round is in another state than the caller thought
// Protocol: DESIGN of the project, docs/design/catalog_protocol.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::os {
class Random;
}

namespace weightcast::catalog {

enum class VersionKind : uint8_t { kSeed, kFull, kDelta };
enum class VersionState : uint8_t { kStaging, kReady, kFailed, kReleasing, kReleased };
std::string_view KindName(VersionKind kind);     // "seed", "full", "delta"
std::string_view StateName(VersionState state);  // "STAGING", ...

struct SideFileRow {  // stored once by content under SideFileKey(sha256)
  std::string name;
  int64_t bytes = 0;
  Sha256Digest sha256;
};

// One trainer lineage. The inventory never changes within a run.
struct Run {
  RunUid uid;
  std::string name;
  std::shared_ptr<const tensor::Inventory> inventory;
  std::vector<int32_t> carried;  // inventory indices of tensors the trainer does not hold
  VersionUid forked_from;        // empty unless the run's v0 is a version of another run
  int64_t created_unix_ms = 0;
};

enum class ObjectRole : uint8_t {
  kDelta,    // chunks against the base
  kFull,     // every owned chunk without a base
  kCarried,  // every chunk of the carried tensors; written once, named by each full version
};
std::string_view RoleName(ObjectRole role);  // "delta", "full", "carried"

// An object in the version's store and what proves it (delta::PartSeal).
struct ObjectRef {
  ObjectRole role = ObjectRole::kDelta;
  std::string key;
  int64_t bytes = 0;
  int64_t footer_bytes = 0;
  Sha256Digest footer_sha256;

  bool operator==(const ObjectRef&) const = default;
};

// What one rank contributes to one tensor: for every tensor of which it owns a slice, changed or
// not.
struct TensorPartial {
  int32_t tensor = 0;
  tensor::Partial base;  // of its slices in the base version; ignored when `raw`
  tensor::Partial next;
  bool raw = false;  // the rank had no baseline: its chunks of this tensor need no base

  bool operator==(const TensorPartial&) const = default;
};

struct PublishStats {
  int64_t elements = 0;
  int64_t changed_elements = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  bool operator==(const PublishStats&) const = default;
};

struct Announcement {
  VersionUid version;
  Epoch epoch;
  RankId rank;
  PlanHash plan;
  std::vector<ObjectRef> objects;
  std::vector<TensorPartial> partials;  // sorted by tensor
  PublishStats stats;

  bool operator==(const Announcement&) const = default;
};

// What `failure` contains when a version FAILED because some rank's baseline was not its base:
// every rank that announced then distrusts its own.
inline constexpr std::string_view kWrongBase = "base partials do not sum to base version ";

struct Version {
  VersionUid uid;
  RunUid run;
  Epoch epoch;
  int64_t number = 0;
  VersionKind kind = VersionKind::kDelta;
  VersionState state = VersionState::kStaging;
  VersionUid base;  // empty: none (a first version without a seed, or a seed)
  RunUid base_run;  // the run of `base`; differs from `run` in a fork's v0
  std::string step_token;
  std::string store_url;
  std::map<std::string, std::string> labels;
  int64_t created_unix_ms = 0;
  int64_t deadline_unix_ms = 0;  // STAGING only, by the database's clock
  PlanHash plan;
  std::vector<int32_t> participants;  // ranks that must announce
  std::vector<SideFileRow> side_files;
  // READY and later:
  Root root;
  std::vector<ObjectRef> objects;  // of all ranks, in rank order
  PublishStats stats;
  // FAILED: why.
  std::string failure;
};

// ---- requests ----

struct RunRequest {
  std::string name;  // [A-Za-z0-9][A-Za-z0-9._-]{0,127}
  std::shared_ptr<const tensor::Inventory> inventory;
  std::vector<int32_t> carried;
};

// v0 by root, from a seed checkpoint's files. Moves no bytes.
struct SeedRequest {
  RunUid run;
  std::vector<tensor::TensorDigest> digests;  // of the whole inventory
  std::vector<SideFileRow> side_files;
  std::string store_url;  // where the side files lie
};

struct EpochRequest {
  RunUid run;
  // Either a job token (the same token gets the same epoch, a new one the next), or an epoch number
  // (the current one joins, a higher one opens, a lower one is kConflict).
  std::string token;
  std::optional<Epoch> number;
  PlanHash plan;
  std::vector<int32_t> participants;  // ranks that own something, ascending
};

struct BeginRequest {
  RunUid run;
  Epoch epoch;
  int64_t number = 0;
  std::string step_token;
  bool full = false;
  std::string store_url;
  std::map<std::string, std::string> labels;
  std::vector<SideFileRow> side_files;  // empty: those of the base
  Duration staging_timeout = seconds(3600);
};

// ---- replay ----

struct ReplayRequest {
  VersionUid target;
  VersionUid have;           // version of the image at hand; empty: none
  std::optional<Root> seed;  // root of a seed checkpoint at hand
  std::string holder;        // for messages: "host 3 pid 812"
  Duration lease = seconds(600);
};

enum class ReplayStart : uint8_t { kImage, kSeed, kFull };

// Begin from `start`, then apply the deltas of `steps` in order; the last one is the target.
struct ReplayPlan {
  ReplayStart start = ReplayStart::kImage;
  Version start_version;
  std::vector<Version> steps;  // empty when the start is the target
  int64_t bytes = 0;           // wire bytes to fetch
  LeaseId lease;               // on start and steps, taken in the same transaction
};

// ---- rounds ----

// preparing → applying → committed; failed from either of the first two.
enum class RoundState : uint8_t { kPreparing, kApplying, kCommitted, kFailed };
std::string_view StateName(RoundState state);  // "preparing", ...
inline bool Ended(RoundState state) { return state >= RoundState::kCommitted; }

struct RoundEngine {
  std::string url;
  std::string state;  // a word of the coordinator (fleet/round.h); the catalog only keeps it
  std::string incarnation;
  VersionUid version;   // what it holds, as far as it is known
  bool proven = false;  // its touched tensors have the digests of the round's version
  std::string reason;   // why it was left out

  bool operator==(const RoundEngine&) const = default;
};

// One coordinated update of a run's engines. Rows stay.
struct Round {
  RoundUid uid;
  RunUid run;
  VersionUid version;
  RoundState state = RoundState::kPreparing;
  std::vector<RoundEngine> engines;
  int64_t created_unix_ms = 0;
  int64_t expires_unix_ms = 0;  // by the database's clock; whoever comes later may end it
  std::string failure;          // failed: why, as far as the catalog knows

  bool operator==(const Round&) const = default;
};

struct RoundRequest {
  RunUid run;
  VersionUid version;
  std::vector<std::string> engines;  // URLs, each once
  Duration lease = seconds(600);     // renewed by every update of the round
};

class Catalog {
 public:
  virtual ~Catalog() = default;

  // Create-or-get by name. kConflict if the inventory or the carried set differs (the difference is
  // named).
  virtual Result<Run> OpenRun(const RunRequest& request) = 0;
  virtual Result<Run> FindRun(const std::string& name) = 0;
  virtual Result<Run> GetRun(const RunUid& uid) = 0;
  virtual Result<std::vector<Run>> ListRuns() = 0;
  // A new run whose v0 is `version` (READY; same root, base uid = version), without moving bytes.
  // Create-or-get; another origin is kConflict.
  virtual Result<Run> ForkRun(const std::string& name, const VersionUid& version) = 0;

  // Create-or-get v0. kConflict if v0 exists with another root.
  virtual Result<Version> RegisterSeed(const SeedRequest& request) = 0;

  virtual Result<Epoch> OpenEpoch(const EpochRequest& request) = 0;

  // Create-or-get the attempt. Answers the READY version if `number` is READY by an equal request
  // (number, step token, full); any other request for a READY number, or a number not above the
  // latest, is kConflict. kUnavailable while another attempt of the epoch is STAGING and not past
  // its deadline. A FAILED attempt is not found again: the next call makes a new uid.
  virtual Result<Version> BeginVersion(const BeginRequest& request) = 0;

  // Adds a rank's part. The first announcement of a rank stands: an equal one gets the same answer,
  // another is kConflict. The last one proves the sums and makes the version READY in the same
  // transaction; if they do not add up it makes it FAILED and answers kDataLoss (base partials) or
  // kInvalidData (coverage), naming tensors.
  virtual Result<Version> Announce(const Announcement& announcement) = 0;
  // STAGING → FAILED; fine if it is FAILED already. kConflict in any other state.
  virtual Status FailVersion(const VersionUid& uid, const std::string& reason) = 0;

  virtual Result<Version> GetVersion(const VersionUid& uid) = 0;
  // `text`: "latest" (highest READY number), a number, a uid, or an alias. READY ones only, except
  // by uid.
  virtual Result<Version> FindVersion(const RunUid& run, const std::string& text) = 0;
  // By number, then creation; every state.
  virtual Result<std::vector<Version>> ListVersions(const RunUid& run) = 0;
  // Tensor digests of a READY (or released) version, in inventory order.
  virtual Result<std::vector<tensor::TensorDigest>> GetDigests(const VersionUid& uid) = 0;
  virtual Result<std::vector<Announcement>> GetAnnouncements(const VersionUid& uid) = 0;

  virtual Status SetAlias(const RunUid& run, const std::string& alias,
                          const VersionUid& version) = 0;
  virtual Status RemoveAlias(const RunUid& run, const std::string& alias) = 0;
  virtual Result<std::map<std::string, VersionUid>> ListAliases(const RunUid& run) = 0;
  // Pinned versions are never released.
  virtual Status SetPin(const VersionUid& version, bool pinned) = 0;

  // The cheapest way to the target, with leases on all of it. kUnavailable if none of image, seed
  // and full versions can start it; the message says what would.
  virtual Result<ReplayPlan> PlanReplay(const ReplayRequest& request) = 0;
  virtual Status RenewLease(const LeaseId& lease, Duration lease_for) = 0;
  virtual Status EndLease(const LeaseId& lease) = 0;  // fine if it is gone

  // READY → RELEASING, if no lease, pin or alias holds it and every READY descendant (forks in
  // other runs included) keeps a complete chain without it; else kConflict naming what holds it.
  virtual Status BeginRelease(const VersionUid& uid) = 0;
  // RELEASING → RELEASED, not before the last lease's expiry; the caller has deleted the bytes.
  virtual Status FinishRelease(const VersionUid& uid) = 0;

  // A new round of the run, preparing. kConflict while an earlier one has not ended and its lease
  // has not expired (named), or if the version is not a READY one of the run. An expired one is
  // turned failed in the same transaction.
  virtual Result<Round> BeginRound(const RoundRequest& request) = 0;
  // Compare-and-set: `expected` → `next` (or the same again), with what is known of the engines,
  // in the round's order. Errors: kAborted if the state is another; kInvalidArgument if the step is
  // none; kConflict for the step to committed, unless one is proven and all others have reasons.
  virtual Result<Round> UpdateRound(const RoundUid& uid, RoundState expected, RoundState next,
                                    const std::vector<RoundEngine>& engines) = 0;
  virtual Result<Round> GetRound(const RoundUid& uid) = 0;
  virtual Result<std::vector<Round>> ListRounds(const RunUid& run) = 0;  // by creation

  // Rebuild: puts back a run and a READY version from its version.json. Fine if already there and
  // equal; kConflict if different. Epochs continue after the highest seen.
  virtual Status Restore(const Run& run, const Version& version,
                         const std::vector<tensor::TensorDigest>& digests) = 0;
  // Identity of this catalog's life: a rebuilt one has a new one.
  virtual Result<std::string> Incarnation() = 0;
};

// ---- where things lie in a store ----
std::string VersionJsonKey(const RunUid& run, const VersionUid& version);
std::string PartKey(const RunUid& run, const VersionUid& version, Epoch epoch, RankId rank,
                    const std::string& put_id, ObjectRole role);
std::string SideFileKey(const Sha256Digest& sha256);

// version.json: a function of the READY row (docs/formats/version_json.md). Parsing is strict and
// recomputes the root from the digests: kDataLoss if it does not match.
struct VersionDocument {
  Run run;
  Version version;
  std::vector<tensor::TensorDigest> digests;
};
std::string EncodeVersionJson(const VersionDocument& document);
Result<VersionDocument> ParseVersionJson(std::string_view text);

// Plans a replay over a set of versions (of one lineage, forks included): pure, for catalogs and
// for `pull --from`, which has only version.json files. Leases are the caller's matter.
Result<ReplayPlan> ChooseReplay(const std::vector<Version>& versions, const ReplayRequest& request);

// ---- implementations ----
// In this process only; `now_unix_ms` stands for the database's clock. Uids come from `random` (the
// kernel's if it is not given), which must outlive the catalog.
std::unique_ptr<Catalog> NewMemoryCatalog(std::function<int64_t()> now_unix_ms);
std::unique_ptr<Catalog> NewMemoryCatalog(std::function<int64_t()> now_unix_ms, os::Random& random);

}  // namespace weightcast::catalog
