// The families, one line each.
#pragma once

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

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
extern const Family kGptOss;
extern const Family kMiMo;
extern const Family kGemma3;

inline constexpr const Family* kFamilies[] = {
    &kLlama,      &kQwen2,      &kQwen3,     &kQwen3Moe,    &kQwen3Vl, &kQwen3VlMoe, &kQwen3Next,
    &kQwen35,     &kQwen35Moe,  &kQwen35Vl,  &kQwen35VlMoe, &kMixtral, &kGlm4,       &kGlm4Moe,
    &kDeepseekV2, &kDeepseekV3, &kMiniMaxM2, &kGptOss,      &kMiMo,    &kGemma3,
};

// The family that serves the model's architecture.
// Errors: kInvalidData naming the architecture and all that are known.
Result<const Family*> FindFamily(const HfConfig& config);

}  // namespace weightcast::bridge
