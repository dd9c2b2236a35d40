// Shards of all ranks to an ordinary Hugging Face directory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "bridge/compiled_plan.h"
#include "bridge/mode.h"
#include "os/fs.h"

namespace weightcast::bridge {

struct ConvertOptions {
  Mode mode = Mode::kBridge;
  std::string config;     // config.json; default ../hf_source/config.json beside the shards
  std::string reference;  // a checkpoint directory whose tensors the result must have
  std::vector<std::string> carry;
  std::vector<std::string> ignore;
  ExpertLayout expert_layout = ExpertLayout::kAuto;
  bool check_replicas = true;  // compare the bytes of what several ranks hold
  int threads = 0;             // 0: all CPUs
  int64_t file_bytes_max = 5 * kGiB;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; any thread
};

struct ConvertReport {
  CompiledPlan compiled;
  std::vector<std::string> ignored;  // "rank N KEY", there and not sent
  int64_t bytes = 0;                 // of weights written
};

// Writes `out` in one step: weight files, the index if there are several, and the side files beside
// the reference (else beside config.json). Memory: mappings only. Not synced: the death of the host
// may leave a part.
// Errors: kConflict if `out` holds anything; as CompilePlan (or CompileRaw) and CheckShardKeys, of
// all ranks at once; kDataLoss naming every replica that differs.
Result<ConvertReport> ConvertShards(os::Fs& fs, const std::string& shards, const std::string& out,
                                    const ConvertOptions& options);

}  // namespace weightcast::bridge
