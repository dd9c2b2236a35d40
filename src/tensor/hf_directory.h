// A Hugging Face checkpoint directory: one weight file, or shards with an index, and side files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "os/fs.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"
#include "tensor/safetensors.h"

namespace weightcast::tensor {

inline constexpr const char* kSingleWeightFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// Where one tensor of the inventory lies.
struct TensorPlace {
  int32_t file = 0;    // into HfDirectory::weight_files
  int64_t offset = 0;  // from the start of that file
};

struct WeightFile {
  std::string name;  // inside the directory, as the index spells it
  SafetensorsHeader header;
};

struct SideFile {  // config, tokenizer, index, ...: everything that is not a weight file
  std::string name;   // relative, '/' between parts
  int64_t bytes = 0;
  Sha256Digest sha256;
};

class HfDirectory {
 public:
  // Reads headers and index only. `name_prefix` is put before each weight file name when opening
  // (an image that is being written wears dot names); normally "".
  // Errors: kInvalidData: neither a weight file nor an index; a shard missing or outside the
  // directory; a tensor in a shard that the index does not place there, or the other way; the same
  // tensor twice. All offenders are listed.
  static Result<HfDirectory> Open(os::Fs& fs, const std::string& path,
                                  const std::string& name_prefix = "");

  const std::string& path() const { return path_; }
  const std::shared_ptr<const Inventory>& inventory() const { return inventory_; }
  const std::vector<WeightFile>& weight_files() const { return weight_files_; }
  const std::vector<TensorPlace>& places() const { return places_; }  // by inventory index
  std::string weight_path(size_t file) const;

  // Every regular file below the directory but weight files, names with a leading dot and
  // "*.safetensors", hashed. Sorted by name.
  Result<std::vector<SideFile>> HashSideFiles(os::Fs& fs) const;

 private:
  std::string path_;
  std::string name_prefix_;
  std::shared_ptr<const Inventory> inventory_;
  std::vector<WeightFile> weight_files_;
  std::vector<TensorPlace> places_;
};

// The directory's weight files mapped. `writable` maps for in-place updates.
class MappedWeights {
 public:
  static Result<MappedWeights> Map(os::Fs& fs, const HfDirectory& directory, bool writable);

  // Canonical bytes of a tensor.
  ByteSpan tensor(size_t index) const;
  os::Mapping& file(size_t index) { return *mappings_[index]; }
  // Byte range of a tensor inside its file.
  const TensorPlace& place(size_t index) const { return places_[index]; }

 private:
  std::vector<std::unique_ptr<os::Mapping>> mappings_;
  std::vector<TensorPlace> places_;
  std::shared_ptr<const Inventory> inventory_;
};

// Digests every tensor, on `threads` threads (0: all CPUs), in bounded memory.
// `progress`, if set, is called with bytes done so far, from any thread.
Result<std::vector<TensorDigest>> DigestAll(const Inventory& inventory, const MappedWeights& weights,
                                            int threads,
                                            const std::function<void(int64_t)>& progress = {});

// The layout that a new image gets: tensors in inventory order, in files of at most
// `file_bytes_max` (one file if all fit), named as Hugging Face names them
// (model-00001-of-00002.safetensors with model.safetensors.index.json).
struct PlannedFile {
  std::string name;
  std::vector<TensorSpec> tensors;
};
std::vector<PlannedFile> PlanWeightFiles(const Inventory& inventory, int64_t file_bytes_max);
// The text of the index file for that layout.
std::string IndexJson(const std::vector<PlannedFile>& files);

}  // namespace weightcast::tensor
