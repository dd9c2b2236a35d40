#include "bridge/shard_dir.h"

#include <algorithm>
#include <map>

#include "bridge/shard_keys.h"

namespace weightcast::bridge {
namespace {

std::string RankFile(const ShardDir& dir, RankId rank, const char* ending) {
  return os::JoinPath(dir.path, "rank" + std::to_string(rank.value) + ending);
}

// What a set of shards lacks is a fault of the set.
template <typename T>
Result<T> Needed(Result<T> found, const std::string& path, const std::string& hint) {
  if (found.ok() || found.error().code != Code::kNotFound) return found;
  return Error{Code::kInvalidData, path + ": is missing" + hint};
}

}  // namespace

std::string ShardDir::weight_path(RankId rank) const {
  return RankFile(*this, rank, ".safetensors");
}
std::string ShardDir::record_path(RankId rank) const { return RankFile(*this, rank, ".json"); }

Result<ShardDir> OpenShardDir(os::Fs& fs, const std::string& path, const std::string& config) {
  ShardDir dir;
  dir.path = path;
  dir.config_path = config.empty() ? os::JoinPath(path, "../hf_source/config.json") : config;
  const std::string topology = os::JoinPath(path, "topology.json");
  const Bytes trainer = WC_TRY(Needed(fs.ReadAll(topology, kTopologyBytesMax), topology, ""));
  dir.trainer = WC_TRY(MegatronConfig::Parse(AsText(trainer)).With(path));
  const Bytes model = WC_TRY(Needed(fs.ReadAll(dir.config_path, kHfConfigBytesMax), dir.config_path,
                                    config.empty() ? "; or give --config" : ""));
  dir.model = WC_TRY(HfConfig::Parse(AsText(model)).With(dir.config_path));
  return dir;
}

Status CheckPlainWeights(const ShardDir& dir) {
  if (!dir.model.quantized) return Ok();
  return Error{Code::kInvalidData,
               dir.config_path + ": has a quantization_config, but the trainer's weights are " +
                   std::string(tensor::DTypeName(dir.trainer.params_dtype)) +
                   "; give a config of the model without it"};
}

Status CheckRecordOf(os::Fs& fs, const ShardDir& dir, RankId rank) {
  const std::string path = dir.record_path(rank);
  if (!WC_TRY(fs.Exists(path))) return Ok();
  const Bytes record = WC_TRY(fs.ReadAll(path, kTopologyBytesMax));
  return CheckRankRecord(dir.trainer.topology, rank.value, AsText(record)).With(dir.path);
}

Result<ShardFile> ShardFile::Open(os::Fs& fs, const std::string& path) {
  ShardFile shard;
  shard.path_ = path;
  const std::unique_ptr<os::File> file =
      WC_TRY(Needed(fs.OpenFile(path, os::Open::kRead), path, ", a rank of topology.json's world"));
  shard.mapping_ = WC_TRY(file->Map(/*writable=*/false));
  const ByteSpan bytes = shard.mapping_->bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  const ByteSpan first8 = bytes.first(std::min<size_t>(8, bytes.size()));
  const int64_t prefix = WC_TRY(tensor::SafetensorsPrefixBytes(first8, size).With(path));
  shard.header_ = WC_TRY(
      tensor::ParseSafetensorsHeader(bytes.first(static_cast<size_t>(prefix)), size).With(path));
  for (const tensor::PlacedTensor& placed : shard.header_.tensors)
    shard.specs_.push_back(placed.spec);
  return shard;
}

Result<std::vector<ByteSpan>> ShardFile::Params(const layout::RankPlan& plan, RankId rank,
                                                std::vector<std::string>* ignored) const {
  std::vector<std::string> names = WC_TRY(CheckShardKeys(plan, specs_, rank).With(path_));
  if (ignored != nullptr) *ignored = std::move(names);
  std::map<std::string_view, const tensor::PlacedTensor*> by_name;
  for (const tensor::PlacedTensor& placed : header_.tensors) by_name[placed.spec.name] = &placed;
  std::vector<ByteSpan> params;
  for (const layout::Param& param : plan.params) {
    const tensor::PlacedTensor& placed = *by_name.at(param.key);
    params.push_back(mapping_->bytes().subspan(static_cast<size_t>(placed.offset),
                                               static_cast<size_t>(placed.spec.bytes())));
  }
  return params;
}

}  // namespace weightcast::bridge
