// config.json and topology.json, as other programs wrote them, up to the plan: one text, cut by the
// first line "---". Both ways to a plan take them; where both have one it is the same.
#include "base/bytes.h"
#include "bridge/compile_plan.h"
#include "bridge/raw/raw.h"
#include "fuzz/accepted.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kCut = "\n---\n";

// What a plan's length is proportional to: more of it finds nothing else, only later.
constexpr int32_t kRanksMax = 32;
constexpr int32_t kChunksMax = 32;
constexpr int32_t kModulesMax = 8;  // decoder layers, and those that predict further tokens
constexpr std::string_view kCounts[] = {
    "num_attention_heads",    "num_key_value_heads", "linear_num_key_heads",
    "linear_num_value_heads", "num_experts",         "num_local_experts",
    "n_routed_experts",       "vision_config.depth", "vision_config.num_heads"};
constexpr int64_t kCountMax = 64;

bool IsSmall(const HfConfig& model, const MegatronConfig& trainer) {
  const layout::Topology& t = trainer.topology;
  if (t.world > kRanksMax || t.pp * t.vpp > kChunksMax) return false;
  if (t.num_layers > kModulesMax || trainer.mtp_layers > kModulesMax) return false;
  for (const std::string_view count : kCounts) {
    if (model.Int(count).value_or(0) > kCountMax) return false;
  }
  const auto deepstack = model.int_lists.find("vision_config.deepstack_visual_indexes");
  return deepstack == model.int_lists.end() || deepstack->second.size() <= kModulesMax;
}

bool CompileBoth(std::string_view text) {
  const size_t cut = text.find(kCut);
  if (cut == std::string_view::npos) return false;
  const auto model = HfConfig::Parse(text.substr(0, cut));
  const auto trainer = MegatronConfig::Parse(text.substr(cut + kCut.size()));
  if (!model.ok() || !trainer.ok()) return false;
  if (!IsSmall(*model, *trainer)) return false;
  const auto bridge = CompilePlan(*model, *trainer, {});
  const auto raw = CompileRaw(*model, *trainer, {});
  if (!bridge.ok() || !raw.ok()) return false;
  WC_CHECK(bridge->hash == raw->hash);
  return true;
}

}  // namespace
}  // namespace weightcast::bridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::bridge::CompileBoth(weightcast::AsText({data, size}))) {
    weightcast::fuzz::Accepted(data, size);
  }
  return 0;
}
