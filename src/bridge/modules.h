// The modules of a model: which of them there are, and on which chunk of the pipeline each is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/layers.h"
#include "bridge/megatron_config.h"
#include "bridge/rule.h"
#include "layout/topology.h"

namespace weightcast::bridge {

// One module of a stack.
struct Module {
  const Stack* stack = nullptr;
  layout::Topology::Chunk at;
  int32_t local = 0;   // number in Megatron's name
  int32_t global = 0;  // and in the checkpoint's
  LayerKind kind;
};

// Those of a stack, in order. `kinds`: LayerKinds of the model.
// Errors: kInvalidData naming a count in config.json that is missing or above all bounds.
Result<std::vector<Module>> ModulesOf(const Stack& stack, const HfConfig& model,
                                      const MegatronConfig& trainer,
                                      const std::vector<LayerKind>& kinds);

}  // namespace weightcast::bridge
