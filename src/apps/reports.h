// Reports as the JSON that docs/cli.md promises: what --json prints and what Python gets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "base/json.h"
#include "catalog/catalog.h"
#include "trainer/publisher.h"

namespace weightcast::apps {

Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const trainer::PublishReport& report);
// Names that stand for a version.
std::vector<std::string> AliasesOf(const std::map<std::string, VersionUid>& aliases,
                                   const VersionUid& uid);
// What `log` says of a version.
Json ToJson(const catalog::Run& run, const catalog::Version& version,
            const std::vector<std::string>& aliases);
double Density(const catalog::PublishStats& stats);  // changed elements of all, 0..1
Json ToJson(const agent::PullReport& report, const std::string& run_name);
Json ToJson(const agent::VerifyReport& report);

}  // namespace weightcast::apps
