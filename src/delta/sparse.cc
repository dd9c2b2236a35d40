#include "delta/sparse.h"

namespace weightcast::delta {
namespace {

template <size_t kUnitBytes>
bool Scatter(ByteReader gaps, ByteSpan units, MutableByteSpan chunk) {
  const uint64_t chunk_units = chunk.size() / kUnitBytes;
  uint64_t position = 0;
  for (size_t at = 0; at + kUnitBytes <= units.size(); at += kUnitBytes, ++position) {
    const uint64_t gap = gaps.GetVarint();
    if (gap >= chunk_units - position) return false;
    position += gap;
    std::memcpy(chunk.data() + position * kUnitBytes, units.data() + at, kUnitBytes);
  }
  return gaps.done();
}

}  // namespace

void AppendGaps(std::span<const uint32_t> positions, Bytes* out) {
  ByteWriter writer(out);
  uint32_t expected = 0;
  for (const uint32_t position : positions) {
    writer.PutVarint(position - expected);
    expected = position + 1;
  }
}

void AppendUnits(ByteSpan chunk, std::span<const uint32_t> positions, int unit_bytes, Bytes* out) {
  const auto size = static_cast<size_t>(unit_bytes);
  size_t at = out->size();
  out->resize(at + positions.size() * size);
  for (const uint32_t position : positions) {
    std::memcpy(out->data() + at, chunk.data() + position * size, size);
    at += size;
  }
}

bool ScatterUnits(int unit_bytes, ByteSpan gaps, ByteSpan units, MutableByteSpan chunk) {
  switch (unit_bytes) {
    case 1:
      return Scatter<1>(ByteReader(gaps), units, chunk);
    case 2:
      return Scatter<2>(ByteReader(gaps), units, chunk);
    case 4:
      return Scatter<4>(ByteReader(gaps), units, chunk);
    default:
      return Scatter<8>(ByteReader(gaps), units, chunk);
  }
}

}  // namespace weightcast::delta
