// Laying a whole image beside the one that is there, and exchanging the two by one rename: cold
// starts, full versions, going back without an undo. Protocol: docs/design/image.md.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/manifest.h"
#include "agent/side_files.h"
#include "base/status.h"
#include "base/units.h"
#include "os/world.h"
#include "tensor/hf_directory.h"
#include "transfer/chain.h"

namespace weightcast::agent {

// "/models/policy" -> "/models/.policy.weightcast-next".
std::string NextPath(const std::string& image);

// Removes what is at NextPath, if anything: a half-built image, or the old one behind an exchange.
// That exchange may not be durable yet, and then the old image is what the disk has: so it is
// synced first.
Status RemoveNext(os::Fs& fs, const std::string& image);

struct LayOptions {
  int threads = 0;
  int64_t batch_payload_bytes_max = 8 * kMiB;
  int64_t weight_file_bytes_max = 5 * kGiB;
};

struct LayRequest {
  std::string image;                                   // absolute
  std::shared_ptr<const tensor::Inventory> inventory;  // of the target
  Manifest manifest;  // of the new image, but for weight files and index, which are filled in
  const transfer::Chain* chain = nullptr;          // null: the base as it is
  const tensor::HfDirectory* base = nullptr;       // null if the chain starts full
  const tensor::HfDirectory* layout_of = nullptr;  // take its weight files' layout; null: plan one
  SideSources side_sources;
  std::function<void()> tick;                        // called between batches, from any thread
  std::function<Status(int64_t, int64_t)> progress;  // bytes done, in all; an error stops
};

struct LayTimes {
  Duration prepare = Duration::zero();
  Duration apply = Duration::zero();  // readers excluded
  int64_t base_bytes = 0;             // taken from the base
};

// Builds the image in NextPath, proves every tensor and the root, and exchanges. The old image, if
// there is one, is removed. On error it is untouched and what was built is removed.
//   Requires: the caller holds the mover lock; nothing is at NextPath.
// Errors: kResourceExhausted (space; before work begins), kDataLoss, kDeadlineExceeded (readers).
Status LayBeside(os::World& world, LayRequest request, const LayOptions& options,
                 Duration hold_timeout, LayTimes* times);

}  // namespace weightcast::agent
