#include "catalog/sql/sqlite.h"

#include <iterator>
#include <utility>

#include "catalog/row_catalog.h"
#include "catalog/sql/database.h"
#include "catalog/sql/sqlite_rows.h"

namespace weightcast::catalog {
namespace {

// "WCat": marks the file as ours.
constexpr int64_t kApplicationId = 0x57436174;

// The n-th brings schema n to schema n + 1; they are never changed, only added to.
constexpr const char* kMigrations[] = {
    "CREATE TABLE rows (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, sum BLOB NOT NULL) "
    "WITHOUT ROWID",
    // Rounds: rows of a new kind, counted in rows of the old ones, where a release that knows
    // schema 1 would lose the count. Nothing changes but the number.
    "SELECT 1",
};
constexpr auto kSchema = static_cast<int64_t>(std::size(kMigrations));

// Which schema the file has: 0 for an empty file. Errors: kDataLoss if it is not one of ours.
Result<int64_t> SchemaOf(Database& database, const std::string& path) {
  const int64_t application = WC_TRY(database.QueryInt("PRAGMA application_id"));
  const int64_t schema = WC_TRY(database.QueryInt("PRAGMA user_version"));
  const int64_t objects = WC_TRY(database.QueryInt("SELECT count(*) FROM sqlite_schema"));
  if (application == 0 && schema == 0 && objects == 0) return 0;
  if (application != kApplicationId || schema < 1) {
    return Error{Code::kDataLoss, path + ": a database, but not a catalog (application id " +
                                      std::to_string(application) + ", schema " +
                                      std::to_string(schema) + ")"};
  }
  if (schema > kSchema) {
    return Error{Code::kDataLoss, path + ": schema " + std::to_string(schema) +
                                      " is newer than this release, which knows schema " +
                                      std::to_string(kSchema)};
  }
  const int64_t tables = WC_TRY(database.QueryInt(
      "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'rows'"));
  if (tables == 1 && objects == 1) return schema;
  return Error{Code::kDataLoss, path + ": expected the table \"rows\" and nothing else, found " +
                                    std::to_string(objects) + " tables and indexes"};
}

// The same by one transaction, so that a migration by another process is seen as a whole or not.
Result<int64_t> LookAtSchema(Database& database, const std::string& path) {
  WC_TRY(database.Run("BEGIN"));
  Result<int64_t> schema = SchemaOf(database, path);
  const Status ended = database.Run("ROLLBACK");
  if (schema.ok()) WC_TRY(ended);
  return schema;
}

// Another process may do the same at the same time: whoever has the lock looks again.
Status Migrate(Database& database, const std::string& path) {
  WC_TRY(database.Run("BEGIN IMMEDIATE"));
  const auto migrate = [&]() -> Status {
    const int64_t schema = WC_TRY(SchemaOf(database, path));
    for (int64_t i = schema; i < kSchema; ++i) WC_TRY(database.Run(kMigrations[i]));
    WC_TRY(database.Run(("PRAGMA application_id=" + std::to_string(kApplicationId)).c_str()));
    WC_TRY(database.Run(("PRAGMA user_version=" + std::to_string(kSchema)).c_str()));
    return database.Run("COMMIT");
  };
  Status status = migrate();
  if (!status.ok()) static_cast<void>(database.Run("ROLLBACK"));
  return status;
}

// The change to WAL needs the file alone and does not wait for it by itself.
Status UseWal(Database& database, os::Clock& clock, Duration timeout) {
  const os::Deadline deadline(clock, timeout);
  for (;;) {
    Status status = database.Run("PRAGMA journal_mode=WAL");
    if (status.ok() || status.error().code != Code::kUnavailable || deadline.passed()) {
      return status;
    }
    clock.SleepFor(milliseconds(5));
  }
}

}  // namespace

Result<std::unique_ptr<Catalog>> OpenSqliteCatalog(os::World& world, const std::string& path,
                                                   SqliteOptions options) {
  const std::string absolute = WC_TRY(world.fs.Absolute(path));
  const std::string directory = os::ParentPath(absolute);
  if (!options.create && !WC_TRY(world.fs.Exists(absolute))) {
    return Error{Code::kUnavailable, absolute + ": no catalog there"};
  }
  if (options.create) WC_TRY(world.fs.MakeDirectories(directory));
  if (WC_TRY(world.fs.Kind(directory)) == os::FsKind::kNetwork) {
    return Error{Code::kConflict, absolute +
                                      ": SQLite's locks are not to be trusted on a network file "
                                      "system; keep the file on a local disk of one host and "
                                      "share it by `weightcast serve`"};
  }
  std::unique_ptr<Database> database =
      WC_TRY(Database::Open(absolute, options.busy_timeout).With("catalog"));
  const int64_t schema = WC_TRY(LookAtSchema(*database, absolute));
  if (schema == 0 && !options.create) {
    return Error{Code::kDataLoss, absolute + ": an empty file, not a catalog"};
  }
  if (schema < kSchema) WC_TRY(Migrate(*database, absolute));
  WC_TRY(UseWal(*database, world.clock, options.busy_timeout));
  // A READY version must survive the loss of power: it may be deleted from the trainer's mind.
  WC_TRY(database->Run("PRAGMA synchronous=FULL"));
  return RowCatalog::Open(WC_TRY(NewSqliteRows(std::move(database), world.clock)), world.random);
}

}  // namespace weightcast::catalog
