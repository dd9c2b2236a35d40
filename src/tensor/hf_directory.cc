#include "tensor/hf_directory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/json.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "base/units.h"

namespace weightcast::tensor {
namespace {

constexpr std::string_view kWeightSuffix = ".safetensors";

// Far above any real side file; what is larger is a weight file of another format.
constexpr int64_t kSideFileBytesMax = kGiB;
constexpr size_t kSideFilesMax = 10'000;
constexpr int kSideFileDepthMax = 8;

// Digested as one item: long enough to hide the hand-over, short enough that the last items of a
// model do not leave threads idle. A multiple of the digest's block.
constexpr int64_t kDigestPieceBytes = 8 * kMiB;

Error Bad(std::string message) { return {Code::kInvalidData, std::move(message)}; }

Status AllGood(const std::vector<std::string>& bad) {
  if (bad.empty()) return Ok();
  return Bad(JoinNames(bad));
}

// "sub/model.safetensors" with prefix "." -> "sub/.model.safetensors".
std::string PrefixedName(const std::string& name, const std::string& prefix) {
  const size_t base = name.rfind('/') + 1;  // npos + 1 == 0
  return name.substr(0, base) + prefix + name.substr(base);
}

// A relative path below the directory without any way out of it, in its one spelling.
bool SafeWeightName(std::string_view name) {
  if (name.size() > kNameBytesMax || !name.ends_with(kWeightSuffix)) return false;
  const auto unsafe = [](char c) { return c == '\\' || static_cast<uint8_t>(c) < 0x20; };
  if (std::ranges::any_of(name, unsafe)) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (at == end || name[at] == '.') return false;  // "", ".", "..", hidden
    at = end + 1;
  }
  return true;
}

// Names of weight files of a directory without an index.
Result<std::vector<std::string>> FindSingleFile(os::Fs& fs, const std::string& path,
                                                const std::string& prefix) {
  std::vector<std::string> found;
  for (const std::string& name : WC_TRY(fs.List(path))) {
    if (!name.starts_with(prefix) || !name.ends_with(kWeightSuffix)) continue;
    const std::string bare = name.substr(prefix.size());
    if (SafeWeightName(bare)) found.push_back(bare);
  }
  if (std::ranges::find(found, kSingleWeightFile) != found.end()) return {{kSingleWeightFile}};
  if (found.size() == 1) return found;
  if (found.empty()) {
    return Bad(path + ": expected " + prefix + kSingleWeightFile + " or " + prefix + kIndexFile +
               ", found no weight file");
  }
  return Bad(path + ": several weight files, but no " + prefix + kIndexFile +
             " that says which: " + JoinNames(found));
}

Result<WeightFile> OpenWeightFile(os::Fs& fs, const std::string& path, std::string name) {
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  SafetensorsHeader header = WC_TRY(ReadSafetensorsHeader(*file));
  return WeightFile{std::move(name), std::move(header)};
}

// Index and headers must place the same tensors in the same files.
Status CheckAgainstIndex(const WeightMap& weight_map, const std::vector<WeightFile>& files) {
  std::vector<std::string> bad;
  std::set<std::pair<std::string_view, std::string_view>> held;  // tensor, file
  for (const WeightFile& file : files) {
    for (const PlacedTensor& tensor : file.header.tensors) {
      const std::string& name = tensor.spec.name;
      held.emplace(name, file.name);
      const auto it = weight_map.find(name);
      if (it == weight_map.end()) {
        bad.push_back(Quoted(name) + " is in " + file.name + ", but not in the index");
      } else if (it->second != file.name) {
        bad.push_back(Quoted(name) + " is in " + file.name + ", but the index says " + it->second);
      }
    }
  }
  for (const auto& [name, file] : weight_map) {
    if (!held.contains({name, file})) {
      bad.push_back(Quoted(name) + " is not in " + file + ", where the index says");
    }
  }
  return AllGood(bad);
}

// Regular files below `path`, relative; hidden names, and weight files anywhere, left out.
Status ListSideFiles(os::Fs& fs, const std::string& path, const std::string& below, int depth,
                     std::vector<SideFile>* out) {
  if (depth > kSideFileDepthMax) {
    return Bad(path + ": deeper than " + std::to_string(kSideFileDepthMax) + " directories");
  }
  for (const std::string& name : WC_TRY(fs.List(path))) {
    if (name.starts_with('.') || name.ends_with(kWeightSuffix)) continue;
    const std::string full = os::JoinPath(path, name);
    const os::Stat stat = WC_TRY(fs.StatPath(full));
    if (stat.is_directory) {
      WC_TRY(ListSideFiles(fs, full, below + name + "/", depth + 1, out));
    } else {
      out->push_back({below + name, stat.size, {}});
      if (out->size() > kSideFilesMax) {
        return Bad("more than " + std::to_string(kSideFilesMax) + " side files");
      }
    }
  }
  return Ok();
}

Result<Sha256Digest> HashFile(os::Fs& fs, const std::string& path, int64_t bytes) {
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  Sha256 sha;
  Bytes buffer(static_cast<size_t>(std::min(bytes, kMiB)));
  for (int64_t at = 0; at < bytes;) {
    const int64_t n = std::min(bytes - at, kMiB);
    const auto part = MutableByteSpan(buffer).first(static_cast<size_t>(n));
    WC_TRY(file->Read(at, part));
    sha.Update(part);
    at += n;
  }
  return sha.Finish();
}

}  // namespace

