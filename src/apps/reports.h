// Reports as the JSON that docs/cli.md promises: what --json prints and what Python gets.
#pragma once

#include <string>
#include <vector>

#include "agent/agent.h"
#include "base/json.h"
#include "catalog/catalog.h"
#include "trainer/publisher.h"

namespace weightcast::apps {

Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const trainer::PublishReport& report);
// What `log` says of a version.
Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const std::vector<std::string>& aliases);
double Density(const catalog::Version& version);
Json ToJson(const agent::PullReport& report, const std::string& run_name);
Json ToJson(const agent::VerifyReport& report);

}  // namespace weightcast::apps
