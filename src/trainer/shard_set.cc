#include "trainer/shard_set.h"

#include <algorithm>
#include <map>

#include "bridge/shard_keys.h"
#include "tensor/safetensors.h"

namespace weightcast::trainer {

Result<ShardSet> ShardSet::OpenFile(os::Fs& fs, const std::string& path,
                                    const layout::RankPlan& plan, RankId rank) {
  std::unique_ptr<os::File> file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  ShardSet set({});
  set.mappings_.push_back(WC_TRY(file->Map(/*writable=*/false)));
  const ByteSpan bytes = set.mappings_.front()->bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t prefix = WC_TRY(
      tensor::SafetensorsPrefixBytes(bytes.first(std::min<size_t>(8, bytes.size())), size).With(path));
  const tensor::SafetensorsHeader header =
      WC_TRY(tensor::ParseSafetensorsHeader(bytes.first(static_cast<size_t>(prefix)), size).With(path));

  std::vector<tensor::TensorSpec> specs;
  for (const tensor::PlacedTensor& placed : header.tensors) specs.push_back(placed.spec);
  WC_TRY(bridge::CheckShardKeys(plan, specs, rank).With(path));

  std::map<std::string_view, const tensor::PlacedTensor*> by_name;
  for (const tensor::PlacedTensor& placed : header.tensors) by_name[placed.spec.name] = &placed;
  for (const layout::Param& param : plan.params) {
    const tensor::PlacedTensor& placed = *by_name.at(param.key);
    set.params_.push_back(bytes.subspan(static_cast<size_t>(placed.offset),
                                        static_cast<size_t>(placed.spec.bytes())));
  }
  return set;
}

Result<ShardSet> ShardSet::OpenDirectory(os::Fs& fs, const tensor::HfDirectory& directory,
                                         const layout::RankPlan& plan) {
  ShardSet set({});
  set.weights_ = std::make_unique<tensor::MappedWeights>(
      WC_TRY(tensor::MappedWeights::Map(fs, directory, /*writable=*/false)));
  for (const layout::Param& param : plan.params) {
    const int64_t index = directory.inventory()->Find(param.key);
    WC_CHECK(index >= 0);  // the identity plan was made from this inventory
    set.params_.push_back(set.weights_->tensor(static_cast<size_t>(index)));
  }
  return set;
}

}  // namespace weightcast::trainer
