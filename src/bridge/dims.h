// The numbers behind Dim, read from config.json and checked against what the trainer says.
#pragma once

#include <array>
#include <bitset>

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

using DimSet = std::bitset<kDims>;

// The numbers that a rule's sizes are made of.
DimSet DimsOf(const Rule& rule);

struct Dims {
  std::array<int64_t, kDims> values{};  // 0: not read

  int64_t operator[](Dim d) const { return values[static_cast<size_t>(d)]; }
  int64_t operator()(const Extent& e) const;
};

// Errors: kInvalidData listing every wanted size that is missing, not in 1..2^24, or does not
// divide.
Result<Dims> ReadDims(const HfConfig& config, const DimSet& wanted);

// Errors: kInvalidData listing every wanted number in which the model's and the trainer's config
// differ.
Status CheckSameModel(const HfConfig& config, const Dims& dims, const DimSet& wanted, bool tied,
                      const MegatronConfig& trainer);

}  // namespace weightcast::bridge
