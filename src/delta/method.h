// Inside of the codec: what a chunk method is. Each lies in its own file, method_NAME.cc; codec.cc
// lists them. A new one is a file, a row and a wire number.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "delta/codec.h"
#include "delta/profile.h"
#include "delta/streams.h"
#include "delta/unit_format.h"

namespace weightcast::delta {

struct Scratch::State {
  StreamCoder coder;
  std::vector<uint64_t> mask;     // which units changed
  std::vector<uint32_t> changed;  // the same as positions
  Bytes old_units;                // and what they were and became, packed
  Bytes new_units;
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> gaps;
  std::vector<uint64_t> codes;
  Bytes low_bits;
  Bytes symbols;
  Bytes tail;
  Bytes planes;
  Bytes candidate;
  Bytes best;
};

// What an encoder sees. Without a base only format, units and next are set.
struct ChunkDiff {
  UnitFormat format;
  size_t units = 0;
  ByteSpan base;
  ByteSpan next;
  std::span<const uint64_t> mask = {};
  std::span<const uint32_t> changed = {};
  ByteSpan old_units = {};  // of the changed ones: bases, packed
  ByteSpan new_units = {};
};

// What a decoder sees. `payload` is untrusted.
struct ChunkPayload {
  UnitFormat format;
  size_t units = 0;
  size_t changed_units = 0;  // 1 ... units
  ByteSpan base;
  ByteSpan payload;
};

struct MethodRow {
  Method method;
  bool needs_base;
  // About how many bits `encode` will take; never asked where there is no base.
  uint64_t (*estimate_bits)(const ChunkDiff& diff, const ChunkProfile& profile);
  // Appends the payload.
  void (*encode)(const ChunkDiff& diff, const ChunkProfile& profile, Scratch::State& state,
                 Bytes* out);
  // Restores `next`; with a base, leaves the mask of exactly chunk.changed_units changed units in
  // state.mask. Errors: kDataLoss.
  Status (*decode)(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next);
};

extern const MethodRow kClassGapsMethod;
extern const MethodRow kBitmapMethod;
extern const MethodRow kXorPlanesMethod;
extern const MethodRow kRawMethod;

inline Error Malformed(std::string what) { return {Code::kDataLoss, std::move(what)}; }

// For methods that do not say which units changed: finds them, and checks that they are as many as
// said. Without a base all count as changed.
Status CheckChangedUnits(const ChunkPayload& chunk, Scratch::State& state, ByteSpan next);

template <typename U>
U LoadUnit(ByteSpan units, size_t i) {
  return LoadLe<U>(units.data() + i * sizeof(U));
}
template <typename U>
void StoreUnit(MutableByteSpan units, size_t i, U value) {
  StoreLe<U>(units.data() + i * sizeof(U), value);
}

// Byte b of unit i lies in planes[b * stride + i].
template <typename U>
U JoinPlanes(const uint8_t* planes, size_t stride, size_t i) {
  U unit = 0;
  for (size_t b = 0; b < sizeof(U); ++b) {
    unit = static_cast<U>(unit | static_cast<U>(static_cast<U>(planes[b * stride + i]) << (8 * b)));
  }
  return unit;
}

}  // namespace weightcast::delta
