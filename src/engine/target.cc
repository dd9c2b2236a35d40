#include "engine/target.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "delta/method.h"
#include "delta/sparse.h"
#include "layout/cells.h"
#include "layout/plan.h"

namespace weightcast::engine {
namespace {

using tensor::Box;

// Of a block, digested by one thread at a time: what it gathers fits a core's cache.
constexpr int64_t kBandUnits = int64_t{1} << 18;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

bool HasUnit(const Box& box, int64_t row, int64_t col) {
  return row >= box.row && row < box.row + box.rows && col >= box.col && col < box.col + box.cols;
}

// Both sorted, of one tensor.
Status CheckApart(const tensor::TensorSpec& spec, std::span<const Block> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = i + 1; j < blocks.size(); ++j) {
      if (blocks[j].box.row >= blocks[i].box.row + blocks[i].box.rows) break;
      if (!layout::Overlap(blocks[i].box, blocks[j].box)) continue;
      return Error{Code::kInvalidData, spec.name +
                                           ": placed twice: " + tensor::BoxText(blocks[i].box) +
                                           " and " + tensor::BoxText(blocks[j].box)};
    }
  }
  return Ok();
}

Status CheckBlock(const tensor::Inventory& inventory, const Block& block) {
  if (block.tensor < 0 || Size(block.tensor) >= inventory.size()) {
    return Error{Code::kInvalidData, "no tensor " + std::to_string(block.tensor)};
  }
  const tensor::TensorSpec& spec = inventory[Size(block.tensor)];
  const Box& box = block.box;
  const bool fits = tensor::Inside(box, spec.matrix()) && box.row_step == 1 && box.col_step == 1 &&
                    box.units() > 0;
  if (fits && block.address != nullptr && block.row_stride > 0 && block.col_stride > 0) return Ok();
  return Error{Code::kInvalidData, spec.name + ": " + tensor::BoxText(box) + " with strides " +
                                       std::to_string(block.row_stride) + " and " +
                                       std::to_string(block.col_stride) +
                                       " is no place for units of " + tensor::SpecText(spec)};
}

// Rows of a block, cut so that they are worth a thread's while.
struct Band {
  const Block* block;
  Box box;
  uint8_t* address;
};

void CutIntoBands(const Block& block, int unit_bytes, std::vector<Band>* bands) {
  const int64_t rows = std::max<int64_t>(1, kBandUnits / block.box.cols);
  for (int64_t row = 0; row < block.box.rows; row += rows) {
    Band band{&block, block.box, block.address + row * block.row_stride * unit_bytes};
    band.box.row += row;
    band.box.rows = std::min(rows, block.box.rows - row);
    bands->push_back(band);
  }
}

// The band's units, packed: where they lie, if they lie together.
template <typename U>
ByteSpan Packed(const Band& band, Bytes* buffer) {
  const auto& [block, box, address] = band;
  const auto bytes = Size(box.units()) * sizeof(U);
  if (block->col_stride == 1 && (block->row_stride == box.cols || box.rows == 1)) {
    return {address, bytes};
  }
  buffer->resize(bytes);
  uint8_t* to = buffer->data();
  for (int64_t row = 0; row < box.rows; ++row) {
    const uint8_t* from = address + row * block->row_stride * static_cast<int64_t>(sizeof(U));
    if (block->col_stride == 1) {
      std::memcpy(to, from, Size(box.cols) * sizeof(U));
      to += Size(box.cols) * sizeof(U);
      continue;
    }
    for (int64_t col = 0; col < box.cols; ++col, to += sizeof(U)) {
      std::memcpy(to, from + col * block->col_stride * static_cast<int64_t>(sizeof(U)), sizeof(U));
    }
  }
  return *buffer;
}

}  // namespace

// Finds the places of ascending units of one tensor.
class Target::Cursor {
 public:
  Cursor(std::span<const Block> blocks, const tensor::Matrix& matrix)
      : blocks_(blocks), cols_(matrix.cols), unit_bytes_(matrix.unit_bytes) {}

  // Null if the unit has no place here. `unit`: its number in the tensor.
  uint8_t* Find(int64_t unit) {
    if (unit >= begin_ && unit < end_) return run_ + (unit - begin_) * step_;
    return Seek(unit);
  }

 private:
  uint8_t* Seek(int64_t unit) {
    const int64_t row = unit / cols_;
    const int64_t col = unit % cols_;
    const Block* block = current_;
    if (block == nullptr || !HasUnit(block->box, row, col)) {
      const auto found =
          std::ranges::find_if(blocks_, [&](const Block& b) { return HasUnit(b.box, row, col); });
      if (found == blocks_.end()) return nullptr;
      block = &*found;
    }
    current_ = block;
    const Box& box = block->box;
    step_ = block->col_stride * unit_bytes_;
    if (box.cols == cols_ && block->row_stride == cols_ * block->col_stride) {  // all one run
      begin_ = box.row * cols_;
      end_ = begin_ + box.units();
      run_ = block->address;
    } else {
      begin_ = row * cols_ + box.col;
      end_ = begin_ + box.cols;
      run_ = block->address + (row - box.row) * block->row_stride * unit_bytes_;
    }
    return run_ + (unit - begin_) * step_;
  }

