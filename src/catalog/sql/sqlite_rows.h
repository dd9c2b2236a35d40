// Rows in one SQLite file: table rows(key, value, sum). docs/design/catalog_rows.md.
#pragma once

#include <memory>

#include "base/status.h"
#include "catalog/rows.h"
#include "catalog/sql/database.h"
#include "os/world.h"

namespace weightcast::catalog {

// Takes a database whose schema has been checked. `clock` is the host's: with one host, the
// database's clock is nothing else.
Result<std::unique_ptr<Rows>> NewSqliteRows(std::unique_ptr<Database> database, os::Clock& clock);

}  // namespace weightcast::catalog
