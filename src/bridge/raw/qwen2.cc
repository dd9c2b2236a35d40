#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen2ForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBias(rank, layer);
  DenseMlp(rank, layer);
}

}  // namespace

constexpr Family kQwen2 = {
    .name = "qwen2",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
};

}  // namespace weightcast::bridge::raw
