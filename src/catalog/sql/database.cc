#include "catalog/sql/database.h"

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace weightcast::catalog {
namespace {

Code CodeOf(int extended) {
  switch (extended & 0xff) {
    case SQLITE_FULL:
      return Code::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:  // our SQL is fixed: the schema is not what it should be
    case SQLITE_MISMATCH:
    case SQLITE_CONSTRAINT:
      return Code::kDataLoss;
    case SQLITE_IOERR:
      return extended == SQLITE_IOERR_SHORT_READ ? Code::kDataLoss : Code::kUnavailable;
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
    case SQLITE_INTERNAL:
      return Code::kInternal;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

// Binding fails only for a wrong parameter or a value beyond SQLite's limits (1 GB): bugs of ours.
void Statement::BindText(int parameter, std::string_view text) {
  WC_CHECK(sqlite3_bind_text64(statement_, parameter, text.data(), text.size(), SQLITE_STATIC,
                               SQLITE_UTF8) == SQLITE_OK);
}

void Statement::BindBlob(int parameter, ByteSpan bytes) {
  // A null pointer would bind NULL, not an empty blob.
  const void* data = bytes.empty() ? static_cast<const void*>("") : bytes.data();
  WC_CHECK(sqlite3_bind_blob64(statement_, parameter, data, bytes.size(), SQLITE_STATIC) ==
           SQLITE_OK);
}

Result<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  const Error error = database_.Failed(code);
  sqlite3_reset(statement_);
  return error;
}

std::string_view Statement::Text(int column) { return AsText(Blob(column)); }

ByteSpan Statement::Blob(int column) {
  // The order is SQLite's: the pointer first, then how many bytes lie there.
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return {};
  return {static_cast<const uint8_t*>(data), static_cast<size_t>(size)};
}

int64_t Statement::Int(int column) { return sqlite3_column_int64(statement_, column); }

void Statement::Reset() {
  sqlite3_reset(statement_);  // repeats the error of Step, which was returned there
  sqlite3_clear_bindings(statement_);
}

Result<std::unique_ptr<Database>> Database::Open(const std::string& path, Duration busy_timeout) {
  std::unique_ptr<Database> database(new Database(path));
  // Our own mutex orders the threads of a connection.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &database->connection_, flags, nullptr);
  if (code != SQLITE_OK) return database->Failed(code);
  if (sqlite3_db_readonly(database->connection_, "main") == 1) {
    return Error{Code::kUnavailable, path + ": the file is read-only"};
  }
  const auto ms = std::chrono::duration_cast<milliseconds>(busy_timeout).count();
  sqlite3_busy_timeout(database->connection_, static_cast<int>(std::min<int64_t>(ms, INT32_MAX)));
  sqlite3_extended_result_codes(database->connection_, 1);
  // The file may be damaged or foreign: believe its schema and its pages less.
  sqlite3_db_config(database->connection_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  WC_TRY(database->Run("PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON"));
  return database;
}

Database::~Database() { sqlite3_close(connection_); }

Status Database::Run(const char* sql) {
  const int code = sqlite3_exec(connection_, sql, nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return Ok();
  return Failed(code);
}

Result<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(connection_, sql.data(), static_cast<int>(sql.size()),
                                      &statement, nullptr);
  if (code != SQLITE_OK) return Failed(code);
  return Statement(*this, statement);
}

Result<int64_t> Database::QueryInt(std::string_view sql) {
  Statement statement = WC_TRY(Prepare(sql));
  if (WC_TRY(statement.Step())) return statement.Int(0);
  return Error{Code::kDataLoss, path_ + ": no answer to " + std::string(sql)};
}

Error Database::Failed(int code) const {
  const int extended = connection_ == nullptr ? code : sqlite3_extended_errcode(connection_);
  return {
      CodeOf(extended),
      path_ + ": " + (connection_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(connection_))};
}

}  // namespace weightcast::catalog
