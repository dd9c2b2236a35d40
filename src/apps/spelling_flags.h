// Options about how a trainer's tensors become a checkpoint's, where nothing else tells.
#pragma once

#include <string>

#include "apps/flags.h"
#include "bridge/compiled_plan.h"
#include "bridge/megatron_config.h"

namespace weightcast::apps {

// What no config says: how the trainer spells it ("--mtp-inner", "--mtp-at-root", "--tower"), how
// the checkpoint has it ("--expert-layout").
struct SpellingFlags {
  std::string expert_layout = bridge::kExpertLayouts[0];
  std::string mtp_inner;
  bool mtp_at_root = false;
  std::string tower;

  bridge::Spelling trainers() const {
    return {mtp_inner, mtp_at_root ? std::optional(true) : std::nullopt, tower};
  }
};
// How the plan is made; `value` is one of bridge::kModes.
void AddMode(Flags& flags, std::string* value);
void AddExpertLayout(Flags& flags, std::string* value);
void AddSpellingFlags(Flags& flags, SpellingFlags* values);

}  // namespace weightcast::apps
