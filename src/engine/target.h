// A target: the places in live memory where one engine worker holds its share of the canonical
// tensors, as its own loader laid them. An image's journal is written there in O(changes), and what
// is there is digested again, read from that memory and nothing else.
//
// docs/design/placement.md says how places are found and when they may be believed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/journal.h"
#include "base/bytes.h"
#include "base/status.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::engine {

// Units of a canonical tensor that lie together: unit (i, j) of `box` (steps 1) is at
// address + (i * row_stride + j * col_stride) * unit bytes. Strides may be anything, 0 and negative
// ones excepted, that keeps units apart.
struct Block {
  int32_t tensor = 0;  // of the inventory
  tensor::Box box;
  uint8_t* address = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

// What a worker holds of one tensor. Equal spans, equal units.
struct Holding {
  tensor::Partial partial;
  Sha256Digest span;  // of the boxes, and of nothing else
};

// How far live memory is from where a journal begins.
struct Strangers {
  int32_t tensor = 0;
  int64_t units = 0;  // that are not what the journal's old version has
};

class Target {
 public:
  // Errors: kInvalidData: a box outside its tensor or with steps, two boxes of one tensor that
  // share a unit, strides that are not positive. The memory outlives the target, and is the
  // caller's to keep in place.
  static Result<Target> Make(std::shared_ptr<const tensor::Inventory> inventory,
                             std::vector<Block> blocks);

  const tensor::Inventory& inventory() const { return *inventory_; }
  std::span<const Block> BlocksOf(int32_t tensor) const;
  // Units of a tensor that have a place here.
  int64_t UnitsOf(int32_t tensor) const;

  // Tensors whose live units are not those that the journal changes from (`undo`: to), for
  // `tensors`, ascending. Nothing is written. Threads: 0: all CPUs.
  Result<std::vector<Strangers>> Compare(const agent::Journal& journal, bool undo,
                                         std::span<const int32_t> tensors, int threads) const;
  // Writes the journal's new units (`undo`: old ones) of `tensors` to their places; gives how many
  // there were. O(changes). Errors: kDataLoss (malformed positions: Compare finds them, writing
  // nothing).
  Result<int64_t> Write(const agent::Journal& journal, bool undo, std::span<const int32_t> tensors,
                        int threads);

  // What live memory holds of each of `tensors`.
  Result<std::vector<Holding>> DigestLive(std::span<const int32_t> tensors, int threads) const;
  // What it should hold: the same units of a tensor's canonical bytes.
  tensor::Partial DigestCanonical(int32_t tensor, ByteSpan canonical) const;
  Sha256Digest SpanOf(int32_t tensor) const;

 private:
  class Cursor;
  // Of each entry, how many of its units that have a place satisfy visit(address, the journal's old
  // or new unit).
  template <typename Visit>
  Result<std::vector<int64_t>> CountUnits(const agent::Journal& journal,
                                          std::span<const agent::JournalEntry* const> entries,
                                          bool new_units, int threads, const Visit& visit) const;
  Target(std::shared_ptr<const tensor::Inventory> inventory, std::vector<Block> blocks);

  std::shared_ptr<const tensor::Inventory> inventory_;
  std::vector<Block> blocks_;   // by (tensor, box.row, box.col)
  std::vector<size_t> begins_;  // of each tensor in blocks_, and the end
};

}  // namespace weightcast::engine
