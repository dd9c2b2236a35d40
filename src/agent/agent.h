// The agent moves one image to a version: plans the cheapest chain, fetches, verifies and prepares
// while readers go on, then applies under the exclusive lock. In place by journal for deltas;
// beside and exchanged by one rename for cold starts, full versions and going back without an undo.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/image.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "catalog/catalog.h"
#include "os/world.h"
#include "store/store.h"
#include "transfer/fetchers.h"

namespace weightcast::agent {

struct AgentOptions {
  Durability durability = Durability::kHost;
  int threads = 0;                             // 0: all CPUs
  int64_t journal_bytes_max = 4 * kGiB;        // of all journals of an image; checked before work
  int64_t batch_payload_bytes_max = 8 * kMiB;  // memory: about threads * (this + four cells)
  int64_t weight_file_bytes_max = 5 * kGiB;    // of a new image's files
  int sync_every = 8;                          // versions between syncs of the image itself (kHost)
  int undo_kept = 1;                           // journals kept for going back
  Duration hold_timeout = seconds(60);         // how long apply waits for readers
  Duration turn_timeout = seconds(60);  // how long a pull waits for another of the same image
  Duration lease = seconds(600);        // renewed while the pull goes on
  bool keep_layout_of_seed = true;      // a new image has the seed's weight files, if one is given
};

struct PullReport {
  RunUid run;
  int64_t number = 0;
  VersionUid version;
  Root root;
  std::vector<VersionUid> chain;  // what was replayed, oldest first
  std::string how;                // "current", "journal", "undo", "beside"
  int64_t fetched_bytes = 0;
  std::map<std::string, int64_t> sources;  // bytes by kind: "store", "seed"
  int64_t journal_bytes = 0;
  int64_t changed_units = 0;
  double seconds_fetch = 0;    // footers
  double seconds_prepare = 0;  // payloads, decode, verify, journal or lay beside
  double seconds_apply = 0;    // readers excluded
  double seconds_verify = 0;   // thereof: proof of what was touched
  double seconds_total = 0;
};

// Where versions come from. `FromCatalog` plans and leases in a catalog; `FromVersionJson` walks
// version.json files in a store.
class VersionSource {
 public:
  virtual ~VersionSource() = default;
  virtual const catalog::Run& run() const = 0;
  virtual const catalog::Version& target() const = 0;
  virtual Result<std::vector<tensor::TensorDigest>> Digests(const VersionUid& version) = 0;
  virtual Result<catalog::ReplayPlan> Plan(const catalog::ReplayRequest& request) = 0;
  virtual Status RenewLease(const LeaseId& lease, Duration lease_for) = 0;
  virtual Status EndLease(const LeaseId& lease) = 0;
};
Result<std::unique_ptr<VersionSource>> FromCatalog(catalog::Catalog& catalog,
                                                   const std::string& run,
                                                   const std::string& version);
Result<std::unique_ptr<VersionSource>> FromVersionJson(store::Store& store, const std::string& key);

class Agent {
 public:
  // Opens the store that a version names.
  using OpenStore = transfer::OpenStore;
  Agent(os::World& world, OpenStore open_store, AgentOptions options = {});

  // Makes the image at `path` the source's target version. Afterwards every byte that changed was
  // proven against the version's tensor digests and root. On error the image is what it was.
  // One pull at a time per image: others wait. An image that cannot be recovered is laid anew.
  //   `seed_path`: a checkpoint directory whose root is v0's, or "". `progress`: (done, total)
  //   bytes, from any thread, one call at a time; its error stops the pull and is the result.
  // Errors: kUnavailable (no start for the chain: says whether a seed or a full version would do;
  // store unreachable), kResourceExhausted (disk, journal budget; before work begins), kConflict
  // (not an image, other inventory), kDeadlineExceeded (readers, or another pull), kDataLoss.
  Result<PullReport> Pull(VersionSource& source, const std::string& path,
                          const std::string& seed_path,
                          const std::function<Status(int64_t, int64_t)>& progress = {});

 private:
  os::World& world_;
  OpenStore open_store_;
  AgentOptions options_;
};

struct VerifyReport {
  Root root;     // of what is on disk
  Root claimed;  // by the image (or the version it was checked against)
  bool verified = false;
  int64_t bytes = 0;
  std::vector<std::string> tensors_bad;
  std::vector<std::string> side_files_bad;
  double seconds = 0;
};
// The digests that a version must have, one for each tensor of its inventory.
using DigestsOf = std::function<Result<std::vector<tensor::TensorDigest>>(const VersionUid&)>;
// By a catalog, which must outlive it; of null, none.
DigestsOf DigestsIn(catalog::Catalog* catalog);
// Re-digests every byte of an image under one hold, and compares with those of the version that it
// claims; without `digests_of`, with the image's own manifest.
Result<VerifyReport> VerifyImage(os::World& world, const std::string& path, int threads,
                                 const DigestsOf& digests_of,
                                 const std::function<void(int64_t)>& progress = {});

}  // namespace weightcast::agent
