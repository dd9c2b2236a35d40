// The disk of a simulated machine: files and directories as the running process sees them, and what
// of that a loss of power may take back. The model is that of sim.h; no locks, no crash points
// here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/units.h"
#include "os/fs.h"

namespace weightcast::os {

inline constexpr int64_t kSimPage = 4096;

// Bytes at an address that never changes, so that mappings see later writes. Untouched pages are
// zeros and cost nothing.
class StableBytes {
 public:
  static constexpr int64_t kSizeMax = kGiB;

  StableBytes();
  ~StableBytes();
  StableBytes(const StableBytes&) = delete;
  StableBytes& operator=(const StableBytes&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_;
};

struct SimInode {
  struct HeldLock {
    const void* holder;
    Lock kind;
    int64_t life;  // of the process that took it; locks of older lives are gone
  };

  uint64_t number = 0;
  bool is_directory = false;
  int64_t modified_unix_ms = 0;
  std::map<std::string, std::shared_ptr<SimInode>> entries;  // of a directory

  std::unique_ptr<StableBytes> bytes;  // of a file; zeros beyond `size`
  int64_t size = 0;
  int64_t synced_size = 0;
  std::map<int64_t, Bytes> synced_pages;  // of pages written since the last sync: what the disk has
  std::vector<bool> reserved;             // pages that take space
  std::vector<HeldLock> locks;
};
using SimInodePtr = std::shared_ptr<SimInode>;

class SimDisk {
 public:
  // One directory and the name in it that a path means; `inode` is null if nothing is there.
  struct Place {
    SimInodePtr directory;
    std::string name;
    SimInodePtr inode;
  };

  SimDisk();
  // A disk of its own with equal content. `file` is an inode of `other` or null, and becomes its
  // twin: for who holds one beside the disk.
  SimDisk(const SimDisk& other, SimInodePtr* file);
  SimDisk(SimDisk&&) = default;
  SimDisk& operator=(SimDisk&&) = default;

  // An errno value, or 0 and the inode or the place. A place has a name: "/" has none (EINVAL).
  int Find(const std::string& path, SimInodePtr* out) const;
  int FindPlace(const std::string& path, Place* out) const;

  SimInodePtr NewInode(bool is_directory);

  // Binds names to inodes (null: unbinds), as one operation that survives or not as a whole.
  void Bind(const std::vector<std::pair<Place, SimInodePtr>>& changes);
  void SyncNames(const SimInodePtr& directory);

  static void Write(SimInode& file, int64_t offset, ByteSpan bytes);
  static void Resize(SimInode& file, int64_t size);
  static void Reserve(SimInode& file, int64_t begin, int64_t end);
  static void Sync(SimInode& file);

  // Bytes of pages that take space, below the root.
  int64_t Used() const;
  // Space that a write of [begin, end) would take in addition.
  static int64_t Needed(const SimInode& file, int64_t begin, int64_t end);

  void SyncAll();
  // Everything that was not synced survives or not, by `random`.
  void LosePower(std::mt19937_64& random);

 private:
  struct Change {
    SimInodePtr directory;
    std::string name;
    SimInodePtr before;
  };
  using Operation = std::vector<Change>;

  std::vector<SimInode*> Reachable() const;
  void LoseNames(std::mt19937_64& random);
  static void LoseData(SimInode& file, std::mt19937_64& random);
  static void Rebind(SimInode& directory, const std::string& name, const SimInodePtr& inode);

  SimInodePtr root_;
  uint64_t next_number_ = 1;
  std::vector<Operation> unsynced_;  // in the order in which they happened
};

}  // namespace weightcast::os
