// The inside of replay planning and retention: walks over lineage. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "catalog/catalog.h"

namespace weightcast::catalog {

// "version 3 (1a2b3c4d)"
std::string VersionText(const Version& version);

// ChooseReplay with versions fetched as the walk asks for them: null for one that is not known.
// What it gave must stay valid until the walk ends.
using FindVersionFn = std::function<Result<const Version*>(const VersionUid&)>;
Result<ReplayPlan> ChooseReplay(const FindVersionFn& find, const ReplayRequest& request);

// READY versions whose only complete chains (from a full version or a seed, over READY versions)
// lead through `removed`. Unsorted.
std::vector<const Version*> LostWithout(const std::vector<Version>& versions,
                                        const VersionUid& removed);

}  // namespace weightcast::catalog
