#include "bridge/declared.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kTextPrefix = "model.";

// The major number of "4.57.1"; 0 if it says none.
int MajorOf(std::string_view version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

}  // namespace

Result<ExpertLayout> ChooseExpertLayout(const Family& family, const HfConfig& model,
                                        std::string_view prefix, ExpertLayout told,
                                        const std::vector<std::string>& declared) {
  const std::string experts = std::string(prefix) + "mlp.experts.";
  const std::string one = experts + "0.*";
  const std::string all = experts + "gate_up_proj*";
  std::string one_name, packed_name;
  for (const std::string& name : declared) {
    if (MatchesGlob(one, name)) one_name = name;
    if (MatchesGlob(all, name)) packed_name = name;
  }
  if (!one_name.empty() && !packed_name.empty()) {
    return Error{Code::kInvalidData, "the receiver has experts by name (" + one_name +
                                         ") and packed ones (" + packed_name + ")"};
  }
  if (told != ExpertLayout::kAuto) {
    const bool packed_told = told != ExpertLayout::kPerName;
    const std::string& other = packed_told ? one_name : packed_name;
    if (other.empty()) return told;
    return Error{Code::kInvalidData,
                 std::string("expert layout ") + kExpertLayouts[static_cast<size_t>(told)] +
                     " is asked for, the receiver has " + (packed_told ? "per-name" : "packed") +
                     " ones (" + other + ")"};
  }
  const bool said = !one_name.empty() || !packed_name.empty();
  if (!(said ? one_name.empty() : family.packed_by_default)) return ExpertLayout::kPerName;
  return family.in_out_before_5 && MajorOf(model.transformers_version) < 5
             ? ExpertLayout::kPackedInOut
             : ExpertLayout::kPackedOutIn;
}

bool IsWrapped(const Family& family, const std::vector<std::string>& declared) {
  if (family.wrapped == nullptr) return false;
  const auto any_below = [&](const std::string& prefix) {
    const auto it = std::ranges::lower_bound(declared, prefix);
    return it != declared.end() && it->starts_with(prefix);
  };
  return any_below(std::string(family.wrapped) + "layers.") &&
         !any_below(std::string(kTextPrefix) + "layers.");
}

}  // namespace weightcast::bridge
