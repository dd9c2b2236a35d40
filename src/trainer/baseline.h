// The baseline: the last published bytes of what one rank owns, packed as the plan's chunk list
// says. A cache with proof: it says which version it is at, and each use digests what it reads, so
// a torn or stale baseline is found and rebuilt, never believed.
//
//   DIR/
//     lock          held while in use
//     bytes         layout::ChunkList::packed_bytes
//     state.json    version that `bytes` is at, and the pending version, if any
//     kept.part     own part of the pending version: bytes advance by it once it is READY, and it
//                   goes
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "delta/part.h"
#include "layout/cells.h"
#include "os/world.h"
#include "tensor/inventory.h"

namespace weightcast::trainer {

// A part that was announced and waits for READY.
struct PendingPart {
  VersionUid version;
  delta::PartSeal seal;
  Sha256Digest partials;  // PartialsHash of what the bytes will be at
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
  const std::optional<PendingPart>& pending() const { return pending_; }
  ByteSpan bytes() const { return mapping_->bytes(); }
  ByteSpan chunk(const layout::Chunk& chunk, int64_t bytes) const {
    return mapping_->bytes().subspan(static_cast<size_t>(chunk.at), static_cast<size_t>(bytes));
  }

  // Where the own part is kept while it is written.
  std::string kept_path() const;
  // Remembers an announced part. After a crash it is still known.
  Status SetPending(const PendingPart& pending);
  Status DropPending();
  // The pending version is READY: applies the kept part, proving every chunk before and after;
  // chunks that are already at the new state are left alone, so it may be repeated after any death.
  // Errors: kDataLoss if bytes or kept part do not verify: the caller rebuilds.
  Status Advance(const tensor::Inventory& inventory, const layout::ChunkList& chunks);
  // The bytes are being rewritten whole (rebuild): until SetVersion they are at no version.
  Status BeginRebuild();
  void Write(int64_t at, ByteSpan bytes);
  Status SetVersion(const VersionUid& version, const Sha256Digest& partials);

 private:
  Baseline(os::World& world, std::string directory, std::string identity);
  Status SaveState();

  os::World* world_;
  std::string directory_;
  std::string identity_;
  std::unique_ptr<os::File> lock_;
  std::unique_ptr<os::File> file_;
  std::unique_ptr<os::Mapping> mapping_;
  VersionUid version_;
  Sha256Digest partials_;
  std::optional<PendingPart> pending_;
};

}  // namespace weightcast::trainer
