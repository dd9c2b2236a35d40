// The root: identity of a version's content. docs/formats/root.md.
#pragma once

#include <span>

#include "base/ids.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::tensor {

// SHA-256 over (name, dtype, shape, tensor digest) in inventory order.
//   Requires: digests.size() == inventory.size().
Root ComputeRoot(const Inventory& inventory, std::span<const TensorDigest> digests);

}  // namespace weightcast::tensor
