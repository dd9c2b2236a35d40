#include "store/directory_store.h"

#include "base/text.h"
#include "store/errors.h"

namespace weightcast::store {
namespace {

bool Is(const Status& status, Code code) { return !status.ok() && status.error().code == code; }

}  // namespace

class DirectoryStore::FileUpload final : public Upload {
 public:
  FileUpload(DirectoryStore& store, std::unique_ptr<os::File> file, std::string_view key)
      : store_(store), file_(std::move(file)), key_(key) {}
  // Committed or not, the temporary name goes; if that fails, a sweep will find it.
  ~FileUpload() override { static_cast<void>(store_.world_.fs.Remove(file_->path())); }

  Status Append(ByteSpan bytes) override {
    whole_ = false;
    WC_TRY(file_->Write(size_, bytes));
    whole_ = true;
    size_ += static_cast<int64_t>(bytes.size());
    return Ok();
  }
  Status Commit() override {
    if (!whole_) {
      return Error{Code::kInvalidArgument, "object " + key_ + ": committed after a failed append"};
    }
    WC_TRY(file_->Sync());
    return store_.Publish(file_->path(), key_);
  }

 private:
  DirectoryStore& store_;
  const std::unique_ptr<os::File> file_;
  const std::string key_;
  int64_t size_ = 0;
  bool whole_ = true;
};

Result<std::unique_ptr<DirectoryStore>> DirectoryStore::Open(os::World& world,
                                                             const std::string& root,
                                                             DirectoryStoreOptions options) {
  const std::string absolute = WC_TRY(world.fs.Absolute(root));
  return std::unique_ptr<DirectoryStore>(new DirectoryStore(world, absolute, options));
}

Status DirectoryStore::CheckRoot() {
  if (WC_TRY(world_.fs.Exists(root_))) return Ok();
  return Error{Code::kUnavailable, url() + ": there is no such directory"};
}

Status DirectoryStore::Put(std::string_view key, ByteSpan bytes) {
  WC_TRY(CheckKey(key));
  // Nothing is written for a name that is taken, but it is made durable, as in Publish.
  if (Size(key).ok()) {
    WC_TRY(SyncUpFrom(os::ParentPath(PathOf(key))));
    return ObjectExists(url(), key);
  }
  const auto upload = WC_TRY(StartUpload(key, static_cast<int64_t>(bytes.size())));
  WC_TRY(upload->Append(bytes));
  return upload->Commit();
}

Result<std::unique_ptr<Upload>> DirectoryStore::StartUpload(std::string_view key, int64_t) {
  WC_TRY(CheckKey(key));
  // A writer has better things to do than to fail because of old rubbish.
  if (!swept_.exchange(true)) static_cast<void>(Sweep());
  WC_TRY(world_.fs.MakeDirectories(TemporaryDirectory()));
  std::array<uint8_t, 16> name;
  world_.random.Fill(name);
  auto file = WC_TRY(
      world_.fs.OpenFile(os::JoinPath(TemporaryDirectory(), Hex(name)), os::Open::kCreateNew));
  return std::unique_ptr<Upload>(std::make_unique<FileUpload>(*this, std::move(file), key));
}

Status DirectoryStore::LinkOnce(const std::string& temporary, std::string_view key) {
  const std::string path = PathOf(key);
  const Status made = world_.fs.MakeDirectories(os::ParentPath(path));
  if (Is(made, Code::kAlreadyExists)) {
    return Error{Code::kInvalidArgument,
                 url() + ": object " + std::string(key) + ": a part of its key is an object"};
  }
  WC_TRY(made);
  return world_.fs.Link(temporary, path);
}

Status DirectoryStore::Publish(const std::string& temporary, std::string_view key) {
  const std::string path = PathOf(key);
  Status linked = LinkOnce(temporary, key);
  // A Delete elsewhere may take a directory that is still empty between making it and linking into
  // it, but not for ever.
  for (int again = 0; again < 100 && Is(linked, Code::kNotFound); ++again) {
    if (!WC_TRY(world_.fs.Exists(temporary))) {
      return Error{Code::kUnavailable, url() + ": object " + std::string(key) +
                                           ": its temporary file was swept as stale"};
    }
    linked = LinkOnce(temporary, key);
  }
  const bool taken = Is(linked, Code::kAlreadyExists);
  if (!linked.ok() && !taken) return linked;
  if (taken && WC_TRY(world_.fs.StatPath(path)).is_directory) {
    return Error{Code::kInvalidArgument,
                 url() + ": object " + std::string(key) + ": other keys continue this one"};
  }
  // Also if the name was taken: its writer may have died before this, and the caller may accept
  // "already there" as done.
  WC_TRY(SyncUpFrom(os::ParentPath(path)));
  return taken ? ObjectExists(url(), key) : Ok();
}

Status DirectoryStore::SyncUpFrom(std::string path) {
  for (; path != root_; path = os::ParentPath(path)) {
    const Status synced = world_.fs.SyncDirectory(path);
    // Gone: someone deleted the object and with it the empty directory.
    if (!Is(synced, Code::kNotFound)) WC_TRY(synced);
  }
  // What lies above the root changes at most once.
  if (root_synced_.load()) return world_.fs.SyncDirectory(root_);
  WC_TRY(world_.fs.SyncPath(root_));
  root_synced_.store(true);
  return Ok();
}

Result<int64_t> DirectoryStore::Size(std::string_view key) {
  WC_TRY(CheckKey(key));
  const Result<os::Stat> stat = world_.fs.StatPath(PathOf(key));
  if (stat.ok() && !stat->is_directory) return stat->size;
  if (!stat.ok() && stat.error().code != Code::kNotFound) return stat.error();
  WC_TRY(CheckRoot());
  return NoObject(url(), key);
}

Status DirectoryStore::Get(std::string_view key, int64_t offset, MutableByteSpan out) {
  const int64_t size = WC_TRY(Size(key));
  WC_TRY(CheckRange(url(), key, size, offset, out.size()));
  const Result<std::unique_ptr<os::File>> file = world_.fs.OpenFile(PathOf(key), os::Open::kRead);
  if (!file.ok() && file.error().code == Code::kNotFound) return NoObject(url(), key);
  if (!file.ok()) return file.error();
  return (*file)->Read(offset, out);
}

Status DirectoryStore::List(std::string_view prefix,
                            const std::function<Status(const ObjectInfo&)>& visit) {
  WC_TRY(CheckRoot());
  const size_t slash = prefix.rfind('/');
  const std::string_view top = slash == std::string_view::npos ? "" : prefix.substr(0, slash);
  if (slash != std::string_view::npos && !CheckKey(top).ok()) return Ok();  // no key is like that
  std::vector<std::string> pending = {std::string(top)};
  while (!pending.empty()) {
    const std::string directory = std::move(pending.back());
    pending.pop_back();
    const auto names = world_.fs.List(directory.empty() ? root_ : PathOf(directory));
    if (!names.ok() && names.error().code == Code::kNotFound) continue;  // deleted meanwhile
    if (!names.ok()) return names.error();
    for (const std::string& name : *names) {
      const std::string key = os::JoinPath(directory, name);
      const std::string_view compared = std::string_view(key).substr(0, prefix.size());
      if (!prefix.starts_with(compared) || !CheckKey(key).ok()) continue;
      const Result<os::Stat> stat = world_.fs.StatPath(PathOf(key));
      if (!stat.ok() && stat.error().code == Code::kNotFound) continue;
      if (!stat.ok()) return stat.error();
      if (stat->is_directory) {
        pending.push_back(key);
      } else if (key.starts_with(prefix)) {
        WC_TRY(visit({key, stat->size, stat->modified_unix_ms}));
      }
    }
  }
  return Ok();
}

Status DirectoryStore::Delete(std::string_view key) {
  WC_TRY(CheckKey(key));
  std::string directory = os::ParentPath(PathOf(key));
  const Result<int64_t> size = Size(key);
  if (size.ok()) {
    const Status removed = world_.fs.Remove(PathOf(key));
    if (!Is(removed, Code::kNotFound)) WC_TRY(removed);
    // Directories that became empty go too; the first that is not empty ends it.
    while (directory != root_ && world_.fs.Remove(directory).ok()) {
      directory = os::ParentPath(directory);
    }
  } else if (size.error().code != Code::kNotFound) {
    return size.error();
  }
  // Also if it was gone already: whoever removed it may have died before this.
  Status synced = world_.fs.SyncDirectory(directory);
  while (Is(synced, Code::kNotFound) && directory != root_) {
    directory = os::ParentPath(directory);
    synced = world_.fs.SyncDirectory(directory);
  }
  return synced;
}

Status DirectoryStore::Sweep() {
  const auto names = world_.fs.List(TemporaryDirectory());
  if (!names.ok() && names.error().code == Code::kNotFound) return Ok();
  if (!names.ok()) return names.error();
  const int64_t stale_before = world_.clock.UnixMillis() - options_.stale_after / milliseconds(1);
  for (const std::string& name : *names) {
    const std::string path = os::JoinPath(TemporaryDirectory(), name);
    const Result<os::Stat> stat = world_.fs.StatPath(path);
    if (stat.ok() && stat->modified_unix_ms >= stale_before) continue;
    const Status removed = stat.ok() ? world_.fs.Remove(path) : Status(stat.error());
    if (!Is(removed, Code::kNotFound)) WC_TRY(removed);
  }
  return Ok();
}

}  // namespace weightcast::store
