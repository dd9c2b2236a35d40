// Files, through one seam. The real one (fs_real.h) and the simulator's (sim.h) answer alike;
// nothing else in the house calls the kernel for files.
//
// Paths are absolute or relative to the working directory. Every method may be called from any
// thread. Errors: kNotFound, kAlreadyExists (also: a directory is not empty), kResourceExhausted
// (no space, quota), kUnavailable (read-only, permission, I/O), kDeadlineExceeded (locks); the
// message is "PATH: <operation>: <reason>".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace weightcast::os {

// A shared mapping of a whole file. Valid until it is destroyed, even if the file is renamed or
// removed; the file must not shrink meanwhile (whoever maps holds a lock that forbids it).
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual ByteSpan bytes() const = 0;
  // Lets `write` change bytes [offset, offset + length) in place. One call is one mutation for the
  // crash simulator: after a crash any subset of its 4 KiB pages may have reached the file.
  //   Requires: mapped writable; the range lies inside the file.
  virtual void Update(int64_t offset, int64_t length,
                      const std::function<void(MutableByteSpan)>& write) = 0;
  // Starts reading [offset, offset + length) ahead; a hint.
  virtual void WillNeed(int64_t offset, int64_t length) = 0;
  // Drops clean pages of the range from this process's resident set; a hint.
  virtual void DontNeed(int64_t offset, int64_t length) = 0;
};

enum class Lock : uint8_t { kShared, kExclusive };

class File {
 public:
  virtual ~File() = default;  // closes; releases its lock
  virtual const std::string& path() const = 0;
  virtual Result<int64_t> Size() = 0;
  // Fills `out` from `offset`. Errors: kDataLoss if the file ends before.
  virtual Status Read(int64_t offset, MutableByteSpan out) = 0;
  virtual Status Write(int64_t offset, ByteSpan bytes) = 0;
  // Sets the size and reserves the space, so that later writes, also through a mapping, cannot fail
  // for lack of it. Growing reads as zeros.
  virtual Status Allocate(int64_t size) = 0;
  // Sets the size without reserving.
  virtual Status Truncate(int64_t size) = 0;
  // Data and size are durable when it returns.
  virtual Status Sync() = 0;
  virtual Result<std::unique_ptr<Mapping>> Map(bool writable) = 0;
  // Whole-file advisory lock (flock), held until the file is closed or Unlock(). Waits until
  // `timeout`; zero tries once. Two opens of one file conflict, in one process too. Changing the
  // kind of a lock is not atomic: a change that fails leaves no lock. Errors: kDeadlineExceeded.
  virtual Status LockFor(Lock lock, Duration timeout) = 0;
  virtual Status Unlock() = 0;
};

enum class Open : uint8_t {
  kRead,       // must exist
  kReadWrite,  // must exist
  kCreate,     // opens for writing, creates if missing
  kCreateNew,  // kAlreadyExists if there
};

struct Stat {
  bool is_directory = false;
  int64_t size = 0;
  uint64_t inode = 0;
  int64_t modified_unix_ms = 0;  // for sweeping by age only
};

enum class FsKind : uint8_t {
  kDisk,
  kMemory,   // tmpfs, ramfs
  kNetwork,  // NFS, SMB, 9p, FUSE and the like: locks and mappings are not to be trusted there
};

class Fs {
 public:
  virtual ~Fs() = default;
  virtual Result<std::unique_ptr<File>> OpenFile(const std::string& path, Open mode) = 0;
  virtual Result<Stat> StatPath(const std::string& path) = 0;
  // Names (not paths) in a directory, sorted by bytes, without "." and "..".
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;
  // With its parents; fine if it exists as a directory.
  virtual Status MakeDirectories(const std::string& path) = 0;
  // Atomic; replaces a file (or an empty directory) at `to`. Nothing happens if both are names of
  // one file.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two paths atomically (files or directories); both must exist.
  virtual Status Exchange(const std::string& a, const std::string& b) = 0;
  // A second name for a file. kAlreadyExists if `to` is there: the create-only publish.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;  // a file or an empty directory
  // The names that changed in this directory are durable when it returns.
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual Result<int64_t> FreeBytes(const std::string& path) = 0;
  virtual Result<FsKind> Kind(const std::string& path) = 0;
  // The same path from the root of the file system ("." and ".." are left as they are).
  virtual Result<std::string> Absolute(const std::string& path) = 0;

  // Composed of the above.
  Result<bool> Exists(const std::string& path);
  // Reads a whole file of at most `bytes_max`. Errors: kInvalidData if larger.
  Result<Bytes> ReadAll(const std::string& path, int64_t bytes_max);
  // Old content or new content, whatever dies when: writes a temporary sibling (".NAME.tmp"; a left
  // one is overwritten), syncs it, renames it over `path`, syncs the directory. Without `durable`
  // the syncs are left out: then the promise holds for the death of the process only.
  //   Requires: one writer per path at a time.
  Status WriteAtomically(const std::string& path, ByteSpan bytes, bool durable);
  // A directory with all below it (or a file); fine if missing.
  Status RemoveTree(const std::string& path);
  // Makes all names on the way to `directory` and in it durable: for whoever created directories,
  // or found some that a dead process may have left unsynced. Ancestors that may not be opened are
  // left alone: this process did not make them.
  Status SyncPath(const std::string& directory);
};

// "a/b" + "c" -> "a/b/c".
std::string JoinPath(std::string_view directory, std::string_view name);
std::string ParentPath(std::string_view path);  // "a/b" -> "a"; "a" -> "."; "/a", "/" -> "/"
std::string BaseName(std::string_view path);    // "a/b" -> "b"; "/" -> ""

}  // namespace weightcast::os
