// Byte planes of next XOR base, or of next where there is no base: exponent bytes of neighbours are
// alike, mantissa bytes are not, so each plane is a stream of its own. docs/formats/part.md,
// "Method 3".
#include "delta/method.h"

namespace weightcast::delta {
namespace {

uint64_t EstimateBits(const ChunkDiff&, const ChunkProfile& profile) { return profile.plane_bits; }

template <typename U>
void PutPlanes(const ChunkDiff& diff, Scratch::State& state, Bytes* out) {
  state.planes.resize(diff.units);
  for (size_t b = 0; b < sizeof(U); ++b) {
    for (size_t i = 0; i < diff.units; ++i) {
      const U base = diff.base.empty() ? U{0} : LoadUnit<U>(diff.base, i);
      state.planes[i] = static_cast<uint8_t>((LoadUnit<U>(diff.next, i) ^ base) >> (8 * b));
    }
    state.coder.Pack(state.planes, {}, Repeats::kUnknown, out);
  }
}

void Encode(const ChunkDiff& diff, const ChunkProfile&, Scratch::State& state, Bytes* out) {
  WithUnit(diff.format.bytes, [&]<typename U>() { PutPlanes<U>(diff, state, out); });
}

template <typename U>
Status GetPlanes(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  ByteReader in(chunk.payload);
  const size_t n = chunk.units;
  state.planes.resize(n * sizeof(U));
  for (size_t b = 0; b < sizeof(U); ++b) {
    WC_TRY(state.coder.Unpack(in, MutableByteSpan(state.planes).subspan(b * n, n)));
  }
  const uint8_t* const planes = state.planes.data();
  if (chunk.base.empty()) {
    for (size_t i = 0; i < n; ++i) StoreUnit(next, i, JoinPlanes<U>(planes, n, i));
  } else {
    for (size_t i = 0; i < n; ++i) {
      const U word = JoinPlanes<U>(planes, n, i);
      StoreUnit(next, i, static_cast<U>(LoadUnit<U>(chunk.base, i) ^ word));
    }
  }
  return in.done() ? Ok() : Malformed("bytes behind the planes");
}

Status Decode(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  WC_TRY(
      WithUnit(chunk.format.bytes, [&]<typename U>() { return GetPlanes<U>(chunk, state, next); }));
  return CheckChangedUnits(chunk, state, next);
}

}  // namespace

const MethodRow kXorPlanesMethod = {Method::kXorPlanes, false, EstimateBits, Encode, Decode};

}  // namespace weightcast::delta