  const std::span<const Block> blocks_;
  const int64_t cols_;
  const int64_t unit_bytes_;
  const Block* current_ = nullptr;
  int64_t begin_ = 0;  // units [begin_, end_) lie step_ bytes apart from run_ on
  int64_t end_ = 0;
  uint8_t* run_ = nullptr;
  int64_t step_ = 0;
};

namespace {

// A journal's cells of some tensors.
std::vector<const agent::JournalEntry*> EntriesOf(const agent::Journal& journal,
                                                  std::span<const int32_t> tensors) {
  std::vector<const agent::JournalEntry*> entries;
  for (const agent::JournalEntry& entry : journal.entries()) {
    if (std::ranges::binary_search(tensors, entry.tensor)) entries.push_back(&entry);
  }
  return entries;
}

// Positions in its cell that an entry changes, in `scratch`.
Result<const std::vector<uint32_t>*> PositionsOf(const agent::Journal& journal,
                                                 const agent::JournalEntry& entry,
                                                 const tensor::Inventory& inventory,
                                                 std::vector<uint32_t>* scratch) {
  const tensor::TensorSpec& spec = inventory[Size(entry.tensor)];
  const tensor::Matrix matrix = spec.matrix();
  const int64_t units = layout::RunOf(matrix, entry.cell).bytes / matrix.unit_bytes;
  if (entry.form == agent::JournalForm::kWhole) {
    scratch->resize(Size(units));
    std::iota(scratch->begin(), scratch->end(), 0U);
    return scratch;
  }
  const ByteSpan gaps = journal.UnitsOf(entry).gaps;
  if (delta::ReadGaps(gaps, Size(entry.changed), static_cast<uint64_t>(units), scratch)) {
    return scratch;
  }
  return Error{Code::kDataLoss, spec.name + " cell " + std::to_string(entry.cell) +
                                    ": the journal's positions do not fit the cell"};
}

}  // namespace

Result<Target> Target::Make(std::shared_ptr<const tensor::Inventory> inventory,
                            std::vector<Block> blocks) {
  for (const Block& block : blocks) WC_TRY(CheckBlock(*inventory, block));
  Target target(std::move(inventory), std::move(blocks));
  for (size_t t = 0; t < target.inventory_->size(); ++t) {
    WC_TRY(CheckApart((*target.inventory_)[t], target.BlocksOf(static_cast<int32_t>(t))));
  }
  return target;
}

Target::Target(std::shared_ptr<const tensor::Inventory> inventory, std::vector<Block> blocks)
    : inventory_(std::move(inventory)), blocks_(std::move(blocks)) {
  std::ranges::sort(blocks_, {},
                    [](const Block& b) { return std::tuple(b.tensor, b.box.row, b.box.col); });
  for (size_t t = 0; t <= inventory_->size(); ++t) {
    begins_.push_back(
        Size(std::ranges::lower_bound(blocks_, static_cast<int32_t>(t), {}, &Block::tensor) -
             blocks_.begin()));
  }
}

std::span<const Block> Target::BlocksOf(int32_t tensor) const {
  const size_t begin = begins_[Size(tensor)];
  return std::span(blocks_).subspan(begin, begins_[Size(tensor) + 1] - begin);
}

int64_t Target::UnitsOf(int32_t tensor) const {
  int64_t units = 0;
  for (const Block& block : BlocksOf(tensor)) units += block.box.units();
  return units;
}

template <typename Visit>
Result<std::vector<int64_t>> Target::CountUnits(const agent::Journal& journal,
                                                std::span<const agent::JournalEntry* const> entries,
                                                bool new_units, int threads,
                                                const Visit& visit) const {
  std::vector<std::vector<uint32_t>> scratch(Size(ThreadCount(threads)));
  std::vector<int64_t> counts(entries.size());
  WC_TRY(ParallelFor(entries.size(), ThreadCount(threads), [&](size_t item, int worker) -> Status {
    const agent::JournalEntry& entry = *entries[item];
    const std::vector<uint32_t>& positions =
        *WC_TRY(PositionsOf(journal, entry, *inventory_, &scratch[Size(worker)]));
    const tensor::Matrix matrix = (*inventory_)[Size(entry.tensor)].matrix();
    const auto units = journal.UnitsOf(entry);
    const ByteSpan given = new_units ? units.new_units : units.old_units;
    const int64_t first = layout::RunOf(matrix, entry.cell).offset / matrix.unit_bytes;
    Cursor cursor(BlocksOf(entry.tensor), matrix);
    delta::WithUnit(Size(matrix.unit_bytes), [&]<typename U>() {
      for (size_t i = 0; i < positions.size(); ++i) {
        uint8_t* at = cursor.Find(first + positions[i]);
        if (at != nullptr && visit(at, LoadLe<U>(&given[i * sizeof(U)]))) ++counts[item];
      }
    });
    return Ok();
  }));
  return counts;
}

