// A store in a directory, local or shared (hard links and atomic creation are all it needs): the
// object of key "a/b" is the file ROOT/a/b. Unfinished objects lie in ROOT/.tmp under random names;
// what a dead writer left there is removed, once it is old enough, by a later writer or by Sweep().
//
// A Put writes and syncs a temporary file, links it to its name (which fails if the name is taken:
// create-only), and syncs every directory from there up to the root. docs/design/store.md
#pragma once

#include <atomic>
#include <string>

#include "os/world.h"
#include "store/store.h"

namespace weightcast::store {

struct DirectoryStoreOptions {
  // Unfinished objects untouched for so long belong to no living writer: a day is longer than any
  // upload pauses and short against the life of a run.
  Duration stale_after = std::chrono::hours(24);
};

class DirectoryStore final : public Store {
 public:
  // `root` need not exist: the first Put makes it. Until then reads answer kUnavailable, as for a
  // directory that is not mounted.
  static Result<std::unique_ptr<DirectoryStore>> Open(os::World& world, const std::string& root,
                                                      DirectoryStoreOptions options = {});

  std::string url() const override { return "file:" + root_; }
  Status Put(std::string_view key, ByteSpan bytes) override;
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override;
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override;
  Result<int64_t> Size(std::string_view key) override;
  Status List(std::string_view prefix,
              const std::function<Status(const ObjectInfo&)>& visit) override;
  Status Delete(std::string_view key) override;

  // Removes unfinished objects that are stale. Done by itself before the first upload.
  Status Sweep();

 private:
  class FileUpload;

  DirectoryStore(os::World& world, std::string root, DirectoryStoreOptions options)
      : world_(world), root_(std::move(root)), options_(options) {}

  std::string PathOf(std::string_view key) const { return os::JoinPath(root_, key); }
  std::string TemporaryDirectory() const { return os::JoinPath(root_, ".tmp"); }
  Status CheckRoot();
  // Gives the finished file `temporary` its name.
  Status Publish(const std::string& temporary, std::string_view key);
  Status LinkOnce(const std::string& temporary, std::string_view key);
  // Makes the names on the way from the root to `path` durable.
  Status SyncUpFrom(std::string path);

  os::World& world_;
  const std::string root_;
  const DirectoryStoreOptions options_;
  std::atomic<bool> swept_ = false;
  std::atomic<bool> root_synced_ = false;
};

}  // namespace weightcast::store
