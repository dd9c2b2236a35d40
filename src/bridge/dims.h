// The numbers behind Dim, read from config.json and checked against what the trainer says.
#pragma once

#include <array>

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

struct Dims {
  std::array<int64_t, kDims> values{};

  int64_t operator[](Dim d) const { return values[static_cast<size_t>(d)]; }
  int64_t operator()(Extent e) const { return (*this)[e.a] * (*this)[e.b]; }
};

// Errors: kInvalidData listing every size that is missing, not in 1..2^24, or does not divide.
Result<Dims> ReadDims(const HfConfig& config);

// Errors: kInvalidData listing every number in which the model's and the trainer's config differ.
Status CheckSameModel(const HfConfig& config, const Dims& dims, bool tied,
                      const MegatronConfig& trainer);

}  // namespace weightcast::bridge
