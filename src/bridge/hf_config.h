// config.json of a Hugging Face checkpoint, as far as a mapping needs it. Untrusted, bounded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "tensor/dtype.h"

namespace weightcast::bridge {

inline constexpr int64_t kHfConfigBytesMax = 16 * kMiB;

// How many modules that predict further tokens a checkpoint has, as its family's config says it. A
// trainer may leave them out.
inline constexpr const char* kMtpCounts[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers"};

struct HfConfig {
  std::vector<std::string> architectures;
  std::optional<tensor::DType> dtype;  // "dtype" (transformers 5) or "torch_dtype"
  std::string transformers_version;
  bool quantized = false;  // has a quantization_config: its checkpoint's weights are not plain
  // Only the top level counts: a nested text_config repeats a default of its own.
  std::optional<bool> tie_word_embeddings;
  // Every whole number and flag, and lists of whole numbers or of names, of the top level, else of
  // "text_config"; those of "vision_config" below its name: "vision_config.depth". null means
  // absent.
  std::map<std::string, int64_t, std::less<>> ints;
  std::map<std::string, bool, std::less<>> flags;
  std::map<std::string, std::vector<int64_t>, std::less<>> int_lists;
  std::map<std::string, std::vector<std::string>, std::less<>> name_lists;

  std::optional<int64_t> Int(std::string_view key) const;
  bool Flag(std::string_view key) const;  // absent is false

  // Errors: kInvalidData: not JSON, not an object, no architectures, a wrong type where one of the
  // fields above is expected, an unknown dtype.
  static Result<HfConfig> Parse(std::string_view json);
};

// "bfloat16", "torch.bfloat16" -> kBf16. Nothing for names that weights do not come in.
std::optional<tensor::DType> DTypeFromTorchName(std::string_view name);

}  // namespace weightcast::bridge
