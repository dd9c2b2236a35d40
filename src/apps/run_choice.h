// Which run a command means when --run may be left out.
#pragma once

#include <string>

#include "base/status.h"
#include "catalog/catalog.h"

namespace weightcast::apps {

// The run of that name; of an empty name, the only run. Errors: kInvalidArgument naming the runs if
// there are several, kNotFound.
Result<catalog::Run> ChooseRun(catalog::Catalog& catalog, const std::string& name);

}  // namespace weightcast::apps
