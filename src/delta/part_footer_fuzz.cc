// The footer of a part, as another rank wrote it: eight bytes of the object's size, then the
// footer. The seal and the trailer's own check are made to fit, so that the parser behind them is
// reached.
#include "delta/testing.h"
#include "fuzz/accepted.h"
#include "layout/cells.h"

namespace weightcast::delta {
namespace {

bool ParseFooter(ByteSpan input) {
  static const tensor::Inventory inventory = tensor::Inventory::Make(GoldenSpecs()).value();
  if (input.size() < 8 + kPartTrailerBytes) return false;
  BuiltPart part;
  part.object.assign(input.begin() + 8, input.end());
  part.seal.footer_bytes = static_cast<int64_t>(part.object.size());
  Reseal(&part);
  part.seal.object_bytes = static_cast<int64_t>(LoadLe<uint64_t>(input.data()) >> 2);
  const Result<PartIndex> index = ParsePartFooter(part.footer(), part.seal, inventory);
  if (!index.ok()) return false;

  int64_t at = kPartHeaderBytes;
  for (const PartChunk& chunk : index->chunks) {
    const tensor::Matrix matrix = inventory[static_cast<size_t>(chunk.tensor)].matrix();
    WC_CHECK(tensor::Inside(chunk.box, matrix));
    WC_CHECK(chunk.box.units() >= 1 && chunk.box.units() <= layout::kCellUnits);
    WC_CHECK(chunk.offset == at);
    WC_CHECK(chunk.payload_bytes <= chunk.box.units() * matrix.unit_bytes);
    WC_CHECK(chunk.changed_units >= 1 && chunk.changed_units <= chunk.box.units());
    at += chunk.payload_bytes;
  }
  WC_CHECK(at == part.seal.object_bytes - part.seal.footer_bytes);
  return true;
}

}  // namespace
}  // namespace weightcast::delta

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::delta::ParseFooter({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
