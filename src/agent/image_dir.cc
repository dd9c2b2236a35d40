#include "agent/image_dir.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/hash.h"
#include "base/text.h"

namespace weightcast::agent {
namespace {

constexpr std::string_view kClean = "clean-";
constexpr std::string_view kApplying = "applying-";
constexpr size_t kLockDigits = 32;
constexpr int64_t kManifestBytesMax = 256 * kMiB;  // as base/json.h; 35 bytes a tensor

Error Bad(const std::string& what) { return {Code::kDataLoss, what}; }

// A generation at the start of `text`, which loses it.
std::optional<int64_t> TakeGeneration(std::string_view* text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || value < 1 || text->front() == '0' || text->front() == '-') return {};
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

std::optional<State> ParseState(std::string_view name) {
  const bool clean = name.starts_with(kClean);
  if (!clean && !name.starts_with(kApplying)) return {};
  name.remove_prefix(clean ? kClean.size() : kApplying.size());
  const auto from = TakeGeneration(&name);
  if (!from) return {};
  if (clean) return name.empty() ? std::optional(State{*from, *from}) : std::nullopt;
  if (!name.starts_with('-')) return {};
  name.remove_prefix(1);
  const auto to = TakeGeneration(&name);
  if (!to || !name.empty() || *to <= *from) return {};
  return State{*from, *to};
}

std::string StateName(const State& state) {
  if (state.clean()) return std::string(kClean) + std::to_string(state.from);
  return std::string(kApplying) + std::to_string(state.from) + "-" + std::to_string(state.to);
}

std::string ManifestName(int64_t generation) {
  return "manifest-" + std::to_string(generation) + ".json";
}
std::optional<int64_t> GenerationOfManifest(std::string_view name) {
  constexpr std::string_view kPrefix = "manifest-";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  const auto generation = TakeGeneration(&name);
  return name == ".json" ? generation : std::nullopt;
}
std::string JournalName(const Step& step) {
  return "journal-" + std::to_string(step.from) + "-" + std::to_string(step.to);
}
std::string StagedName(const Sha256Digest& sha256) { return "side-" + sha256.hex(); }

// "sub/model.safetensors" -> "sub/.model.safetensors", as HfDirectory spells it.
std::string DotName(const std::string& name) {
  const size_t base = name.rfind('/') + 1;  // npos + 1 == 0
  return name.substr(0, base) + "." + name.substr(base);
}

// Weight files and, last, the index if there is one.
std::vector<std::string> HiddenNames(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const WeightFileRow& row : manifest.weight_files) names.push_back(row.name);
  for (const catalog::SideFileRow& row : manifest.side_files) {
    if (row.name == tensor::kIndexFile) names.push_back(row.name);
  }
  return names;
}

Result<std::string> ReadLockDigits(os::File& file) {
  Bytes digits(kLockDigits);
  const int64_t size = WC_TRY(file.Size());
  if (size != static_cast<int64_t>(kLockDigits)) {
    return Bad(file.path() + ": expected " + std::to_string(kLockDigits) + " digits, found " +
               std::to_string(size) + " bytes");
  }
  WC_TRY(file.Read(0, digits));
  Bytes id(kLockDigits / 2);
  if (!ParseHex(AsText(digits), id).ok()) return Bad(file.path() + ": holds no digits");
  return std::string(AsText(digits));
}

}  // namespace

std::string MetaPath(const std::string& image) { return os::JoinPath(image, ".weightcast"); }
std::string LockPath(const std::string& image) { return os::JoinPath(MetaPath(image), "lock"); }
std::string ManifestPath(const std::string& image, int64_t generation) {
  return os::JoinPath(MetaPath(image), ManifestName(generation));
}
std::string JournalPath(const std::string& image, const Step& step) {
  return os::JoinPath(MetaPath(image), JournalName(step));
}
std::string StagedPath(const std::string& image, const Sha256Digest& sha256) {
  return os::JoinPath(MetaPath(image), StagedName(sha256));
}
std::string StatePath(const std::string& image, const State& state) {
  return os::JoinPath(MetaPath(image), StateName(state));
}

Result<State> ReadState(os::Fs& fs, const std::string& image) {
  std::optional<State> state;
  for (const std::string& name : WC_TRY(fs.List(MetaPath(image)))) {
    const std::optional<State> found = ParseState(name);
    if (!found) continue;
    if (state) {
      return Bad(image + ": two states, " + StateName(*state) + " and " + name);
    }
    state = found;
  }
  if (!state)
    return Bad(MetaPath(image) + ": expected a state, clean-G or applying-G-H, found none");
  return *state;
}

Status ChangeState(os::Fs& fs, const std::string& image, const State& from, const State& to) {
  return fs.Rename(StatePath(image, from), StatePath(image, to));
}

