// config.json, as another program wrote it.
#include "base/bytes.h"
#include "bridge/dims.h"
#include "bridge/families/families.h"
#include "bridge/hf_config.h"
#include "fuzz/accepted.h"

namespace weightcast::bridge {
namespace {

bool ParseConfig(ByteSpan input) {
  const auto config = HfConfig::Parse(AsText(input));
  if (!config.ok()) return false;
  WC_CHECK(!config->architectures.empty());
  const auto dims = ReadDims(*config);
  if (!dims.ok()) return true;
  WC_CHECK((*dims)({Dim::kHeads, Dim::kHeadDim}) > 0);
  WC_CHECK((*dims)[Dim::kHeads] % (*dims)[Dim::kKvHeads] == 0);
  const auto family = FindFamily(*config);
  WC_CHECK(family.ok() || family.error().code == Code::kInvalidData);
  return true;
}

}  // namespace
}  // namespace weightcast::bridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::bridge::ParseConfig({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