Result<std::vector<Strangers>> Target::Compare(const agent::Journal& journal, bool undo,
                                               std::span<const int32_t> tensors,
                                               int threads) const {
  const auto entries = EntriesOf(journal, tensors);
  const auto differs = [](const uint8_t* at, auto unit) {
    return LoadLe<decltype(unit)>(at) != unit;
  };
  const auto counts = WC_TRY(CountUnits(journal, entries, /*new_units=*/undo, threads, differs));
  std::map<int32_t, int64_t> found;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (counts[i] > 0) found[entries[i]->tensor] += counts[i];
  }
  std::vector<Strangers> list;
  for (const auto& [tensor, units] : found) list.push_back({tensor, units});
  return list;
}

Result<int64_t> Target::Write(const agent::Journal& journal, bool undo,
                              std::span<const int32_t> tensors, int threads) {
  const auto entries = EntriesOf(journal, tensors);
  const auto store = [](uint8_t* at, auto unit) {
    StoreLe(at, unit);
    return true;
  };
  const auto counts = WC_TRY(CountUnits(journal, entries, /*new_units=*/!undo, threads, store));
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Result<std::vector<Holding>> Target::DigestLive(std::span<const int32_t> tensors,
                                                int threads) const {
  std::vector<Band> bands;
  std::vector<size_t> of;  // band to index in `tensors`
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int unit_bytes = (*inventory_)[Size(tensors[i])].matrix().unit_bytes;
    for (const Block& block : BlocksOf(tensors[i])) CutIntoBands(block, unit_bytes, &bands);
    of.resize(bands.size(), i);
  }
  std::vector<Holding> holdings(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) holdings[i].span = SpanOf(tensors[i]);
  std::vector<Bytes> buffers(Size(ThreadCount(threads)));
  Mutex mu;
  WC_TRY(ParallelFor(bands.size(), ThreadCount(threads), [&](size_t item, int worker) -> Status {
    const Band& band = bands[item];
    const tensor::Matrix matrix = (*inventory_)[Size(band.block->tensor)].matrix();
    const ByteSpan packed = delta::WithUnit(Size(matrix.unit_bytes), [&]<typename U>() {
      return Packed<U>(band, &buffers[Size(worker)]);
    });
    const tensor::TensorDigest digest = tensor::DigestBox(matrix, band.box, packed);
    MutexLock lock(mu);
    holdings[of[item]].partial += {digest, band.box.units()};
    return Ok();
  }));
  return holdings;
}

tensor::Partial Target::DigestCanonical(int32_t tensor, ByteSpan canonical) const {
  const tensor::Matrix matrix = (*inventory_)[Size(tensor)].matrix();
  tensor::Partial sum;
  std::vector<Band> bands;
  Bytes buffer;
  for (const Block& block : BlocksOf(tensor)) {
    bands.clear();
    CutIntoBands(block, matrix.unit_bytes, &bands);
    for (const Band& band : bands) {
      buffer.resize(Size(band.box.units() * matrix.unit_bytes));
      for (int64_t row = 0; row < band.box.rows; ++row) {
        const auto width = Size(band.box.cols * matrix.unit_bytes);
        const auto from =
            Size(((band.box.row + row) * matrix.cols + band.box.col) * matrix.unit_bytes);
        CopyBytes(canonical.subspan(from, width),
                  MutableByteSpan(buffer).subspan(Size(row) * width));
      }
      sum += {tensor::DigestBox(matrix, band.box, buffer), band.box.units()};
    }
  }
  return sum;
}

Sha256Digest Target::SpanOf(int32_t tensor) const {
  Bytes text;
  ByteWriter out(&text);
  Box open;  // grows while blocks follow each other
  const auto put = [&] {
    for (const int64_t n : {open.row, open.rows, open.col, open.cols}) out.Put(n);
  };
  for (const Block& block : BlocksOf(tensor)) {
    const Box& box = block.box;
    if (open.rows > 0 && box.col == open.col && box.cols == open.cols &&
        box.row == open.row + open.rows) {
      open.rows += box.rows;
      continue;
    }
    if (open.rows > 0) put();
    open = box;
  }
  if (open.rows > 0) put();
  return Sha256::Of(text);
}

}  // namespace weightcast::engine
