// verify --engine: is a live engine at the version that it claims?
#pragma once

#include <string>

#include "apps/command.h"

namespace weightcast::apps {

// Emits the result. `run_name` may be empty. Errors: kDataLoss and kInvalidData (Verdict::Check),
// kConflict if it serves no version, or one of another run; those of engine::Face.
Status VerifyEngine(App& app, const std::string& url, const std::string& catalog_url,
                    const std::string& run_name, Duration timeout);

}  // namespace weightcast::apps
