// What one rank holds in memory: the bytes of its parameters, by the plan's order.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "layout/plan.h"
#include "os/fs.h"
#include "tensor/hf_directory.h"

namespace weightcast::trainer {

class ShardSet {
 public:
  // Maps one rank's safetensors file; no other file is opened. Errors: kInvalidData listing every key
  // that the plan does not know, that is missing, or whose shape or dtype differs, with the rank.
  static Result<ShardSet> OpenFile(os::Fs& fs, const std::string& path, const layout::RankPlan& plan,
                                   RankId rank);
  // Maps a Hugging Face directory for its identity plan.
  static Result<ShardSet> OpenDirectory(os::Fs& fs, const tensor::HfDirectory& directory,
                                        const layout::RankPlan& plan);
  // Tensors that live elsewhere (a trainer's memory): params[i] holds RankPlan::params[i].
  explicit ShardSet(std::vector<ByteSpan> params) : params_(std::move(params)) {}

  std::span<const ByteSpan> params() const { return params_; }

 private:
  std::vector<ByteSpan> params_;
  std::vector<std::unique_ptr<os::Mapping>> mappings_;
  std::unique_ptr<tensor::MappedWeights> weights_;
};

}  // namespace weightcast::trainer
