#include "apps/spelling_flags.h"

#include "bridge/mode.h"

namespace weightcast::apps {

void AddMode(Flags& flags, std::string* value) {
  flags.Choice("--mode", value, {std::begin(bridge::kModes), std::end(bridge::kModes)},
               "how checkpoint tensors are found in the trainer's: by the family's rules, or by a "
               "converter written by hand; both give the same plan");
}

void AddExpertLayout(Flags& flags, std::string* value) {
  flags.Choice("--expert-layout", value,
               {std::begin(bridge::kExpertLayouts), std::end(bridge::kExpertLayouts)},
               "a tensor for each expert, or one for all ([expert, out, in] or [expert, in, out]); "
               "auto: as the reference has them, else as the family's checkpoints do");
}

void AddSpellingFlags(Flags& flags, SpellingFlags* values) {
  AddExpertLayout(flags, &values->expert_layout);
  flags
      .Choice("--mtp-inner", &values->mtp_inner,
              {std::begin(bridge::kMtpInners), std::end(bridge::kMtpInners)},
              "what the trainer calls the layer inside of a prediction module, where neither "
              "topology nor shard tells")
      .Bool("--mtp-at-root", &values->mtp_at_root,
            "prediction modules lie beside the language model, not in it; likewise")
      .Choice("--tower", &values->tower, {std::begin(bridge::kTowers), std::end(bridge::kTowers)},
              "vision tower: Megatron's own, or the checkpoint's modules kept below that name; "
              "likewise");
}

}  // namespace weightcast::apps
