#include "agent/side_files.h"

#include <algorithm>
#include <set>

#include "agent/image_dir.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "tensor/hf_directory.h"

namespace weightcast::agent {
namespace {

constexpr int64_t kStepBytes = kMiB;
constexpr int64_t kSideFileBytesMax = kGiB;  // as tensor/hf_directory.h takes from a checkpoint

using Reader = std::function<Status(int64_t offset, MutableByteSpan out)>;

bool SafeName(std::string_view name) {
  if (name.size() > tensor::kNameBytesMax || !ValidUtf8(name)) return false;
  if (name.ends_with(".safetensors") || name.find('\0') != std::string_view::npos) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (at == end || name[at] == '.') return false;  // "", ".", "..", hidden
    at = end + 1;
  }
  return true;
}

// Rows that `to` has and `from` has not, by name and content. The index belongs to the layout of
// the weight files, which no step changes.
std::vector<catalog::SideFileRow> Missing(const Manifest& from, const Manifest& to) {
  std::vector<catalog::SideFileRow> rows;
  for (const catalog::SideFileRow& row : to.side_files) {
    if (row.name == tensor::kIndexFile) continue;
    const bool has = std::ranges::any_of(from.side_files, [&](const catalog::SideFileRow& other) {
      return other.name == row.name && other.sha256 == row.sha256;
    });
    if (!has) rows.push_back(row);
  }
  return rows;
}

// Reads `row.bytes` bytes step by step, hashes them, and hands them on.
Status Stream(const catalog::SideFileRow& row, const Reader& read,
              const std::function<Status(int64_t, ByteSpan)>& write) {
  Sha256 sha;
  Bytes buffer(static_cast<size_t>(std::min(row.bytes, kStepBytes)));
  for (int64_t at = 0; at < row.bytes;) {
    const auto part =
        MutableByteSpan(buffer).first(static_cast<size_t>(std::min(row.bytes - at, kStepBytes)));
    WC_TRY(read(at, part));
    sha.Update(part);
    if (write) WC_TRY(write(at, part));
    at += static_cast<int64_t>(part.size());
  }
  const Sha256Digest found = sha.Finish();
  if (found == row.sha256) return Ok();
  return Error{Code::kDataLoss, "SHA-256 expected " + row.sha256.hex() + ", found " + found.hex()};
}

Status CopyTo(os::Fs& fs, const catalog::SideFileRow& row, const Reader& read,
              const std::string& path, bool durable) {
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kCreate));
  WC_TRY(file->Truncate(0));
  WC_TRY(Stream(row, read, [&](int64_t at, ByteSpan bytes) { return file->Write(at, bytes); }));
  return durable ? file->Sync() : Ok();
}

// A row's file in `directory`, if it has the right size; its content is proven while it is copied.
Status CopyFromDirectory(os::Fs& fs, const catalog::SideFileRow& row, const std::string& directory,
                         const std::string& path, bool durable) {
  const auto file = WC_TRY(fs.OpenFile(os::JoinPath(directory, row.name), os::Open::kRead));
  const int64_t size = WC_TRY(file->Size());
  if (size != row.bytes) {
    return Error{Code::kDataLoss, file->path() + ": has " + std::to_string(size) +
                                      " bytes, expected " + std::to_string(row.bytes)};
  }
  return CopyTo(
             fs, row, [&](int64_t at, MutableByteSpan out) { return file->Read(at, out); }, path,
             durable)
      .With(file->path());
}

Status CopyFromStore(os::Fs& fs, const catalog::SideFileRow& row, const std::string& url,
                     const SideSources& sources, const std::string& path, bool durable) {
  store::Store* store = WC_TRY(sources.open_store(url));
  const std::string key = catalog::SideFileKey(row.sha256);
  return CopyTo(
             fs, row, [&](int64_t at, MutableByteSpan out) { return store->Get(key, at, out); },
             path, durable)
      .With(key);
}

// The directories from `image` down to the parent of `name`.
void CollectParents(const std::string& image, const std::string& name,
                    std::set<std::string>* directories) {
  directories->insert(image);
  for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
    directories->insert(os::JoinPath(image, name.substr(0, at)));
  }
}

// Beside `path`, until it is renamed over it.
std::string Temporary(const std::string& path) {
  return os::JoinPath(os::ParentPath(path), "." + os::BaseName(path) + ".weightcast");
}

// Gives the staged content a second name, then moves that over the old file.
Status Install(os::Fs& fs, const std::string& image, const catalog::SideFileRow& row) {
  const std::string path = os::JoinPath(image, row.name);
  const std::string staged = StagedPath(image, row.sha256);
  if (!WC_TRY(IsSideFile(fs, staged, row))) {
    return Error{Code::kDataLoss, path + ": expected SHA-256 " + row.sha256.hex() +
                                      ", which is neither there nor staged"};
  }
  const std::string linked = Temporary(path);
  WC_TRY(fs.MakeDirectories(os::ParentPath(path)));
  if (WC_TRY(fs.Exists(linked))) WC_TRY(fs.Remove(linked));
  WC_TRY(fs.Link(staged, linked));
  return fs.Rename(linked, path);
}

}  // namespace

Status CheckSideNames(std::span<const catalog::SideFileRow> rows) {
  std::vector<std::string> bad;
  std::set<std::string_view> seen;
  for (const catalog::SideFileRow& row : rows) {
    if (!SafeName(row.name) || !seen.insert(row.name).second || row.bytes < 0 ||
        row.bytes > kSideFileBytesMax) {
      bad.push_back(Quoted(row.name));
    }
  }
  if (bad.empty()) return Ok();
  return Error{Code::kInvalidData, "not acceptable as side files: " + JoinNames(bad)};
}

