// What the names that a receiver declares tell: how experts are laid out, and whether the model is
// the text part of a larger one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

// How experts below `prefix` (a pattern) lie: told, else as the declared names are, else as the
// family's checkpoints have them. Shapes decide nothing: an expert may be square.
// Errors: kInvalidData if there are names of both kinds, or of the kind that was not told.
Result<ExpertLayout> ChooseExpertLayout(const Family& family, const HfConfig& model,
                                        std::string_view prefix, ExpertLayout told,
                                        const std::vector<std::string>& declared);

// Whether the declared names are those of a model that the family's is the text part of.
bool IsWrapped(const Family& family, const std::vector<std::string>& declared);

}  // namespace weightcast::bridge
