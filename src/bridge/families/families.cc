#include "bridge/families/families.h"

#include <algorithm>

#include "base/text.h"

namespace weightcast::bridge {

Result<const Family*> FindFamily(const HfConfig& config) {
  std::vector<std::string> known;
  for (const Family* family : kFamilies) {
    for (const std::string_view architecture : family->architectures) {
      if (std::ranges::count(config.architectures, architecture) > 0) return family;
      known.emplace_back(architecture);
    }
  }
  return Error{Code::kInvalidData, "no family for architecture " + JoinNames(config.architectures) +
                                       "; known: " + JoinNames(known, known.size())};
}

}  // namespace weightcast::bridge
