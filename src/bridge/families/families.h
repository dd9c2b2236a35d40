// The families, one line each.
#pragma once

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

extern const Family kLlama;
extern const Family kQwen2;
extern const Family kQwen3;

inline constexpr const Family* kFamilies[] = {
    &kLlama,
    &kQwen2,
    &kQwen3,
};

// The family that serves the model's architecture.
// Errors: kInvalidData naming the architecture and all that are known.
Result<const Family*> FindFamily(const HfConfig& config);

}  // namespace weightcast::bridge
