// What one generation of an image is, and how the generation before becomes it.
// Format: docs/formats/image.md, "manifest".
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "tensor/digest.h"

namespace weightcast::agent {

// What survives what. kHost (default): the death of the host too; the journal is synced before the
// first in-place byte and kept until a later sync of the image. kProcess: the death of any process;
// after a host restart the image is not trusted and is laid anew.
enum class Durability : uint8_t { kProcess, kHost };

// A weight file of the image. All before its data is known by hash, the data by tensor digests.
struct WeightFileRow {
  std::string name;
  int64_t bytes = 0;
  Sha256Digest header_sha256;

  bool operator==(const WeightFileRow&) const = default;
};

// The two generations that a journal joins.
struct Step {
  int64_t from = 0;
  int64_t to = 0;

  auto operator<=>(const Step&) const = default;
};

struct Manifest {
  int64_t generation = 0;
  RunUid run;
  VersionUid version;
  int64_t number = 0;
  Root root;
  LayoutSignature layout;
  Durability durability = Durability::kHost;
  std::string boot_id;         // of the host when it was written or last recovered
  int64_t synced = 0;          // the last generation whose weight files were synced; kHost only
  std::vector<Step> journals;  // kept ones that led here, oldest first
  bool undo = false;           // how the generation before becomes this one: redo `steps` in order,
  std::vector<Step> steps;     //   or undo them in order; none if it was laid beside
  std::vector<WeightFileRow> weight_files;       // by name
  std::vector<catalog::SideFileRow> side_files;  // by name; with the index of the weight files
  std::vector<tensor::TensorDigest> digests;     // in inventory order
};

std::string EncodeManifest(const Manifest& manifest);
// Errors: kDataLoss (checksum, malformed).
Result<Manifest> ParseManifest(std::string_view text);

}  // namespace weightcast::agent
