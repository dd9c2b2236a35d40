#include "bridge/compiled_plan.h"

#include "base/text.h"

namespace weightcast::bridge {
namespace {

using tensor::Inventory;
using tensor::TensorSpec;

// The reference tensors that the carry patterns declare.
Result<std::vector<TensorSpec>> Carried(const Inventory& produced, const CompileOptions& options) {
  std::vector<TensorSpec> carried;
  std::vector<std::string> clashes;
  std::vector<bool> used(options.carry.size());
  for (const TensorSpec& spec : options.reference->tensors()) {
    bool declared = false;
    for (size_t i = 0; i < options.carry.size(); ++i) {
      if (!MatchesGlob(options.carry[i], spec.name)) continue;
      used[i] = declared = true;
    }
    if (!declared) continue;
    if (produced.Find(spec.name) >= 0) clashes.push_back(spec.name);
    carried.push_back(spec);
  }
  if (!clashes.empty()) {
    return Error{Code::kInvalidArgument,
                 "the trainer produces what is to be carried: " + JoinNames(clashes)};
  }
  std::vector<std::string> idle;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) idle.push_back(Quoted(options.carry[i]));
  }
  if (idle.empty()) return carried;
  return Error{Code::kInvalidArgument, "no reference tensor matches --carry " + JoinNames(idle)};
}

}  // namespace

Result<std::vector<std::string>> CheckReference(const Inventory& produced,
                                                const CompileOptions& options) {
  std::vector<std::string> names;
  if (!options.reference) {
    if (options.carry.empty()) return names;
    return Error{Code::kInvalidArgument,
                 "tensors to carry (" + JoinNames(options.carry) +
                     ") need a seed or reference checkpoint that holds them"};
  }
  const std::vector<TensorSpec> carried = WC_TRY(Carried(produced, options));
  std::vector<TensorSpec> all = produced.tensors();
  all.insert(all.end(), carried.begin(), carried.end());
  const Inventory made = WC_TRY(Inventory::Make(std::move(all)));
  if (!(made == *options.reference)) {
    return Error{
        Code::kInvalidData,
        "what the trainer produces, with what is carried, is not what the reference holds: " +
            tensor::DifferenceText(*options.reference, made)};
  }
  for (const TensorSpec& spec : carried) names.push_back(spec.name);
  return names;
}

}  // namespace weightcast::bridge
