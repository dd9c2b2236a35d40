#include "delta/sparse.h"

#include "delta/method.h"

namespace weightcast::delta {
namespace {

template <typename U>
bool Scatter(ByteReader gaps, ByteSpan units, MutableByteSpan chunk) {
  const uint64_t chunk_units = chunk.size() / sizeof(U);
  uint64_t position = 0;
  for (size_t i = 0; i < units.size() / sizeof(U); ++i, ++position) {
    const uint64_t gap = gaps.GetVarint();
    if (gap >= chunk_units - position) return false;
    position += gap;
    StoreUnit<U>(chunk, position, LoadUnit<U>(units, i));
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
  const size_t at = out->size();
  out->resize(at + positions.size() * size);
  const auto units = MutableByteSpan(*out).subspan(at);
  WithUnit(size, [&]<typename U>() {
    for (size_t i = 0; i < positions.size(); ++i) {
      StoreUnit<U>(units, i, LoadUnit<U>(chunk, positions[i]));
    }
  });
}

bool ReadGaps(ByteSpan gaps, size_t count, uint64_t chunk_units, std::vector<uint32_t>* positions) {
  positions->resize(count);
  ByteReader in(gaps);
  uint64_t position = 0;
  for (size_t i = 0; i < count; ++i, ++position) {
    const uint64_t gap = in.GetVarint();
    if (position >= chunk_units || gap >= chunk_units - position) return false;
    position += gap;
    (*positions)[i] = static_cast<uint32_t>(position);
  }
  return in.done();
}

bool ScatterUnits(int unit_bytes, ByteSpan gaps, ByteSpan units, MutableByteSpan chunk) {
  return WithUnit(static_cast<size_t>(unit_bytes),
                  [&]<typename U>() { return Scatter<U>(ByteReader(gaps), units, chunk); });
}

}  // namespace weightcast::delta
