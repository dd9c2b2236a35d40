// What one rank holds in memory: the bytes of its parameters, by the plan's order.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/shard_dir.h"
#include "layout/plan.h"
#include "os/fs.h"
#include "tensor/hf_directory.h"

namespace weightcast::trainer {

class ShardSet {
 public:
  // Tensors that live elsewhere (a trainer's memory): params[i] holds RankPlan::params[i].
  explicit ShardSet(std::vector<ByteSpan> params) : params_(std::move(params)) {}
  // A rank's file. Errors: kInvalidData listing every key that the plan does not know, that is
  // missing, or whose shape or dtype differs, with the rank.
  static Result<ShardSet> FromFile(std::shared_ptr<const bridge::ShardFile> file,
                                   const layout::RankPlan& plan, RankId rank);
  // A Hugging Face directory, mapped, for its identity plan.
  static Result<ShardSet> FromDirectory(os::Fs& fs, const tensor::HfDirectory& directory,
                                        const layout::RankPlan& plan);

  std::span<const ByteSpan> params() const { return params_; }

 private:
  std::vector<ByteSpan> params_;
  std::shared_ptr<const void> owner_;  // of the bytes
};

}  // namespace weightcast::trainer
