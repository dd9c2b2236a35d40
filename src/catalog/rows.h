// Rows: the tiny transactional table under the catalog. The protocol (row_catalog.h) is written
// once over it; a database only has to keep bytes under keys and to order transactions.
// docs/design/catalog_rows.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace weightcast::catalog {

// One transaction; valid during the call that got it, on that thread.
// Errors of every method: kDataLoss naming the row (it does not verify), kUnavailable (locked, not
// reachable, read-only), kResourceExhausted (disk full). After an error the work must return it.
class Txn {
 public:
  virtual ~Txn() = default;

  virtual Result<std::optional<Bytes>> Get(const std::string& key) = 0;
  // Both only in Rows::Write. Deleting what is not there is fine.
  virtual Status Put(const std::string& key, ByteSpan value) = 0;
  virtual Status Delete(const std::string& key) = 0;
  // Every row whose key starts with `prefix`, by key bytes, until `visit` fails. `visit` may Get,
  // and must not Put or Delete.
  using Visit = std::function<Status(std::string_view key, ByteSpan value)>;
  virtual Status Scan(const std::string& prefix, const Visit& visit) = 0;
  // The database's clock, the only one that deadlines and leases are measured by.
  virtual int64_t NowUnixMillis() = 0;
};

class Rows {
 public:
  virtual ~Rows() = default;

  // `work` may be run again if the database asks for it: it must begin by resetting what it fills
  // in.
  using Work = std::function<Status(Txn&)>;
  // Sees one committed state.
  virtual Status Read(const Work& work) = 0;
  // Serial with every other Write, of any process. If `work` fails, nothing has changed and its
  // error is returned; if it succeeds, the change is durable (as far as the backend is).
  virtual Status Write(const Work& work) = 0;
};

// Rows of this process only.
std::unique_ptr<Rows> NewMemoryRows(std::function<int64_t()> now_unix_ms);

}  // namespace weightcast::catalog
