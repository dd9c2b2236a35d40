// model.safetensors.index.json, as another program wrote it.
#include "fuzz/accepted.h"
#include "tensor/hf_directory.h"

namespace weightcast::tensor {
namespace {

bool ParseIndex(ByteSpan input) {
  const auto weight_map = ParseIndexJson(AsText(input));
  if (!weight_map.ok()) return false;
  for (const auto& [tensor, file] : *weight_map) {
    WC_CHECK(file.ends_with(".safetensors") && file[0] != '/' && file[0] != '.');
    WC_CHECK(file.find("/.") == std::string::npos && file.find('\\') == std::string::npos);
  }
  return true;
}

}  // namespace
}  // namespace weightcast::tensor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::tensor::ParseIndex({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
