#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  HeadNorms(rank, layer);
  DenseMlp(rank, layer);
}

}  // namespace

constexpr Family kQwen3 = {
    .name = "qwen3",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .part = true,
};

}  // namespace weightcast::bridge::raw