Result<WeightMap> ParseIndexJson(std::string_view text) {
  const Json json =
      WC_TRY(ParseJson(text, {.bytes_max = static_cast<size_t>(kIndexBytesMax), .depth_max = 8}));
  WeightMap weight_map;
  std::vector<std::string> bad;
  for (const auto& [name, file] : WC_TRY(JsonObject(json, "weight_map"))->items()) {
    if (!file.is_string()) {
      bad.push_back(Quoted(name) + ": expected a file name, found " + file.type_name());
    } else if (!SafeWeightName(file.get<std::string>())) {
      bad.push_back(Quoted(name) + ": not the name of a weight file in the directory: " +
                    Quoted(file.get<std::string>()));
    } else {
      weight_map.emplace(name, file.get<std::string>());
    }
  }
  WC_TRY(AllGood(bad));
  return weight_map;
}

Result<HfDirectory> HfDirectory::Open(os::Fs& fs, const std::string& path,
                                      const std::string& name_prefix) {
  HfDirectory directory;
  directory.path_ = path;
  directory.name_prefix_ = name_prefix;
  const std::string index_path = os::JoinPath(path, name_prefix + kIndexFile);
  const bool has_index = WC_TRY(fs.Exists(index_path));
  WeightMap weight_map;
  std::set<std::string> names;
  if (has_index) {
    const Bytes text = WC_TRY(fs.ReadAll(index_path, kIndexBytesMax));
    weight_map = WC_TRY(ParseIndexJson(AsText(text)).With(index_path));
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    const std::string single = os::JoinPath(path, name_prefix + kSingleWeightFile);
    if (!names.contains(kSingleWeightFile) && WC_TRY(fs.Exists(single))) {
      return Bad(single + ": lies beside an index that does not name it");
    }
  } else {
    names.insert(WC_TRY(FindSingleFile(fs, path, name_prefix)).front());
  }

  std::vector<std::string> bad;
  for (const std::string& name : names) {
    auto file = OpenWeightFile(fs, os::JoinPath(path, PrefixedName(name, name_prefix)), name);
    if (file.ok()) {
      directory.weight_files_.push_back(std::move(*file));
    } else if (file.error().code == Code::kNotFound || file.error().code == Code::kInvalidData) {
      bad.push_back(file.error().message);
    } else {
      return file.error();
    }
  }
  WC_TRY(AllGood(bad).With(path));
  if (has_index) WC_TRY(CheckAgainstIndex(weight_map, directory.weight_files_).With(index_path));
  WC_TRY(directory.TakeInventory().With(path));
  return directory;
}

Status HfDirectory::TakeInventory() {
  std::vector<TensorSpec> specs;
  for (const WeightFile& file : weight_files_) {
    for (const PlacedTensor& tensor : file.header.tensors) specs.push_back(tensor.spec);
  }
  inventory_ = std::make_shared<const Inventory>(WC_TRY(Inventory::Make(std::move(specs))));
  places_.resize(inventory_->size());
  for (size_t f = 0; f < weight_files_.size(); ++f) {
    for (const PlacedTensor& tensor : weight_files_[f].header.tensors) {
      const auto index = static_cast<size_t>(inventory_->Find(tensor.spec.name));
      places_[index] = {static_cast<int32_t>(f), tensor.offset};
    }
  }
  return Ok();
}

std::string HfDirectory::weight_path(size_t file) const {
  return os::JoinPath(path_, PrefixedName(weight_files_[file].name, name_prefix_));
}

