// What the announcements of a version must be, and what they prove together. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "tensor/digest.h"

namespace weightcast::catalog {

// One announcement against its attempt: rank, plan, objects, partials.
// Errors: kConflict (another plan, not a participant), kInvalidData (the rest).
//   `tensors`: size of the inventory; `carried`: ascending.
Status CheckAnnouncement(const Announcement& announcement, const Version& version, int64_t tensors,
                         const std::vector<int32_t>& carried);

struct Proof {
  std::vector<tensor::TensorDigest> digests;
  Root root;
  std::vector<ObjectRef> objects;
  PublishStats stats;
};
// All announcements, in rank order, of an attempt; each has passed CheckAnnouncement.
//   `base`: digests of the base version; empty if it has none.
// Errors, each naming every tensor: kInvalidData (units missing or covered twice; carried tensors
// without their object), kDataLoss (base partials do not sum to the base version's digests: some
// rank diffed against other bytes).
Result<Proof> Prove(const Run& run, const Version& version,
                    const std::vector<Announcement>& announcements,
                    const std::vector<tensor::TensorDigest>& base);

}  // namespace weightcast::catalog
