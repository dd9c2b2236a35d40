// topology.json and rankN.json, as another program wrote them.
#include "base/bytes.h"
#include "bridge/megatron_config.h"
#include "fuzz/accepted.h"

namespace weightcast::bridge {
namespace {

// What was accepted places every layer once and names every rank.
void CheckTopology(const layout::Topology& t) {
  WC_CHECK(t.Check().ok());
  WC_CHECK(int64_t{t.tp} * t.pp * t.cp * t.dp() == t.world);
  int32_t next = 0;
  for (int32_t v = 0; v < t.vpp; ++v) {
    for (int32_t p = 0; p < t.pp; ++p) {
      const layout::Topology::LayerRange range = t.LayersOf(p, v);
      WC_CHECK(range.first == next && range.count >= 0);
      next += range.count;
    }
  }
  WC_CHECK(next == t.num_layers);
  const layout::Coordinates last = t.At(t.world - 1);
  WC_CHECK(last.tp == t.tp - 1 && last.pp == t.pp - 1 && last.cp == t.cp - 1 &&
           last.dp == t.dp() - 1);
}

bool ParseBoth(ByteSpan input) {
  layout::Topology recorded;
  recorded.num_layers = 4;
  recorded.world = recorded.pp = recorded.vpp = 2;
  bool accepted = CheckRankRecord(recorded, 1, AsText(input)).ok();
  const auto config = MegatronConfig::Parse(AsText(input));
  if (config.ok()) {
    accepted = true;
    CheckTopology(config->topology);
    WC_CHECK(config->padded_vocab >= 0);
  }
  return accepted;
}

}  // namespace
}  // namespace weightcast::bridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::bridge::ParseBoth({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
