// The safetensors container: strict, bounded reader of headers and a writer.
// Format: https://huggingface.co/docs/safetensors (8-byte header length, JSON, data).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/inventory.h"

namespace weightcast::os {
class File;
}

namespace weightcast::tensor {

struct PlacedTensor {
  TensorSpec spec;
  int64_t offset = 0;  // of the first byte, from the start of the file
};

struct SafetensorsHeader {
  std::vector<PlacedTensor> tensors;  // parsed: by offset, empty ones first, then name
  std::map<std::string, std::string> metadata;
  int64_t data_start = 0;
  int64_t file_bytes = 0;
};

// 100 MB, as the reference implementation.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// Parses the start of a file. `prefix` holds at least the header (8 + its length); `file_bytes` is
// the size of the whole file. Untrusted. Errors: kInvalidData naming the tensor and the rule:
// header too long or cut, not JSON (a NUL-padded header names the offset), unknown dtype, bad
// shape, byte range that does not fit shape and dtype, overlap, gap, data that does not end at the
// end of the file, duplicate name. Unaligned data is accepted.
Result<SafetensorsHeader> ParseSafetensorsHeader(ByteSpan prefix, int64_t file_bytes);
// Bytes that ParseSafetensorsHeader needs, from the first 8. Errors: kInvalidData.
Result<int64_t> SafetensorsPrefixBytes(ByteSpan first8, int64_t file_bytes);
// Both, on a file. Reads the header only.
Result<SafetensorsHeader> ReadSafetensorsHeader(os::File& file);

// A header for these tensors laid one after the other in the given order; the data start is a
// multiple of 8, padded with spaces. Fills `*header` with the places, in the same order. Tensors
// stay aligned if units do not grow along the list. Errors: kInvalidData (CheckSpec, duplicate
// names, metadata that is not UTF-8, header too long).
Result<Bytes> MakeSafetensorsHeader(const std::vector<TensorSpec>& tensors,
                                    const std::map<std::string, std::string>& metadata,
                                    SafetensorsHeader* header);

}  // namespace weightcast::tensor
