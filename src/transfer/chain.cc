#include "transfer/chain.h"

#include "transfer/chain_state.h"

namespace weightcast::transfer {

Chain::Chain(std::unique_ptr<State> state) : state_(std::move(state)) {}
Chain::Chain(Chain&&) noexcept = default;
Chain& Chain::operator=(Chain&&) noexcept = default;
Chain::~Chain() = default;

bool Chain::starts_full() const { return state_->starts_full; }

int64_t Chain::wire_bytes() const {
  int64_t bytes = 0;
  for (const ChainObject& object : state_->objects) bytes += object.ref.bytes;
  return bytes;
}

std::vector<ReplayBatch> Chain::Batches(
    int64_t payload_bytes_max, int threads,
    const std::function<bool(int32_t tensor, int64_t cell)>& wanted) const {
  constexpr int64_t kSmallest = 256 * kKiB;
  constexpr int64_t kForEachThread = 4;
  std::vector<ReplayBatch> batches;
  const std::vector<ChainEntry>& entries = state_->entries;
  int64_t total = 0;
  for (const ChainEntry& entry : entries) total += entry.chunk->payload_bytes;
  const int64_t share = total / (kForEachThread * std::max(1, threads));
  payload_bytes_max = std::min(payload_bytes_max, std::max(kSmallest, share));
  for (size_t first = 0, last = 0; first < entries.size(); first = last) {
    const ChainEntry& entry = entries[first];
    int64_t payload_bytes = 0;
    for (last = first; last < entries.size() && entries[last].tensor == entry.tensor &&
                       entries[last].cell == entry.cell;
         ++last) {
      payload_bytes += entries[last].chunk->payload_bytes;
    }
    if (wanted && !wanted(entry.tensor, entry.cell)) continue;
    if (batches.empty() || batches.back().payload_bytes + payload_bytes > payload_bytes_max) {
      batches.emplace_back();
    }
    const tensor::Matrix matrix = (*state_->inventory)[static_cast<size_t>(entry.tensor)].matrix();
    ReplayCell cell{entry.tensor,
                    entry.cell,
                    layout::CellGrid::For(matrix).CellBox(entry.cell),
                    layout::RunOf(matrix, entry.cell),
                    {}};
    cell.chunks.reserve(last - first);
    for (size_t i = first; i < last; ++i) {
      cell.chunks.push_back({entries[i].step, entries[i].object, entries[i].chunk});
    }
    batches.back().cells.push_back(std::move(cell));
    batches.back().payload_bytes += payload_bytes;
  }
  return batches;
}

}  // namespace weightcast::transfer
