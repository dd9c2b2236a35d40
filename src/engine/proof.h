// Is a live engine at a version? Its workers digest the parameters that they hold, in canonical
// coordinates; the partials of all workers must sum to the version's tensor digests. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::engine {

enum class ProofScope : uint8_t {
  kTouched,  // the tensors that the last update changed
  kAll,
};

// How a worker knows, best first.
enum class How : uint8_t {
  kLive,      // the live parameter is canonical and was digested
  kRepacked,  // a kernel's own layout: the image's bytes, packed again, are equal to it
  kProbed,    // the layer answers identity rows as the image's bytes do
  kUnproven,  // none of these
};

// What one worker says of one tensor. `span` names the units that it holds: workers with the same
// span are replicas, different spans do not overlap.
struct TensorProof {
  std::string name;
  How how = How::kUnproven;
  tensor::Partial partial;
  std::string span;
};

struct WorkerProof {
  VersionUid version;  // what the worker serves
  std::vector<TensorProof> tensors;
};

// Errors: kAborted if a worker serves another version than `version`.
Status CheckVersion(const std::vector<WorkerProof>& workers, const VersionUid& version);

struct BadTensor {
  std::string name;
  std::string why;  // other digest, units, or no such tensor
};

struct Verdict {
  int64_t live = 0;
  int64_t repacked = 0;
  int64_t probed = 0;
  std::vector<std::string> unproven;  // or wanted, and no worker spoke of it
  std::vector<BadTensor> bad;

  // Errors: kDataLoss naming the bad, kInvalidData naming the unproven.
  Status Check() const;
};

// Compares the workers' proofs with the version's digests. A tensor counts as its weakest worker
// does; an unproven one is not compared. `wanted` (inventory indices) are those that must be
// among the proofs, others may be; tensors without units need no proof.
//   Requires: digests.size() == inventory.size().
Verdict Compare(const tensor::Inventory& inventory, std::span<const tensor::TensorDigest> digests,
                std::span<const int32_t> wanted, const std::vector<WorkerProof>& workers);

}  // namespace weightcast::engine
