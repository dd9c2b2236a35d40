// A Hugging Face checkpoint directory: one weight file, or shards with an index, and side files.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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

inline constexpr int64_t kIndexBytesMax = 100'000'000;

// Tensor name to weight file name. A file name is a relative path with '/' between parts, ends with
// ".safetensors", and no part of it is empty or begins with a dot.
using WeightMap = std::map<std::string, std::string>;
// Parses an index file. Untrusted. Errors: kInvalidData, listing every unfit name.
Result<WeightMap> ParseIndexJson(std::string_view text);

// Where one tensor of the inventory lies.
struct TensorPlace {
  int32_t file = 0;    // into HfDirectory::weight_files
  int64_t offset = 0;  // from the start of that file
};

struct WeightFile {
  std::string name;  // inside the directory, as the index spells it
  SafetensorsHeader header;
};

struct SideFile {    // config, tokenizer, index, ...: everything that is not a weight file
  std::string name;  // relative, '/' between parts
  int64_t bytes = 0;
  Sha256Digest sha256;
};

// Every regular file below a directory but names with a leading dot and "*.safetensors", hashed.
// Sorted by name. Symbolic links are followed. Errors: kInvalidData (a file above 1 GiB, more than
// 10,000 files, more than 8 directories deep).
Result<std::vector<SideFile>> HashSideFiles(os::Fs& fs, const std::string& path);

class HfDirectory {
 public:
  // Reads headers and index only. With an index: the files it names. Without: model.safetensors, or
  // the only "*.safetensors" there is. `name_prefix` is put before the names of index and weight
  // files when opening (an image that is being written wears dot names); normally "".
  // Symbolic links are followed: the hub's cache is made of them.
  // Errors: kInvalidData: neither a weight file nor an index; a shard missing or outside the
  // directory; model.safetensors beside an index that does not name it; a tensor in a shard that
  // the index does not place there, or the other way; the same tensor twice. All offenders are
  // listed.
  static Result<HfDirectory> Open(os::Fs& fs, const std::string& path,
                                  const std::string& name_prefix = "");

  const std::string& path() const { return path_; }
  const std::shared_ptr<const Inventory>& inventory() const { return inventory_; }
  const std::vector<WeightFile>& weight_files() const { return weight_files_; }
  const std::vector<TensorPlace>& places() const { return places_; }  // by inventory index
  std::string weight_path(size_t file) const;

 private:
  Status TakeInventory();  // from weight_files_

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
// `progress`, if set, is called with bytes done so far, from any thread, not always in order.
Result<std::vector<TensorDigest>> DigestAll(const Inventory& inventory,
                                            const MappedWeights& weights, int threads,
                                            const std::function<void(int64_t)>& progress = {});

// The layout that a new image gets: files of at most `file_bytes_max` of tensors (one file if all
// fit; a larger tensor gets a file of its own), named as Hugging Face names them
// (model-00001-of-00002.safetensors with model.safetensors.index.json). Tensors are dealt out in
// inventory order; inside a file those with wide units come first, so that all are aligned.
struct PlannedFile {
  std::string name;
  std::vector<TensorSpec> tensors;
};
std::vector<PlannedFile> PlanWeightFiles(const Inventory& inventory, int64_t file_bytes_max);
// The text of the index file for that layout.
std::string IndexJson(const std::vector<PlannedFile>& files);

}  // namespace weightcast::tensor
