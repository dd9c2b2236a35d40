// One SQLite connection and its statements: SQLite's C calls behind Status and ownership. One
// thread at a time; not to be carried across fork().
//
// Errors: kUnavailable (locked beyond the busy timeout, cannot open, read-only, I/O),
// kResourceExhausted (disk full), kDataLoss (not a database, corrupt). The message is
// "PATH: <what SQLite says>".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

struct sqlite3;
struct sqlite3_stmt;

namespace weightcast::catalog {

class Database;

class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Parameters count from 1, columns from 0. Bound bytes must live until Reset.
  void BindText(int parameter, std::string_view text);
  void BindBlob(int parameter, ByteSpan bytes);
  // True if there is a row to look at.
  Result<bool> Step();
  // Views into the current row, valid until the next Step or Reset.
  std::string_view Text(int column);
  ByteSpan Blob(int column);
  int64_t Int(int column);
  // Ready to be bound and stepped again.
  void Reset();

 private:
  friend class Database;
  Statement(Database& database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}

  Database& database_;
  sqlite3_stmt* statement_;
};

class Database {
 public:
  // `path` is absolute. Makes the file if it is missing.
  static Result<std::unique_ptr<Database>> Open(const std::string& path, Duration busy_timeout);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Statements without parameters or rows that matter, separated by ';'.
  Status Run(const char* sql);
  Result<Statement> Prepare(std::string_view sql);
  // The single number that a query gives.
  Result<int64_t> QueryInt(std::string_view sql);

 private:
  friend class Statement;
  explicit Database(std::string path) : path_(std::move(path)) {}
  Error Failed(int code) const;

  const std::string path_;
  sqlite3* connection_ = nullptr;
};

}  // namespace weightcast::catalog
