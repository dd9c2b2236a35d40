// The start of a safetensors file, as another program wrote it.
#include "fuzz/accepted.h"
#include "tensor/safetensors.h"

namespace weightcast::tensor {
namespace {

// The input is a file without its data: the first 8 bytes are the data's size, then the file
// begins.
bool ParseFile(ByteSpan input) {
  if (input.size() < 8) return false;
  const auto data_bytes = LoadLe<uint64_t>(input.data());
  const ByteSpan prefix = input.subspan(8);
  if (data_bytes > INT64_MAX - prefix.size()) return false;
  const auto file_bytes = static_cast<int64_t>(data_bytes + prefix.size());
  const auto header = ParseSafetensorsHeader(prefix, file_bytes);
  if (!header.ok()) return false;

  // What was accepted covers the file, and is the same when written and read again.
  std::vector<TensorSpec> specs;
  int64_t covered = header->data_start;
  for (const PlacedTensor& tensor : header->tensors) {
    WC_CHECK(tensor.offset == covered);
    covered += tensor.spec.bytes();
    specs.push_back(tensor.spec);
  }
  WC_CHECK(covered == file_bytes);
  SafetensorsHeader written;
  const auto bytes = MakeSafetensorsHeader(specs, header->metadata, &written);
  if (!bytes.ok()) return true;  // grew past the largest header by the escapes we write
  const auto again = ParseSafetensorsHeader(*bytes, written.file_bytes);
  WC_CHECK(again.ok() && again->tensors.size() == specs.size());
  WC_CHECK(again->metadata == header->metadata);
  return true;
}

}  // namespace
}  // namespace weightcast::tensor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::tensor::ParseFile({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