Result<int64_t> NextGeneration(os::Fs& fs, const std::string& image) {
  const Result<State> state = ReadState(fs, image);
  if (state.ok()) return state->to + 1;
  if (state.error().code == Code::kNotFound || state.error().code == Code::kDataLoss) return 1;
  return state.error();
}

Result<Manifest> ReadManifest(os::Fs& fs, const std::string& image, int64_t generation) {
  const std::string path = ManifestPath(image, generation);
  const Result<Bytes> text = fs.ReadAll(path, kManifestBytesMax);
  if (!text.ok()) {
    if (text.error().code == Code::kNotFound) return Bad(path + ": missing");
    return text.error();
  }
  Manifest manifest = WC_TRY(ParseManifest(AsText(*text)).With(path));
  if (manifest.generation != generation) {
    return Bad(path + ": is of generation " + std::to_string(manifest.generation));
  }
  return manifest;
}

Status WriteNew(os::Fs& fs, const std::string& path, ByteSpan bytes, bool durable) {
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kCreate));
  WC_TRY(file->Truncate(0));
  WC_TRY(file->Write(0, bytes));
  return durable ? file->Sync() : Ok();
}

Status ReplaceManifest(os::Fs& fs, const std::string& image, const Manifest& manifest) {
  const std::string path = ManifestPath(image, manifest.generation);
  const std::string next = path + ".next";
  const std::string text = EncodeManifest(manifest);
  WC_TRY(WriteNew(fs, next, AsBytes(text), manifest.durability == Durability::kHost));
  return fs.Rename(next, path);
}

Result<std::unique_ptr<os::File>> LockImage(os::World& world, const std::string& image,
                                            os::Lock kind, const os::Deadline& deadline) {
  for (;;) {
    auto opened = world.fs.OpenFile(LockPath(image), os::Open::kRead);
    if (!opened.ok()) {
      if (opened.error().code != Code::kNotFound) return opened.error();
      const bool is_image = WC_TRY(world.fs.Exists(MetaPath(image)));
      return Error{is_image ? Code::kDataLoss : Code::kNotFound,
                   is_image ? LockPath(image) + ": missing" : image + ": no image"};
    }
    std::unique_ptr<os::File> lock = std::move(*opened);
    const Status locked = lock->LockFor(kind, deadline.left());
    if (!locked.ok()) {
      if (locked.error().code != Code::kDeadlineExceeded) return locked.error();
      return Error{Code::kDeadlineExceeded,
                   image + (kind == os::Lock::kExclusive ? ": a reader still holds it"
                                                         : ": it is being applied")};
    }
    const std::string digits = WC_TRY(ReadLockDigits(*lock));
    const auto there = world.fs.ReadAll(LockPath(image), kLockDigits);
    if (there.ok() && AsText(*there) == digits) return lock;
    if (!there.ok() && there.error().code != Code::kNotFound) return there.error();
    if (deadline.passed()) return Error{Code::kDeadlineExceeded, image + ": is being exchanged"};
  }
}

Result<WeightFileRow> DescribeWeightFile(os::Fs& fs, const std::string& path,
                                         const tensor::WeightFile& file) {
  const auto opened = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  Bytes header(static_cast<size_t>(file.header.data_start));
  WC_TRY(opened->Read(0, header));
  return WeightFileRow{file.name, file.header.file_bytes, Sha256::Of(header)};
}

Result<tensor::HfDirectory> OpenWeights(os::Fs& fs, const std::string& image,
                                        const Manifest& manifest, bool dotted) {
  auto opened = tensor::HfDirectory::Open(fs, image, dotted ? "." : "");
  if (!opened.ok()) {
    // An image of ours that does not parse any more is lost, not wrong input.
    if (opened.error().code == Code::kInvalidData) return Bad(opened.error().message);
    return opened.error();
  }
  std::vector<std::string> bad;
  const std::vector<tensor::WeightFile>& files = opened->weight_files();
  for (size_t f = 0; f < files.size(); ++f) {
    const auto row = WC_TRY(DescribeWeightFile(fs, opened->weight_path(f), files[f]));
    if (f >= manifest.weight_files.size() || row != manifest.weight_files[f]) {
      bad.push_back(row.name + " (" + std::to_string(row.bytes) + " bytes, header " +
                    row.header_sha256.brief() + ")");
    }
  }
  if (!bad.empty() || files.size() != manifest.weight_files.size()) {
    return Bad(image + ": expected the " + std::to_string(manifest.weight_files.size()) +
               " weight files of its manifest, found " + std::to_string(files.size()) +
               "; not as written: " + JoinNames(bad));
  }
  if (opened->inventory()->signature() != manifest.layout ||
      opened->inventory()->size() != manifest.digests.size()) {
    return Bad(image + ": layout expected " + manifest.layout.brief() + ", found " +
               opened->inventory()->signature().brief());
  }
  return opened;
}

