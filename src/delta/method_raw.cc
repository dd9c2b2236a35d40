// The units themselves. docs/formats/part.md, "Method 4".
#include "delta/method.h"

namespace weightcast::delta {
namespace {

uint64_t EstimateBits(const ChunkDiff& diff, const ChunkProfile&) { return 8 * diff.next.size(); }

void Encode(const ChunkDiff& diff, const ChunkProfile&, Scratch::State&, Bytes* out) {
  ByteWriter(out).PutBytes(diff.next);
}

Status Decode(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  if (chunk.payload.size() != next.size()) return Malformed("raw payload of another size");
  std::memcpy(next.data(), chunk.payload.data(), next.size());
  return CheckChangedUnits(chunk, state, next);
}

}  // namespace

const MethodRow kRawMethod = {Method::kRaw, false, EstimateBits, Encode, Decode};

}  // namespace weightcast::delta
