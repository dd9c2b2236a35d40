// The catalog in one SQLite file (WAL): many processes of one host.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "base/units.h"
#include "catalog/catalog.h"
#include "os/world.h"

namespace weightcast::catalog {

struct SqliteOptions {
  Duration busy_timeout = seconds(30);
  bool create = true;  // false: kNotFound if the file is missing
};

// Errors: kConflict on a network file system (says to use a catalog server), kUnavailable (cannot
// open, read-only, full), kDataLoss (not our schema, a newer schema, a corrupt file).
Result<std::unique_ptr<Catalog>> OpenSqliteCatalog(os::World& world, const std::string& path,
                                                   SqliteOptions options = {});

}  // namespace weightcast::catalog
