#include "trainer/redo.h"

#include <vector>

#include "base/hash.h"
#include "base/task_pool.h"
#include "delta/sparse.h"

namespace weightcast::trainer {
namespace {

constexpr size_t kHashAt = 16;
constexpr size_t kHeadBytes = 24;

struct Record {
  uint32_t chunk;
  ByteSpan gaps;
  ByteSpan units;
  ByteSpan whole;
};

uint64_t HashOf(ByteSpan record) {
  const uint64_t head = Xxh3(record.first(kHashAt));
  return Xxh3(record.subspan(kHeadBytes)) ^ head;
}

Error Damaged(const std::string& what) { return {Code::kDataLoss, "redo: " + what}; }

Result<std::vector<Record>> Split(ByteSpan redo) {
  std::vector<Record> records;
  for (size_t at = 0; at < redo.size();) {
    const std::string where = "record at " + std::to_string(at);
    const ByteSpan rest = redo.subspan(at);
    if (rest.size() < kHeadBytes) return Damaged(where + " is cut");
    const auto gap_bytes = LoadLe<uint32_t>(rest.data() + 4);
    const auto unit_bytes = LoadLe<uint64_t>(rest.data() + 8);
    const uint64_t room = rest.size() - kHeadBytes;
    if (gap_bytes > room || unit_bytes > room - gap_bytes) return Damaged(where + " is cut");
    const size_t bytes = kHeadBytes + gap_bytes + static_cast<size_t>(unit_bytes);
    records.push_back({LoadLe<uint32_t>(rest.data()), rest.subspan(kHeadBytes, gap_bytes),
                       rest.subspan(kHeadBytes + gap_bytes, static_cast<size_t>(unit_bytes)),
                       rest.first(bytes)});
    at += bytes;
  }
  return records;
}

}  // namespace

void EncodeRedo(size_t chunk, int unit_bytes, ByteSpan next, std::span<const uint32_t> changed,
                Bytes* record) {
  record->clear();
  if (changed.empty()) return;
  record->resize(kHeadBytes);
  delta::AppendGaps(changed, record);
  size_t gap_bytes = record->size() - kHeadBytes;
  if (gap_bytes + changed.size() * static_cast<size_t>(unit_bytes) < next.size()) {
    delta::AppendUnits(next, changed, unit_bytes, record);
  } else {
    gap_bytes = 0;
    record->resize(kHeadBytes);
    record->insert(record->end(), next.begin(), next.end());
  }
  StoreLe(record->data(), static_cast<uint32_t>(chunk));
  StoreLe(record->data() + 4, static_cast<uint32_t>(gap_bytes));
  StoreLe(record->data() + 8, static_cast<uint64_t>(record->size() - kHeadBytes - gap_bytes));
  StoreLe(record->data() + kHashAt, HashOf(*record));
}

Status ApplyRedo(ByteSpan redo, const tensor::Inventory& inventory, const layout::ChunkList& chunks,
                 os::Mapping& baseline, int threads) {
  const std::vector<Record> records = WC_TRY(Split(redo));
  return ParallelFor(records.size(), threads, [&](size_t item, int) -> Status {
    const Record& record = records[item];
    const std::string where = "the record of chunk " + std::to_string(record.chunk);
    if (LoadLe<uint64_t>(record.whole.data() + kHashAt) != HashOf(record.whole)) {
      return Damaged(where + " does not match its hash");
    }
    if (record.chunk >= chunks.chunks.size()) return Damaged(where + ": there is no such chunk");
    const layout::Chunk& chunk = chunks.chunks[record.chunk];
    const int unit_bytes = inventory[static_cast<size_t>(chunk.tensor)].matrix().unit_bytes;
    const int64_t bytes = chunk.box.units() * unit_bytes;
    const bool whole = record.gaps.empty();
    if (whole && std::cmp_not_equal(record.units.size(), bytes)) {
      return Damaged(where + " has " + std::to_string(record.units.size()) + " bytes, expected " +
                     std::to_string(bytes));
    }
    bool fits = true;
    baseline.Update(chunk.at, bytes, [&](MutableByteSpan out) {
      if (whole) {
        CopyBytes(record.units, out);
      } else {
        fits = delta::ScatterUnits(unit_bytes, record.gaps, record.units, out);
      }
    });
    return fits ? Ok() : Status(Damaged(where + " does not fit the chunk"));
  });
}

}  // namespace weightcast::trainer
