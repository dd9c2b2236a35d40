// Who will receive the tensors declares their names: a checkpoint by its inventory, an engine by a
// list. What is produced and carried must be exactly these.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "bridge/compiled_plan.h"

namespace weightcast::bridge {

inline constexpr int64_t kNamesBytesMax = 256 * kMiB;

// Names from a checkpoint's index (model.safetensors.index.json), a JSON list of names, or one name
// a line. Sorted. Errors: kInvalidData: none of these, a name twice, none at all.
Result<std::vector<std::string>> ParseNames(std::string_view text);

// Those that the options declare, by a reference or else by names, sorted; empty if they declare
// none.
std::vector<std::string> DeclaredNames(const CompileOptions& options);

// Compares what is produced with what is declared, and gives the names of the carried tensors.
// Errors: those of CompilePlan about references and carry patterns.
Result<std::vector<std::string>> CompareWithReceiver(const tensor::Inventory& produced,
                                                     const CompileOptions& options);

}  // namespace weightcast::bridge
