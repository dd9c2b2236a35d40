#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  rank.model.RefuseFlag("attention_bias");
  rank.model.RefuseFlag("mlp_bias");
  InputNorm(rank, layer);
  Attention(rank, layer);
  DenseMlp(rank, layer);
}

}  // namespace

constexpr Family kLlama = {
    .name = "llama",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
};

}  // namespace weightcast::bridge::raw
