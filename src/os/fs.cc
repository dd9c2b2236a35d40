#include "os/fs.h"

namespace weightcast::os {
namespace {

Error TooLarge(const std::string& path, int64_t size, int64_t bytes_max) {
  return {Code::kInvalidData, path + ": has " + std::to_string(size) + " bytes, at most " +
                                  std::to_string(bytes_max) + " are accepted"};
}

}  // namespace

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  return path += name;
}

std::string ParentPath(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, slash == 0 ? 1 : slash));
}

std::string BaseName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

Result<bool> Fs::Exists(const std::string& path) {
  const Result<Stat> stat = StatPath(path);
  if (stat.ok()) return true;
  if (stat.error().code == Code::kNotFound) return false;
  return stat.error();
}

Result<Bytes> Fs::ReadAll(const std::string& path, int64_t bytes_max) {
  const auto file = WC_TRY(OpenFile(path, Open::kRead));
  const int64_t size = WC_TRY(file->Size());
  if (size > bytes_max) return TooLarge(path, size, bytes_max);
  Bytes bytes(static_cast<size_t>(size));
  WC_TRY(file->Read(0, bytes));
  return bytes;
}

Status Fs::WriteAtomically(const std::string& path, ByteSpan bytes, bool durable) {
  const std::string directory = ParentPath(path);
  const std::string temporary = JoinPath(directory, "." + BaseName(path) + ".tmp");
  const auto file = WC_TRY(OpenFile(temporary, Open::kCreate));
  WC_TRY(file->Truncate(0));
  WC_TRY(file->Write(0, bytes));
  if (durable) WC_TRY(file->Sync());
  WC_TRY(Rename(temporary, path));
  if (durable) WC_TRY(SyncDirectory(directory));
  return Ok();
}

Status Fs::RemoveTree(const std::string& path) {
  // Children are pushed above their directory, so that it is empty when its turn comes.
  std::vector<std::string> pending = {path};
  while (!pending.empty()) {
    const std::string next = pending.back();
    const Status removed = Remove(next);
    if (removed.ok() || removed.error().code == Code::kNotFound) {
      pending.pop_back();
      continue;
    }
    if (removed.error().code != Code::kAlreadyExists) return removed;
    const std::vector<std::string> names = WC_TRY(List(next));
    for (const std::string& name : names) pending.push_back(JoinPath(next, name));
  }
  return Ok();
}

Status Fs::SyncPath(const std::string& directory) {
  std::string path = WC_TRY(Absolute(directory));
  WC_TRY(SyncDirectory(path));
  while (path != "/") {
    path = ParentPath(path);
    if (!List(path).ok()) break;  // may not be opened; other failures must not pass as success
    WC_TRY(SyncDirectory(path));
  }
  return Ok();
}

}  // namespace weightcast::os
