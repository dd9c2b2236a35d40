// A journal: one step of an image in absolute units, forward (redo) and back (undo). Either may be
// written any number of times, onto any mixture of old and new. Format: docs/formats/journal.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "os/fs.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::agent {

// What a journal says of itself; must equal what the manifests at its two ends say.
struct JournalIdentity {
  int64_t from_generation = 0;
  int64_t to_generation = 0;
  VersionUid from_version;
  VersionUid to_version;
  Root from_root;
  Root to_root;
  LayoutSignature layout;

  bool operator==(const JournalIdentity&) const = default;
};

enum class JournalForm : uint8_t { kSparse = 1, kWhole = 2 };

// One changed cell.
struct JournalEntry {
  int32_t tensor = 0;
  JournalForm form = JournalForm::kSparse;
  int64_t cell = 0;
  int64_t offset = 0;  // of the body in the file
  int64_t bytes = 0;
  int64_t changed = 0;
  int64_t gap_bytes = 0;
  uint64_t xxh3 = 0;
  tensor::TensorDigest old_digest;  // of the whole cell, as a partial of its tensor
  tensor::TensorDigest new_digest;
};

// What one cell adds to a journal at most, if `changed` of its `units` differ.
int64_t JournalCellBytesMax(int64_t units, int unit_bytes, int64_t changed);
// What a journal has besides its cells.
inline constexpr int64_t kJournalFrameBytes = 200;

// How a cell changes: units that differ, ascending, and the digests of the whole cell before and
// after, as partials of its tensor.
struct CellChange {
  std::span<const uint32_t> changed;
  tensor::TensorDigest old_digest;
  tensor::TensorDigest new_digest;
};

// Finds that out, for one thread: the result lives until the next call.
class Comparison {
 public:
  CellChange Compare(const tensor::Matrix& matrix, const tensor::Box& box, ByteSpan base,
                     ByteSpan next);

 private:
  std::vector<uint64_t> mask_;
  std::vector<uint32_t> changed_;
};

class JournalWriter {
 public:
  // Replaces what lies at `path`. `bytes_max`: Add fails with kResourceExhausted beyond it.
  static Result<std::unique_ptr<JournalWriter>> Create(
      os::Fs& fs, const std::string& path, const JournalIdentity& identity,
      std::shared_ptr<const tensor::Inventory> inventory, int64_t bytes_max);

  // Records one cell; nothing if no unit changed. Each cell at most once, in any order, from any
  // thread, each with a `body` of its own to work in.
  Status Add(int32_t tensor, int64_t cell, ByteSpan base, ByteSpan next, const CellChange& change,
             Bytes* body);

  // Index and trailer. `durable`: the file is synced.
  Status Finish(bool durable);

  int64_t bytes() const { return at_; }               // after Finish: of the file
  int64_t changed_units() const { return changed_; }  // after the last Add

 private:
  JournalWriter(std::unique_ptr<os::File> file, const JournalIdentity& identity,
                std::shared_ptr<const tensor::Inventory> inventory, int64_t bytes_max);

  const std::unique_ptr<os::File> file_;
  const std::shared_ptr<const tensor::Inventory> inventory_;
  const int64_t bytes_max_;
  Bytes header_;
  Mutex mu_;
  std::vector<JournalEntry> entries_;  // guarded by mu_ while Add runs, as are the two below
  int64_t at_ = 0;
  int64_t changed_ = 0;
};

// A whole journal, read through a mapping.
class Journal {
 public:
  // Reads and checks all of it, bodies included. Errors: kNotFound; kDataLoss: says what does not
  // fit and where.
  static Result<Journal> Open(os::Fs& fs, const std::string& path,
                              std::shared_ptr<const tensor::Inventory> inventory);
  // The same for bytes that outlive the journal. Untrusted, for the parser's sake.
  static Result<Journal> Parse(ByteSpan file, std::shared_ptr<const tensor::Inventory> inventory);

  const JournalIdentity& identity() const { return identity_; }
  const std::vector<JournalEntry>& entries() const { return entries_; }  // by (tensor, cell)
  int64_t bytes() const { return static_cast<int64_t>(file_.size()); }

  // What an entry says, read where it lies: gaps (delta/sparse.h; none for a whole cell) and, for
  // each of them, the unit before and after.
  struct EntryUnits {
    ByteSpan gaps;
    ByteSpan old_units;
    ByteSpan new_units;
  };
  EntryUnits UnitsOf(const JournalEntry& entry) const;

  // Writes the new units of an entry into its cell, or the old ones (`undo`).
  // Errors: kDataLoss (a position beyond the cell; the units before it are written).
  //   Requires: cell.size() is that of the entry's cell.
  Status Write(const JournalEntry& entry, bool undo, MutableByteSpan cell) const;

 private:
  Status ParseAll();

  std::unique_ptr<os::Mapping> mapping_;
  ByteSpan file_;
  std::shared_ptr<const tensor::Inventory> inventory_;
  JournalIdentity identity_;
  std::vector<JournalEntry> entries_;
};

}  // namespace weightcast::agent
