#include "trainer/shard_set.h"

namespace weightcast::trainer {

Result<ShardSet> ShardSet::FromFile(std::shared_ptr<const bridge::ShardFile> file,
                                    const layout::RankPlan& plan, RankId rank) {
  ShardSet set(WC_TRY(file->Params(plan, rank, /*ignored=*/nullptr)));
  set.owner_ = std::move(file);
  return set;
}

Result<ShardSet> ShardSet::FromDirectory(os::Fs& fs, const tensor::HfDirectory& directory,
                                         const layout::RankPlan& plan) {
  auto weights = std::make_shared<tensor::MappedWeights>(
      WC_TRY(tensor::MappedWeights::Map(fs, directory, /*writable=*/false)));
  ShardSet set({});
  for (const layout::Param& param : plan.params) {
    const int64_t index = directory.inventory()->Find(param.key);
    WC_CHECK(index >= 0);  // the identity plan was made from this inventory
    set.params_.push_back(weights->tensor(static_cast<size_t>(index)));
  }
  set.owner_ = std::move(weights);
  return set;
}

}  // namespace weightcast::trainer
