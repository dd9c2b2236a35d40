// The hand-written converters, one a family.
#pragma once

#include <span>
#include <string_view>

#include "bridge/raw/raw_rank.h"
#include "bridge/setting.h"

namespace weightcast::bridge::raw {

// Adds all parameters of a layer of the decoder, or of the layer in a module that predicts further
// tokens.
using Converter = void (*)(Rank& rank, const Layer& layer);
// Adds the parameters of the j-th such module, that layer's among them.
using MtpConverter = void (*)(Rank& rank, const std::string& megatron, int32_t j);
// Adds the parameters that only the first stage has, besides the embedding.
using TowerConverter = void (*)(Rank& rank);

struct Family {
  std::string_view name;  // as the plan says it
  std::span<const std::string_view> architectures;
  Converter layer;
  MtpConverter mtp = nullptr;
  TowerConverter tower = nullptr;
  bool experts = false;
  std::span<const Setting> settings = {};  // in place of the usual ones
  bool vision = false;                     // the decoder is a part: "language_model"
  bool layouts = false;                    // experts may be by name or packed
  bool packed = false;                     // experts, when no checkpoint says
  bool in_out_before_5 = false;
  bool tied = false;  // when config.json does not say
};

// Of a family that has experts, and nothing else that is not usual.
inline constexpr Setting kMoeSettings[] = {{"num_moe_experts", "*"}};
// Of one that has, beside them, gated delta nets.
inline constexpr Setting kHybridMoeSettings[] = {{"layernorm_zero_centered_gamma", "true"},
                                                 {"attention_output_gate", "true"},
                                                 {"num_moe_experts", "*"},
                                                 {"mtp_num_layers", "*"}};

// The layer in a module, whose names begin with `megatron`.
inline Layer InsideOf(const Rank& rank, const std::string& megatron, std::string hf) {
  const std::string& told = rank.model.trainer.mtp.inner;
  return {megatron + (told.empty() ? kMtpInners[0] : told) + ".", std::move(hf), -1};
}

extern const Family kLlama;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen3Moe;
extern const Family kQwen3Vl;
extern const Family kQwen3VlMoe;
extern const Family kQwen3Next;
extern const Family kQwen35;
extern const Family kQwen35Moe;
extern const Family kQwen35Vl;
extern const Family kQwen35VlMoe;
extern const Family kMixtral;
extern const Family kGlm4;
extern const Family kGlm4Moe;
extern const Family kDeepseekV2;
extern const Family kDeepseekV3;
extern const Family kMiniMaxM2;
extern const Family kGemma3;
extern const Family kGptOss;
extern const Family kMiMo;

inline constexpr const Family* kFamilies[] = {
    &kLlama,      &kQwen2,      &kQwen3,     &kQwen3Moe,    &kQwen3Vl, &kQwen3VlMoe, &kQwen3Next,
    &kQwen35,     &kQwen35Moe,  &kQwen35Vl,  &kQwen35VlMoe, &kMixtral, &kGlm4,       &kGlm4Moe,
    &kDeepseekV2, &kDeepseekV3, &kMiniMaxM2, &kGptOss,      &kMiMo,    &kGemma3,
};

}  // namespace weightcast::bridge::raw