Result<bool> IsSideFile(os::Fs& fs, const std::string& path, const catalog::SideFileRow& row) {
  const Result<os::Stat> stat = fs.StatPath(path);
  if (!stat.ok() && stat.error().code != Code::kNotFound) return stat.error();
  if (!stat.ok() || stat->is_directory || stat->size != row.bytes) return false;
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  const Status same =
      Stream(row, [&](int64_t at, MutableByteSpan out) { return file->Read(at, out); }, {});
  if (!same.ok() && same.error().code != Code::kDataLoss) return same.error();
  return same.ok();
}

Status BringSideFile(os::Fs& fs, const catalog::SideFileRow& row, const SideSources& sources,
                     const std::string& path, bool durable) {
  std::vector<std::string> answers;
  for (const std::string& directory : sources.directories) {
    const Status copied = CopyFromDirectory(fs, row, directory, path, durable);
    if (copied.ok()) return Ok();
    if (copied.error().code == Code::kResourceExhausted) return copied;
    answers.push_back(copied.error().message);
  }
  Code code = Code::kNotFound;
  for (const std::string& url : sources.stores) {
    const Status copied = CopyFromStore(fs, row, url, sources, path, durable).With(url);
    if (copied.ok()) {
      sources.from_store(row.bytes);
      return Ok();
    }
    if (copied.error().code == Code::kResourceExhausted) return copied;
    code = copied.error().code;
    answers.push_back(copied.error().message);
  }
  return Error{code, "side file " + row.name + ": " + JoinNames(answers)};
}

Status MendSideFiles(os::Fs& fs, const std::string& image, const Manifest& manifest,
                     const SideSources& sources, bool durable) {
  std::vector<std::string> other;
  for (const catalog::SideFileRow& row : manifest.side_files) {
    const std::string path = os::JoinPath(image, row.name);
    if (WC_TRY(fs.Exists(path))) {
      if (!WC_TRY(IsSideFile(fs, path, row))) other.push_back(row.name);
      continue;
    }
    const std::string parent = os::ParentPath(path);
    const std::string brought = Temporary(path);
    WC_TRY(fs.MakeDirectories(parent));
    WC_TRY(BringSideFile(fs, row, sources, brought, durable));
    WC_TRY(fs.Rename(brought, path));
    if (durable) WC_TRY(fs.SyncDirectory(parent));
    Log(LogLevel::kWarning, "a side file was gone and is back", {{"path", path}});
  }
  if (other.empty()) return Ok();
  return Error{Code::kDataLoss, image + ": not what version " + std::to_string(manifest.number) +
                                    " put there: " + JoinNames(other) +
                                    "; remove them, and the next pull brings them back"};
}

Status StageSideFiles(os::Fs& fs, const std::string& image, const Manifest& from,
                      const Manifest& to, const SideSources& sources, bool durable) {
  for (const catalog::SideFileRow& row : Missing(to, from)) {
    const std::string staged = StagedPath(image, row.sha256);
    if (WC_TRY(IsSideFile(fs, staged, row))) continue;
    const std::string path = os::JoinPath(image, row.name);
    if (!WC_TRY(IsSideFile(fs, path, row))) {
      return Error{Code::kDataLoss,
                   path + ": is not what the manifest says (SHA-256 " + row.sha256.hex() + ")"};
    }
    WC_TRY(fs.RemoveTree(staged));
    WC_TRY(fs.Link(path, staged));
  }
  for (const catalog::SideFileRow& row : Missing(from, to)) {
    const std::string staged = StagedPath(image, row.sha256);
    if (WC_TRY(IsSideFile(fs, staged, row))) {
      // Whoever brought it may have died before the sync.
      const auto file = WC_TRY(fs.OpenFile(staged, os::Open::kRead));
      if (durable) WC_TRY(file->Sync());
      continue;
    }
    WC_TRY(fs.RemoveTree(staged));  // it may be another name of a file in place
    WC_TRY(BringSideFile(fs, row, sources, staged, durable));
  }
  return Ok();
}

Result<bool> SideFilesStaged(os::Fs& fs, const std::string& image, const Manifest& from,
                             const Manifest& to) {
  for (const catalog::SideFileRow& row : Missing(from, to)) {
    if (!WC_TRY(IsSideFile(fs, StagedPath(image, row.sha256), row))) return false;
  }
  return true;
}

bool SideNamesDiffer(const Manifest& from, const Manifest& to) {
  return !std::ranges::equal(from.side_files, to.side_files, {}, &catalog::SideFileRow::name,
                             &catalog::SideFileRow::name);
}

Status InstallSideFiles(os::Fs& fs, const std::string& image, const Manifest& from,
                        const Manifest& to, bool durable) {
  std::set<std::string> directories;  // of all that differs: an earlier try may have died unsynced
  for (const catalog::SideFileRow& row : Missing(from, to)) {
    CollectParents(image, row.name, &directories);
    if (WC_TRY(IsSideFile(fs, os::JoinPath(image, row.name), row))) continue;
    WC_TRY(Install(fs, image, row));
  }
  for (const catalog::SideFileRow& row : Missing(to, from)) {
    CollectParents(image, row.name, &directories);
    const bool stays = std::ranges::any_of(
        to.side_files, [&](const catalog::SideFileRow& other) { return other.name == row.name; });
    const std::string path = os::JoinPath(image, row.name);
    if (!stays && WC_TRY(fs.Exists(path))) WC_TRY(fs.Remove(path));
  }
  if (!durable && !SideNamesDiffer(from, to)) return Ok();
  for (const std::string& directory : directories) WC_TRY(fs.SyncDirectory(directory));
  return Ok();
}

}  // namespace weightcast::agent
