#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {{"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kArchitectures[] = {"Glm4MoeForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  if (rank.model.config.Flag("use_qk_norm")) HeadNorms(rank, layer);
  if (!IsAfterDense(rank, layer)) return DenseMlp(rank, layer);
  Moe(rank, layer);
  RouterBias(rank, layer, "mlp.gate.e_score_correction_bias");
  if (rank.model.config.Int("n_shared_experts").value_or(0) > 0) {
    SharedExperts(rank, layer, "mlp.shared_experts.");
  }
}

void ConvertMtp(Rank& rank, const std::string& megatron, int32_t j) {
  const std::string number = std::to_string(rank.model.topology.num_layers + j);
  const std::string hf = "model.layers." + number + ".";
  MtpModuleAfterLayers(rank, megatron, hf);
  ConvertLayer(rank, InsideOf(rank, megatron, hf));
}

}  // namespace

constexpr Family kGlm4Moe = {
    .name = "glm4_moe",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .experts = true,
    .settings = kSettings,
    .layouts = true,
};

}  // namespace weightcast::bridge::raw
