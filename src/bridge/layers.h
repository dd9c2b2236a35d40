// What each decoder layer of a model is.
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

struct LayerKind {
  bool linear = false;  // attention
  bool moe = false;
  bool operator==(const LayerKind&) const = default;
};
bool Has(const LayerKind& kind, Only only);

// Of each decoder layer, in order; then of the layer in a module that predicts further tokens.
// Errors: kInvalidData if config.json says too little, or the trainer something else.
Result<std::vector<LayerKind>> LayerKinds(const Family& family, const HfConfig& model,
                                          const MegatronConfig& trainer);

}  // namespace weightcast::bridge
