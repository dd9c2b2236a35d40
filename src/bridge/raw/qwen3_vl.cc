#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3VLForConditionalGeneration"};
constexpr std::string_view kMoeArchitectures[] = {"Qwen3VLMoeForConditionalGeneration"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  HeadNorms(rank, layer);
  DenseMlp(rank, layer);
}

void ConvertMoeLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  HeadNorms(rank, layer);
  IsSparse(rank, layer) ? Moe(rank, layer) : DenseMlp(rank, layer);
}

void ConvertTower(Rank& rank) {
  VisionTower(rank);
  DeepstackMergers(rank);
}

}  // namespace

constexpr Family kQwen3Vl = {
    .name = "qwen3_vl",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .tower = ConvertTower,
    .vision = true,
};

constexpr Family kQwen3VlMoe = {
    .name = "qwen3_vl_moe",
    .architectures = kMoeArchitectures,
    .layer = ConvertMoeLayer,
    .tower = ConvertTower,
    .experts = true,
    .settings = kMoeSettings,
    .vision = true,
    .layouts = true,
    .packed = true,
    .in_out_before_5 = true,
};

}  // namespace weightcast::bridge::raw
