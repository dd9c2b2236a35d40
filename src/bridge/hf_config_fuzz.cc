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
  const auto dims = ReadDims(*config, DimSet().set());
  const auto family = FindFamily(*config);
  WC_CHECK(family.ok() || family.error().code == Code::kInvalidData);
  if (!dims.ok()) return true;
  for (const int64_t size : dims->values) WC_CHECK(size > 0);
  WC_CHECK((*dims)[Dim::kHeads] % (*dims)[Dim::kKvHeads] == 0);
  return true;
}

}  // namespace
}  // namespace weightcast::bridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::bridge::ParseConfig({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
