#include "bridge/families/families.h"
#include "bridge/families/fragments.h"
#include "bridge/families/vision.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"},
                                 {"attention_output_gate", "true"},
                                 {"mtp_num_layers", "*"}};
constexpr const char* kTiedTo = "model.language_model.embed_tokens.weight";

constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kGatedAttentionRules, kQkNormRules,  kDeltaNetRules,
    kDeltaNetInputRules, kMlpNormRules,        kGatedMlpRules};
constexpr std::span<const Rule> kMoeLayers[] = {
    kAttentionNormRules, kGatedAttentionRules, kQkNormRules,  kDeltaNetRules,
    kDeltaNetInputRules, kMoeNormRules,        kExpertsRules, kGatedSharedExpertRules};
constexpr std::string_view kQwen35Architectures[] = {"Qwen3_5ForCausalLM"};
constexpr Stack kQwen35Stacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kLayers),
    kMtpFirstStack,
    MtpStack("mtp.layers.*.", kMtpGroups),
    MtpLayersStack("mtp.layers.*.", kLayers),
};

constexpr std::string_view kQwen35MoeArchitectures[] = {"Qwen3_5MoeForCausalLM"};
constexpr Stack kQwen35MoeStacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kMoeLayers),
    kMtpFirstStack,
    MtpStack("mtp.layers.*.", kMtpGroups),
    MtpLayersStack("mtp.layers.*.", kMoeLayers),
};

constexpr std::string_view kQwen35VlArchitectures[] = {"Qwen3_5ForConditionalGeneration"};
constexpr Stack kQwen35VlStacks[] = {
    kTextFirstStack,    kTextLastStack,     TextLayersStack(kLayers),
    kTextMtpFirstStack, kTextMtpStack,      TextMtpLayersStack(kLayers),
    kPatchStack,        kVisionLayersStack, kMergerStack,
};

constexpr std::string_view kQwen35VlMoeArchitectures[] = {"Qwen3_5MoeForConditionalGeneration"};
constexpr Stack kQwen35VlMoeStacks[] = {
    kTextFirstStack,    kTextLastStack,     TextLayersStack(kMoeLayers),
    kTextMtpFirstStack, kTextMtpStack,      TextMtpLayersStack(kMoeLayers),
    kPatchStack,        kVisionLayersStack, kMergerStack,
};

}  // namespace

constexpr Family kQwen35 = {
    .name = "qwen3_5",
    .architectures = kQwen35Architectures,
    .stacks = kQwen35Stacks,
    .settings = kSettings,
    .wrapped = "model.language_model.",
};

constexpr Family kQwen35Moe = {
    .name = "qwen3_5_moe",
    .architectures = kQwen35MoeArchitectures,
    .stacks = kQwen35MoeStacks,
    .settings = kHybridMoeSettings,
    .packed_by_default = true,
    .wrapped = "model.language_model.",
};

constexpr Family kQwen35Vl = {
    .name = "qwen3_5_vl",
    .architectures = kQwen35VlArchitectures,
    .stacks = kQwen35VlStacks,
    .settings = kSettings,
    .tied_to = kTiedTo,
};

constexpr Family kQwen35VlMoe = {
    .name = "qwen3_5_vl_moe",
    .architectures = kQwen35VlMoeArchitectures,
    .stacks = kQwen35VlMoeStacks,
    .settings = kHybridMoeSettings,
    .packed_by_default = true,
    .tied_to = kTiedTo,
};

}  // namespace weightcast::bridge