Status HideWeights(os::Fs& fs, const std::string& image, const Manifest& manifest) {
  std::vector<std::string> names = HiddenNames(manifest);
  std::ranges::reverse(names);
  for (const std::string& name : names) {
    const std::string hidden = os::JoinPath(image, DotName(name));
    if (WC_TRY(fs.Exists(hidden))) continue;
    const Status renamed = fs.Rename(os::JoinPath(image, name), hidden);
    if (!renamed.ok() && renamed.error().code == Code::kNotFound)
      return Bad(renamed.error().message);
    WC_TRY(renamed);
  }
  return Ok();
}

Status ShowWeights(os::Fs& fs, const std::string& image, const Manifest& manifest) {
  for (const std::string& name : HiddenNames(manifest)) {
    const std::string hidden = os::JoinPath(image, DotName(name));
    if (!WC_TRY(fs.Exists(hidden))) continue;
    WC_TRY(fs.Rename(hidden, os::JoinPath(image, name)));
  }
  return Ok();
}

Status SyncWeights(os::Fs& fs, const std::string& image, const Manifest& manifest, bool dotted) {
  for (const WeightFileRow& row : manifest.weight_files) {
    const std::string path = os::JoinPath(image, dotted ? DotName(row.name) : row.name);
    const auto file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
    WC_TRY(file->Sync());
  }
  return Ok();
}

Status SyncTree(os::Fs& fs, const std::string& path) {
  std::vector<std::string> directories = {path};
  while (!directories.empty()) {
    const std::string directory = directories.back();
    directories.pop_back();
    for (const std::string& name : WC_TRY(fs.List(directory))) {
      const std::string entry = os::JoinPath(directory, name);
      const os::Stat stat = WC_TRY(fs.StatPath(entry));
      if (stat.is_directory) {
        directories.push_back(entry);
      } else if (stat.size > 0) {  // an empty file is all name
        const auto file = WC_TRY(fs.OpenFile(entry, os::Open::kRead));
        WC_TRY(file->Sync());
      }
    }
    WC_TRY(fs.SyncDirectory(directory));
  }
  return Ok();
}

namespace {

// Is it a file, or a directory with a file at or below it? What an install left half done is none.
Result<bool> HoldsFiles(os::Fs& fs, const std::string& path) {
  if (path.ends_with(".weightcast")) return false;
  const Result<os::Stat> stat = fs.StatPath(path);
  if (!stat.ok() || !stat->is_directory) return true;  // a link to nowhere is somebody's too
  for (const std::string& name : WC_TRY(fs.List(path))) {
    if (WC_TRY(HoldsFiles(fs, os::JoinPath(path, name)))) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<std::string>> ForeignNames(os::Fs& fs, const std::string& image,
                                              std::span<const catalog::SideFileRow> side_files) {
  std::set<std::string> known = {os::BaseName(MetaPath(image)), tensor::kIndexFile};
  const auto add = [&](const auto& rows) {
    for (const auto& row : rows) known.insert(row.name.substr(0, row.name.find('/')));
  };
  add(side_files);
  const Result<State> state = ReadState(fs, image);
  if (!state.ok()) return std::vector<std::string>();
  // Of whatever generation: a step that began may have lost its state's name, not its manifest's.
  for (const std::string& name : WC_TRY(fs.List(MetaPath(image)))) {
    const std::optional<int64_t> generation = GenerationOfManifest(name);
    if (!generation) continue;
    const Result<Manifest> manifest = ReadManifest(fs, image, *generation);
    if (!manifest.ok()) return std::vector<std::string>();
    add(manifest->side_files);
    add(manifest->weight_files);
  }
  std::vector<std::string> foreign;
  for (const std::string& name : WC_TRY(fs.List(image))) {
    const std::string shown = name.starts_with('.') ? name.substr(1) : name;
    const bool ours =
        known.contains(name) || known.contains(shown) || shown.ends_with(".safetensors");
    if (!ours && WC_TRY(HoldsFiles(fs, os::JoinPath(image, name)))) foreign.push_back(name);
  }
  return foreign;
}

Status RemoveUnnamed(os::Fs& fs, const std::string& image, const Manifest& manifest) {
  const State state{manifest.generation, manifest.generation};
  std::set<std::string> keep = {"lock", StateName(state), ManifestName(manifest.generation)};
  for (const catalog::SideFileRow& row : manifest.side_files) keep.insert(StagedName(row.sha256));
  for (const Step& step : manifest.journals) {
    keep.insert({JournalName(step), ManifestName(step.from)});
    const Result<Manifest> before = ReadManifest(fs, image, step.from);
    if (!before.ok()) continue;  // the journal still serves a replay, but no way back
    for (const catalog::SideFileRow& row : before->side_files) keep.insert(StagedName(row.sha256));
  }
  for (const std::string& name : WC_TRY(fs.List(MetaPath(image)))) {
    if (!keep.contains(name)) WC_TRY(fs.RemoveTree(os::JoinPath(MetaPath(image), name)));
  }
  return Ok();
}

}  // namespace weightcast::agent
