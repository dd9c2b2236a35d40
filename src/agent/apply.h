// The in-place step of an image, and its recovery. Protocol: docs/design/image.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "agent/journal.h"
#include "agent/manifest.h"
#include "base/status.h"
#include "base/units.h"
#include "os/world.h"
#include "tensor/hf_directory.h"

namespace weightcast::agent {

// One journal, forward or back.
struct Op {
  const Journal* journal = nullptr;
  bool undo = false;
};

// The sums that tie a step to its two versions: for every tensor, digest in `from` + what the
// journals change = digest in `to`. Errors: kDataLoss, listing the tensors that do not add up.
Status CheckSums(const tensor::Inventory& inventory, const Manifest& from, const Manifest& to,
                 std::span<const Op> ops);

// A step of an image: what is written where.
struct StepWork {
  os::World& world;
  const std::string& image;
  const Manifest& from;
  const Manifest& to;
  std::span<const Op> ops;
  const tensor::Inventory& inventory;
  tensor::MappedWeights& weights;  // of the image, writable
  int threads;
};

struct ApplyTimes {
  Duration apply = Duration::zero();   // readers excluded
  Duration verify = Duration::zero();  // thereof: proof of what was touched
};

// Moves an image from generation `from` to `to` by writing `ops` in order. Everything that `to`
// names lies there (manifest, journals, staged side files; synced if it is durable).
//   Requires: the caller holds the mover lock.
// Errors: kDeadlineExceeded (readers), kAborted (the image is not at `from`): the image is
// untouched; kDataLoss (a touched cell is not what it must be), I/O: the old units are written
// back. If even that fails the message says so, and the next hold recovers.
Status ApplyStep(const StepWork& work, const os::Deadline& deadline, ApplyTimes* times);

// Whether an image in this state must be recovered before anyone reads it.
Result<bool> NeedsRecovery(os::World& world, const std::string& image);

// Brings an image between generations, or one whose host was restarted, to a clean state. Fine if
// it is clean. Errors: kDataLoss.
//   Requires: the caller holds the exclusive lock.
Status Recover(os::World& world, const std::string& image, int threads);

}  // namespace weightcast::agent
