#include "bridge/families/families.h"
#include "bridge/families/fragments.h"
#include "bridge/families/vision.h"

namespace weightcast::bridge {
namespace {

constexpr const char* kTiedTo = "model.language_model.embed_tokens.weight";

constexpr std::string_view kQwen3VlArchitectures[] = {"Qwen3VLForConditionalGeneration"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules,
                                             kQkvBiasIfSetRules,  kQkNormRules,
                                             kMlpNormRules,       kGatedMlpRules};
constexpr Stack kQwen3VlStacks[] = {
    kTextFirstStack,    kTextLastStack,   TextLayersStack(kLayers), kPatchStack,
    kVisionLayersStack, kMergerStack,     kDeepstackStack,          kKeptPatchStack,
    kKeptLayersStack,   kKeptMergerStack, kKeptDeepstackStack,
};

constexpr std::string_view kQwen3VlMoeArchitectures[] = {"Qwen3VLMoeForConditionalGeneration"};
constexpr std::span<const Rule> kMoeLayers[] = {
    kAttentionNormRules, kAttentionRules, kQkvBiasIfSetRules, kQkNormRules,
    kMlpNormRules,       kGatedMlpRules,  kMoeNormRules,      kExpertsRules};
constexpr Stack kQwen3VlMoeStacks[] = {
    kTextFirstStack,  kTextLastStack,      TextLayersStack(kMoeLayers),
    kPatchStack,      kVisionLayersStack,  kMergerStack,
    kDeepstackStack,  kKeptPatchStack,     kKeptLayersStack,
    kKeptMergerStack, kKeptDeepstackStack,
};

}  // namespace

constexpr Family kQwen3Vl = {
    .name = "qwen3_vl",
    .architectures = kQwen3VlArchitectures,
    .stacks = kQwen3VlStacks,
    .tied_to = kTiedTo,
};

constexpr Family kQwen3VlMoe = {
    .name = "qwen3_vl_moe",
    .architectures = kQwen3VlMoeArchitectures,
    .stacks = kQwen3VlMoeStacks,
    .settings = kMoeSettings,
    .packed_by_default = true,
    .in_out_before_5 = true,
    .tied_to = kTiedTo,
};

}  // namespace weightcast::bridge
