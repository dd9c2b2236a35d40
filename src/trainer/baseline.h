// The baseline: the last published bytes of what one rank owns, packed as the plan's chunk list
// says. A cache with proof: it says which version it is at, and each use digests what it reads, so
// a torn or stale baseline is found and rebuilt, never believed.
//
//   DIR/
//     lock          held while in use
//     bytes         layout::ChunkList::packed_bytes
//     state.json    version that `bytes` is at, and the pending version, if any
//     redo          what the pending version changes in `bytes` (redo.h): applied once it is READY
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "layout/cells.h"
#include "os/world.h"
#include "tensor/inventory.h"

namespace weightcast::trainer {

// A version that was announced and waits for READY.
struct PendingVersion {
  VersionUid version;
  Sha256Digest partials;   // PartialsHash of what the bytes will be at
  int64_t redo_bytes = 0;  // of the redo file; 0: the bytes are there already
};

// One hash over what a rank's share of a version digests to: (tensor, units, digest) of each
// tensor.
Sha256Digest PartialsHash(std::span<const std::pair<int32_t, tensor::Partial>> partials);

class Baseline {
 public:
  // Opens or creates. `identity` (run, plan, rank) must equal what the directory was made for: else
  // it starts empty. Errors: kUnavailable if another process uses it, kResourceExhausted (disk).
  static Result<Baseline> Open(os::World& world, const std::string& directory,
                               const std::string& identity, const layout::ChunkList& chunks);

  // Version that the bytes are at; empty: none.
  const VersionUid& version() const { return version_; }
  // What they must digest to; a publisher that finds otherwise rebuilds.
  const Sha256Digest& partials() const { return partials_; }
  const std::optional<PendingVersion>& pending() const { return pending_; }
  ByteSpan bytes() const { return mapping_->bytes(); }
  ByteSpan chunk(const layout::Chunk& chunk, int64_t bytes) const {
    return mapping_->bytes().subspan(static_cast<size_t>(chunk.at), static_cast<size_t>(bytes));
  }

  // What a new version changes is collected while the bytes stay: BeginRedo forgets a pending
  // version, AppendRedo adds records (one thread at a time), SetPending says which version they
  // lead to; after a crash it is still known. With the bytes at no version they are written at once
  // instead (Write), and the redo file stays empty.
  Status BeginRedo();
  Status AppendRedo(ByteSpan record);
  Status SetPending(const VersionUid& version, const Sha256Digest& partials);
  Status DropPending();
  // The pending version is READY: the bytes are brought there. May be repeated after any death.
  // Errors: kDataLoss or kNotFound if the redo file is not what it was: the caller rebuilds.
  Status Advance(const tensor::Inventory& inventory, const layout::ChunkList& chunks, int threads);
  // The bytes are being rewritten whole: until SetVersion, or a pending version, they are at none.
  Status BeginRebuild();
  void Write(int64_t at, ByteSpan bytes);  // any thread, ranges apart
  Status SetVersion(const VersionUid& version, const Sha256Digest& partials);

 private:
  Baseline(os::World& world, std::string directory, std::string identity);
  Status SaveState();
  std::string redo_path() const;

  os::World* world_;
  std::string directory_;
  std::string identity_;
  std::unique_ptr<os::File> lock_;
  std::unique_ptr<os::File> file_;
  std::unique_ptr<os::Mapping> mapping_;
  VersionUid version_;
  Sha256Digest partials_;
  std::optional<PendingVersion> pending_;
  std::unique_ptr<os::File> redo_;  // between BeginRedo and SetPending
  int64_t redo_bytes_ = 0;
};

}  // namespace weightcast::trainer
