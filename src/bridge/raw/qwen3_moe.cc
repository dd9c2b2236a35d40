#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3MoeForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  HeadNorms(rank, layer);
  IsSparse(rank, layer) ? Moe(rank, layer) : DenseMlp(rank, layer);
}

}  // namespace

constexpr Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .experts = true,
    .settings = kMoeSettings,
    .layouts = true,
    .part = true,
};

}  // namespace weightcast::bridge::raw
