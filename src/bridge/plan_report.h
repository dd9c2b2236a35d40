// How fast plans of large models are made and applied, against memcpy. For `weightcast bench plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/mode.h"
#include "os/world.h"

namespace weightcast::bridge {

struct PlanReport {
  int64_t ranks = 0;
  int64_t tensors = 0;
  int64_t slices = 0;  // of all ranks
  int64_t bytes = 0;   // of the model
  double compile_seconds = 0;
  PlanHash hash;
  // Of one thread that fills all canonical tensors from all ranks' shards, in memory; and of memcpy
  // over as much. 0 if not applied.
  double apply_gb_per_s = 0;
  double memcpy_gb_per_s = 0;
};

// Names of the models that are known here, in sizes that were published or close to them.
std::vector<std::string> PlanBenchModels();

// Compiles a model's plan; if `apply`, applies it, too: twice the model's bytes of memory.
// Errors: kInvalidArgument: no such model, or one too large to apply.
Result<PlanReport> RunPlanBench(const std::string& model, Mode mode, bool apply, os::Clock& clock);

}  // namespace weightcast::bridge
