#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"MixtralForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  MoeNorm(rank, layer);
  Router(rank, layer, "block_sparse_moe.gate.weight");
  SparseMoeExperts(rank, layer);
}

}  // namespace

constexpr Family kMixtral = {
    .name = "mixtral",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .experts = true,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge::raw