Result<std::vector<SideFile>> HashSideFiles(os::Fs& fs, const std::string& path) {
  std::vector<SideFile> files;
  WC_TRY(ListSideFiles(fs, path, "", 0, &files).With(path));
  std::vector<std::string> bad;
  for (const SideFile& file : files) {
    if (file.bytes > kSideFileBytesMax) {
      bad.push_back(file.name + " of " + std::to_string(file.bytes) + " bytes");
    }
  }
  WC_TRY(AllGood(bad).With(path + ": a side file has at most " + std::to_string(kSideFileBytesMax) +
                           " bytes"));
  for (SideFile& file : files) {
    file.sha256 = WC_TRY(HashFile(fs, os::JoinPath(path, file.name), file.bytes));
  }
  std::ranges::sort(files, {}, &SideFile::name);
  return files;
}

Result<MappedWeights> MappedWeights::Map(os::Fs& fs, const HfDirectory& directory, bool writable) {
  MappedWeights mapped;
  for (size_t f = 0; f < directory.weight_files().size(); ++f) {
    const std::string path = directory.weight_path(f);
    const auto file = WC_TRY(fs.OpenFile(path, writable ? os::Open::kReadWrite : os::Open::kRead));
    mapped.mappings_.push_back(WC_TRY(file->Map(writable)));
    const auto found = static_cast<int64_t>(mapped.mappings_.back()->bytes().size());
    const int64_t expected = directory.weight_files()[f].header.file_bytes;
    if (found != expected) {
      return Bad(path + ": expected " + std::to_string(expected) +
                 " bytes, as its header says, found " + std::to_string(found));
    }
  }
  mapped.places_ = directory.places();
  mapped.inventory_ = directory.inventory();
  return mapped;
}

ByteSpan MappedWeights::tensor(size_t index) const {
  const TensorPlace& place = places_[index];
  return mappings_[static_cast<size_t>(place.file)]->bytes().subspan(
      static_cast<size_t>(place.offset), static_cast<size_t>((*inventory_)[index].bytes()));
}

Result<std::vector<TensorDigest>> DigestAll(const Inventory& inventory,
                                            const MappedWeights& weights, int threads,
                                            const std::function<void(int64_t)>& progress) {
  struct Piece {
    size_t tensor;
    int64_t offset;
    int64_t bytes;
    TensorDigest digest;
  };
  std::vector<Piece> pieces;
  for (size_t t = 0; t < inventory.size(); ++t) {
    const int64_t bytes = inventory[t].bytes();
    for (int64_t at = 0; at < bytes; at += kDigestPieceBytes) {
      pieces.push_back({t, at, std::min(kDigestPieceBytes, bytes - at), {}});
    }
  }
  std::atomic<int64_t> done{0};
  WC_TRY(ParallelFor(pieces.size(), threads, [&](size_t item, int) {
    Piece& piece = pieces[item];
    const ByteSpan bytes =
        weights.tensor(piece.tensor)
            .subspan(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.bytes));
    piece.digest = DigestRun(piece.offset, bytes);
    const int64_t so_far = done += piece.bytes;
    if (progress) progress(so_far);
    return Ok();
  }));
  std::vector<TensorDigest> digests(inventory.size());
  for (const Piece& piece : pieces) digests[piece.tensor] = digests[piece.tensor] + piece.digest;
  return digests;
}

std::vector<PlannedFile> PlanWeightFiles(const Inventory& inventory, int64_t file_bytes_max) {
  std::vector<PlannedFile> files(1);
  int64_t file_bytes = 0;
  for (const TensorSpec& spec : inventory.tensors()) {
    const bool fits = spec.bytes() == 0 || file_bytes + spec.bytes() <= file_bytes_max;
    if (!fits && !files.back().tensors.empty()) {
      files.emplace_back();
      file_bytes = 0;
    }
    file_bytes += spec.bytes();
    files.back().tensors.push_back(spec);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    // Engines view tensors in the mapped file, which needs their alignment: wide units first.
    std::ranges::stable_sort(files[i].tensors, std::greater{},
                             [](const TensorSpec& spec) { return UnitBytes(spec.dtype); });
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? kSingleWeightFile : name;
  }
  return files;
}

std::string IndexJson(const std::vector<PlannedFile>& files) {
  int64_t total_bytes = 0;
  std::map<std::string_view, std::string_view> weight_map;
  for (const PlannedFile& file : files) {
    for (const TensorSpec& spec : file.tensors) {
      weight_map.emplace(spec.name, file.name);
      total_bytes += spec.bytes();
    }
  }
  std::string text = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_bytes) +
                     "\n  },\n  \"weight_map\": {";
  std::string_view separator = "\n    ";
  for (const auto& [name, file] : weight_map) {
    text += separator;
    text += Json(name).dump() + ": " + Json(file).dump();
    separator = ",\n    ";
  }
  return text + "\n  }\n}\n";
}

}  // namespace weightcast::tensor
