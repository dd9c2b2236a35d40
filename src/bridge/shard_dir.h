// A directory of trainer shards: topology.json, rankN.json, rankN.safetensors.
// docs/formats/shards.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "layout/plan.h"
#include "os/fs.h"
#include "tensor/safetensors.h"

namespace weightcast::bridge {

struct ShardDir {
  std::string path;
  std::string config_path;
  HfConfig model;
  MegatronConfig trainer;

  std::string weight_path(RankId rank) const;  // rankN.safetensors
  std::string record_path(RankId rank) const;  // rankN.json
};

// Reads topology.json and config.json (`config`, or ../hf_source/config.json if that is empty); no
// rank's file. Errors: as the parsers of both; kInvalidData naming the one that is missing.
Result<ShardDir> OpenShardDir(os::Fs& fs, const std::string& path, const std::string& config);

// Whether config.json may go with the shards' weights, which are not quantized. Errors:
// kInvalidData if it says that they are.
Status CheckPlainWeights(const ShardDir& dir);

// Checks a rank's record (rankN.json) against the computed coordinates; fine if there is none.
Status CheckRecordOf(os::Fs& fs, const ShardDir& dir, RankId rank);

// One rank's weights, mapped. No other file is opened.
class ShardFile {
 public:
  // Errors: kInvalidData: missing, truncated, not a weight file.
  static Result<ShardFile> Open(os::Fs& fs, const std::string& path);

  const std::vector<tensor::TensorSpec>& specs() const { return specs_; }
  // Bytes by RankPlan::params. `ignored`, if set, gets the names that are there and not sent.
  // Errors: as CheckShardKeys.
  Result<std::vector<ByteSpan>> Params(const layout::RankPlan& plan, RankId rank,
                                       std::vector<std::string>* ignored) const;

 private:
  std::string path_;
  std::unique_ptr<os::Mapping> mapping_;
  tensor::SafetensorsHeader header_;
  std::vector<tensor::TensorSpec> specs_;
};

}  // namespace weightcast::bridge
