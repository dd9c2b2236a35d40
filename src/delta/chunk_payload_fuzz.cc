// The payload of a chunk, as another rank wrote it: method, dtype, units and changed units of the
// record, then the payload (FuzzedPayload of delta/testing.h).
#include "delta/testing.h"
#include "fuzz/accepted.h"

namespace weightcast::delta {
namespace {

bool DecodePayload(ByteSpan input) {
  const FuzzedPayload chunk = FuzzedPayload::Parse(input);
  const std::optional<tensor::DType> dtype = tensor::DTypeFromWire(chunk.dtype);
  if (!dtype || chunk.units == 0) return false;
  const auto unit = static_cast<size_t>(tensor::UnitBytes(*dtype));
  Bytes base = FuzzedPayload::Base(chunk.units * unit);
  if (chunk.without_base) base.clear();
  Bytes next(chunk.units * unit);
  static Scratch scratch;
  if (!DecodeChunk(chunk.method, *dtype, chunk.changed_units, chunk.payload, base, scratch, next)
           .ok()) {
    return false;
  }

  // What was accepted keeps the promises of a chunk, and is encoded and decoded as itself.
  if (!base.empty()) {
    size_t changed = 0;
    for (size_t i = 0; i < next.size(); i += unit) {
      if (std::memcmp(&base[i], &next[i], unit) == 0) continue;
      WC_CHECK(scratch.changed().at(changed++) == i / unit);
    }
    WC_CHECK(changed == scratch.changed().size());
    WC_CHECK(std::cmp_equal(changed, chunk.changed_units));
  }
  Bytes again;
  const ChunkInfo info = EncodeChunk(*dtype, base, next, scratch, &again);
  Bytes restored(next.size());
  WC_CHECK(
      DecodeChunk(info.method, *dtype, info.changed_units, again, base, scratch, restored).ok());
  WC_CHECK(restored == next);
  return true;
}

}  // namespace
}  // namespace weightcast::delta

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::delta::DecodePayload({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
