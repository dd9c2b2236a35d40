#include "bridge/modules.h"

#include <string>

namespace weightcast::bridge {
namespace {

using layout::Topology;

Error OutOfBounds(const char* key) {
  return {Code::kInvalidData, "config.json: " + std::string(key) + ": expected 0.." +
                                  std::to_string(layout::kLayersMax)};
}

Result<int64_t> CountIn(const HfConfig& model, const char* key) {
  const int64_t count = model.Int(key).value_or(-1);
  if (count >= 0 && count <= layout::kLayersMax) return count;
  return OutOfBounds(key);
}

// An index for each; none if there is no list.
Result<int64_t> LengthIn(const HfConfig& model, const char* key) {
  const auto list = model.int_lists.find(key);
  if (list == model.int_lists.end()) return 0;
  if (std::ssize(list->second) <= layout::kLayersMax) return std::ssize(list->second);
  return OutOfBounds(key);
}

// How many a stack that is not the decoder's layers has.
Result<int64_t> CountOf(Holder holder, const HfConfig& model, const MegatronConfig& trainer) {
  switch (holder) {
    case Holder::kMtpStage:
      return trainer.mtp_layers > 0 ? 1 : 0;
    case Holder::kMtpLayers:
      return trainer.mtp_layers;
    case Holder::kVisionLayers:
      return CountIn(model, "vision_config.depth");
    case Holder::kDeepstack:
      return LengthIn(model, "vision_config.deepstack_visual_indexes");
    default:
      return 1;
  }
}

Topology::Chunk ChunkOf(Holder holder, const Topology& topology) {
  switch (holder) {
    case Holder::kLastStage:
      return topology.OutputAt();
    case Holder::kMtpStage:
    case Holder::kMtpLayers:
      return topology.MtpAt();
    default:
      return topology.EmbeddingAt();
  }
}

std::vector<Module> LayersOf(const Stack& stack, const Topology& topology,
                             const std::vector<LayerKind>& kinds) {
  std::vector<Module> modules;
  for (int32_t s = 0; s < topology.pp; ++s) {
    for (int32_t c = 0; c < topology.vpp; ++c) {
      const Topology::LayerRange range = topology.LayersOf(s, c);
      for (int32_t i = 0; i < range.count; ++i) {
        const int32_t layer = range.first + i;
        modules.push_back({&stack, {s, c}, i, layer, kinds[static_cast<size_t>(layer)]});
      }
    }
  }
  return modules;
}

}  // namespace

Result<std::vector<Module>> ModulesOf(const Stack& stack, const HfConfig& model,
                                      const MegatronConfig& trainer,
                                      const std::vector<LayerKind>& kinds) {
  if (stack.holder == Holder::kLayers) return LayersOf(stack, trainer.topology, kinds);
  const LayerKind kind = stack.holder == Holder::kMtpLayers ? kinds.back() : LayerKind{};
  const int64_t count = WC_TRY(CountOf(stack.holder, model, trainer));
  std::vector<Module> modules;
  for (int32_t i = 0; i < count; ++i) {
    modules.push_back({&stack, ChunkOf(stack.holder, trainer.topology), i, i, kind});
  }
  return modules;
}

}  // namespace weightcast::bridge
