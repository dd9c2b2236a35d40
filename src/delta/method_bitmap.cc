// Where very many units change, or where changes have no order to speak of: one bit a unit and the
// changed units' XOR words. docs/formats/part.md, "Method 2".
#include <bit>

#include "delta/method.h"

namespace weightcast::delta {
namespace {

uint64_t EstimateBits(const ChunkDiff&, const ChunkProfile& profile) {
  return profile.bitmap_bits + profile.word_bits;
}

template <typename U>
void PutPlanes(const ChunkDiff& diff, Scratch::State& state, Bytes* out) {
  const size_t n = diff.changed.size();
  state.planes.resize(n);
  for (size_t b = 0; b < sizeof(U); ++b) {
    for (size_t i = 0; i < n; ++i) {
      const U word = LoadUnit<U>(diff.old_units, i) ^ LoadUnit<U>(diff.new_units, i);
      state.planes[i] = static_cast<uint8_t>(word >> (8 * b));
    }
    state.coder.Pack(state.planes, {}, Repeats::kUnknown, out);
  }
}

// A mask is little endian, so that its first bytes are the bits of the format.
void Encode(const ChunkDiff& diff, const ChunkProfile&, Scratch::State& state, Bytes* out) {
  const ByteSpan bits(reinterpret_cast<const uint8_t*>(diff.mask.data()), (diff.units + 7) / 8);
  state.coder.Pack(bits, {}, Repeats::kUnknown, out);
  WithUnit(diff.format.bytes, [&]<typename U>() { PutPlanes<U>(diff, state, out); });
}

template <typename U>
Status GetPlanes(const ChunkPayload& chunk, ByteReader& in, Scratch::State& state,
                 MutableByteSpan next) {
  const size_t n = chunk.changed_units;
  state.planes.resize(n * sizeof(U));
  for (size_t b = 0; b < sizeof(U); ++b) {
    WC_TRY(state.coder.Unpack(in, MutableByteSpan(state.planes).subspan(b * n, n)));
  }
  std::memcpy(next.data(), chunk.base.data(), next.size());
  size_t k = 0;
  for (size_t w = 0; w < state.mask.size(); ++w) {
    for (uint64_t left = state.mask[w]; left != 0; left &= left - 1, ++k) {
      const U word = JoinPlanes<U>(state.planes.data(), n, k);
      if (word == 0) return Malformed("a changed unit equals its base");
      const size_t i = 64 * w + static_cast<size_t>(std::countr_zero(left));
      StoreUnit(next, i, static_cast<U>(LoadUnit<U>(chunk.base, i) ^ word));
    }
  }
  return Ok();
}

Status Decode(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  ByteReader in(chunk.payload);
  state.mask.assign(MaskWords(chunk.units), 0);
  auto* const bits = reinterpret_cast<uint8_t*>(state.mask.data());
  WC_TRY(state.coder.Unpack(in, {bits, (chunk.units + 7) / 8}));
  if (chunk.units % 64 != 0 && state.mask.back() >> (chunk.units % 64) != 0) {
    return Malformed("spare bits are not zero");
  }
  size_t changed = 0;
  for (const uint64_t word : state.mask) changed += static_cast<size_t>(std::popcount(word));
  if (changed != chunk.changed_units) return Malformed("bits set and changed units differ");
  WC_TRY(WithUnit(chunk.format.bytes,
                  [&]<typename U>() { return GetPlanes<U>(chunk, in, state, next); }));
  return in.done() ? Ok() : Malformed("bytes behind the planes");
}

}  // namespace

const MethodRow kBitmapMethod = {Method::kBitmap, true, EstimateBits, Encode, Decode};

}  // namespace weightcast::delta
