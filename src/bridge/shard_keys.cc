#include "bridge/shard_keys.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace weightcast::bridge {

Result<std::vector<std::string>> CheckShardKeys(const layout::RankPlan& plan,
                                                const std::vector<tensor::TensorSpec>& shard,
                                                RankId rank) {
  std::vector<const tensor::TensorSpec*> found;
  for (const tensor::TensorSpec& spec : shard) found.push_back(&spec);
  std::ranges::sort(found, {},
                    [](const tensor::TensorSpec* s) { return std::string_view(s->name); });

  std::vector<std::string> ignored, unknown, missing, different;
  auto param = plan.params.begin();
  const auto miss_below = [&](std::string_view name) {
    for (; param != plan.params.end() && param->key < name; ++param) missing.push_back(param->key);
  };
  for (const tensor::TensorSpec* spec : found) {
    miss_below(spec->name);
    if (param != plan.params.end() && param->key == spec->name) {
      if (param->dtype != spec->dtype || param->shape != spec->shape) {
        different.push_back(spec->name + " is " + tensor::SpecText(*spec) + ", expected " +
                            tensor::SpecText({param->key, param->dtype, param->shape}));
      }
      ++param;
    } else if (std::ranges::any_of(plan.ignored, [&](const std::string& pattern) {
                 return MatchesGlob(pattern, spec->name);
               })) {
      ignored.push_back(spec->name);
    } else {
      unknown.push_back(spec->name);
    }
  }
  for (; param != plan.params.end(); ++param) missing.push_back(param->key);

  std::vector<std::string> faults;
  if (!unknown.empty()) faults.push_back("unknown: " + JoinNames(unknown));
  if (!missing.empty()) faults.push_back("missing: " + JoinNames(missing));
  if (!different.empty()) faults.push_back("different: " + JoinNames(different));
  if (faults.empty()) return ignored;
  std::string text =
      "shard of rank " + std::to_string(rank.value) + " is not what the plan expects";
  for (const std::string& fault : faults) text += "; " + fault;
  return Error{Code::kInvalidData, text};
}

std::vector<tensor::TensorSpec> WithoutAliases(const layout::RankPlan& plan,
                                               const std::vector<tensor::TensorSpec>& shard,
                                               const SameTensor& same) {
  const auto standing = [&](const std::string& name) -> const std::string& {
    const auto it = same.find(name);
    return it == same.end() ? name : it->second;
  };
  const auto known = [&](const std::string& name) {
    return std::ranges::binary_search(plan.params, name, {}, &layout::Param::key);
  };
  std::set<std::string> covered;
  for (const tensor::TensorSpec& spec : shard) {
    if (known(spec.name)) covered.insert(standing(spec.name));
  }
  std::vector<tensor::TensorSpec> kept;
  for (const tensor::TensorSpec& spec : shard) {
    if (known(spec.name) || !covered.contains(standing(spec.name))) kept.push_back(spec);
  }
  return kept;
}

}  // namespace weightcast::bridge
