// Chunk codec: one chunk's packed (base, next) to bytes, and (base, bytes) back to next.
// Pure: no I/O, no clock, no globals; every function may run on many threads at once (scratch is
// the caller's, one a thread). Bit-exact: units are compared as bits, so -0.0 and NaN payloads
// count. Format: docs/formats/part.md, "Chunk payload".
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "layout/cells.h"
#include "tensor/dtype.h"

namespace weightcast::delta {

// Wire numbers: never renumber, only append.
enum class Method : uint8_t {
  kAbsent = 0,     // next == base; never on the wire: an absent chunk is not listed
  kClassGaps = 1,  // positions as gaps inside classes of base magnitude, values as signed ulp steps
  kBitmap = 2,     // a bit a unit, then the changed units' XOR words, planes through zstd
  kXorPlanes = 3,  // next ^ base in byte planes through zstd; with no base: next itself
  kRaw = 4,        // next
};
inline constexpr int kMethods = 5;

// No chunk is larger, so that every buffer can be sized before foreign bytes are believed.
inline constexpr int64_t kChunkUnitsMax = layout::kCellUnits;

struct ChunkInfo {
  Method method = Method::kAbsent;
  int64_t changed_units = 0;  // units that differ from base; all units when there is no base
};

// Buffers and zstd contexts of one thread.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  struct State;
  State& state() { return *state_; }

  // Ascending positions of the units that the last EncodeChunk found changed, or that the last
  // DecodeChunk changed; empty where there was no base. Valid until the next call.
  const std::vector<uint32_t>& changed() const;

 private:
  std::unique_ptr<State> state_;
};

// Appends the cheapest encoding of `next` to `out` and says which method it is; appends nothing for
// kAbsent. An empty `base` means "no base": kXorPlanes or kRaw.
// Deterministic: equal inputs give equal bytes on every CPU.
//   Requires: base empty or base.size() == next.size(); next.size() a multiple of UnitBytes(dtype)
//   and at most kChunkUnitsMax units.
ChunkInfo EncodeChunk(tensor::DType dtype, ByteSpan base, ByteSpan next, Scratch& scratch,
                      Bytes* out);

// Restores `next`. `payload` is untrusted. `base` empty only if the chunk was encoded without one.
// Errors: kDataLoss if `payload` is not exactly one well-formed chunk of next.size() bytes with
// `changed_units` changes; `next` is then unspecified and must not be used.
//   Requires: base empty or base.size() == next.size(); base and next do not overlap.
Status DecodeChunk(Method method, tensor::DType dtype, int64_t changed_units, ByteSpan payload,
                   ByteSpan base, Scratch& scratch, MutableByteSpan next);

}  // namespace weightcast::delta
