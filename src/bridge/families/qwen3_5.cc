#include "bridge/families/families.h"
#include "bridge/families/fragments.h"
#include "bridge/families/vision.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"},
                                 {"attention_output_gate", "true"},
                                 {"num_moe_experts", "*"},
                                 {"mtp_num_layers", "*"}};
constexpr const char* kTiedTo = "model.language_model.embed_tokens.weight";

constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kGatedAttentionRules, kQkNormRules,  kDeltaNetRules,
    kDeltaNetInputRules, kMlpNormRules,        kGatedMlpRules};
constexpr std::span<const Rule> kMoeLayers[] = {
    kAttentionNormRules, kGatedAttentionRules, kQkNormRules,  kDeltaNetRules,
    kDeltaNetInputRules, kMoeNormRules,        kExpertsRules, kGatedSharedExpertRules};
constexpr std::span<const Rule> kMtpFirst[] = {kMtpEmbeddingRules};
constexpr std::span<const Rule> kMtp[] = {kMtpRules};
constexpr std::string_view kQwen35Architectures[] = {"Qwen3_5ForCausalLM"};
constexpr Stack kQwen35Stacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
    {Holder::kMtpStage, "", "model.", kMtpFirst},
    {Holder::kMtpLayers, "mtp.layers.*.", "mtp.layers.*.", kMtp},
    {Holder::kMtpLayers, "mtp.layers.*.@.", "mtp.layers.*.", kLayers},
};

constexpr std::string_view kQwen35MoeArchitectures[] = {"Qwen3_5MoeForCausalLM"};
constexpr Stack kQwen35MoeStacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kMoeLayers},
    {Holder::kMtpStage, "", "model.", kMtpFirst},
    {Holder::kMtpLayers, "mtp.layers.*.", "mtp.layers.*.", kMtp},
    {Holder::kMtpLayers, "mtp.layers.*.@.", "mtp.layers.*.", kMoeLayers},
};

constexpr std::string_view kQwen35VlArchitectures[] = {"Qwen3_5ForConditionalGeneration"};
constexpr Stack kQwen35VlStacks[] = {
    {Holder::kFirstStage, "language_model.", "model.language_model.", kFirst},
    {Holder::kLastStage, "language_model.", "model.language_model.", kLast},
    {Holder::kLayers, "language_model.decoder.layers.*.", "model.language_model.layers.*.",
     kLayers},
    {Holder::kMtpStage, "language_model.", "model.language_model.", kMtpFirst},
    {Holder::kMtpLayers, "language_model.mtp.layers.*.", "mtp.layers.*.", kMtp},
    {Holder::kMtpLayers, "language_model.mtp.layers.*.@.", "mtp.layers.*.", kLayers},
    kPatchStack,
    kVisionLayersStack,
    kMergerStack,
    kKeptPatchStack,
    kKeptLayersStack,
    kKeptMergerStack,
};

constexpr std::string_view kQwen35VlMoeArchitectures[] = {"Qwen3_5MoeForConditionalGeneration"};
constexpr Stack kQwen35VlMoeStacks[] = {
    {Holder::kFirstStage, "language_model.", "model.language_model.", kFirst},
    {Holder::kLastStage, "language_model.", "model.language_model.", kLast},
    {Holder::kLayers, "language_model.decoder.layers.*.", "model.language_model.layers.*.",
     kMoeLayers},
    {Holder::kMtpStage, "language_model.", "model.language_model.", kMtpFirst},
    {Holder::kMtpLayers, "language_model.mtp.layers.*.", "mtp.layers.*.", kMtp},
    {Holder::kMtpLayers, "language_model.mtp.layers.*.@.", "mtp.layers.*.", kMoeLayers},
    kPatchStack,
    kVisionLayersStack,
    kMergerStack,
    kKeptPatchStack,
    kKeptLayersStack,
    kKeptMergerStack,
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
    .settings = kSettings,
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
    .settings = kSettings,
    .packed_by_default = true,
    .tied_to = kTiedTo,
};

}  // namespace weightcast::bridge
