#include "apps/run_choice.h"

#include <utility>
#include <vector>

#include "base/text.h"

namespace weightcast::apps {

Result<catalog::Run> ChooseRun(catalog::Catalog& catalog, const std::string& name) {
  if (!name.empty()) return catalog.FindRun(name);
  std::vector<catalog::Run> runs = WC_TRY(catalog.ListRuns());
  if (runs.size() == 1) return std::move(runs.front());
  if (runs.empty()) return Error{Code::kNotFound, "the catalog has no run"};
  std::vector<std::string> names;
  for (const catalog::Run& run : runs) names.push_back(run.name);
  return Error{Code::kInvalidArgument, "which run? Say --run; there are " + JoinNames(names)};
}

}  // namespace weightcast::apps
