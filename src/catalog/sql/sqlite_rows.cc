#include "catalog/sql/sqlite_rows.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/mutex.h"

namespace weightcast::catalog {
namespace {

// What a row must prove: a flipped byte anywhere in key or value does not pass, nor does a value
// that lies under another key.
Sha256Digest SumOf(std::string_view key, ByteSpan value) {
  uint8_t key_bytes[8];
  StoreLe(key_bytes, uint64_t{key.size()});
  Sha256 sha;
  sha.Update(key_bytes);
  sha.Update(AsBytes(key));
  sha.Update(value);
  return sha.Finish();
}

Status CheckSum(std::string_view key, ByteSpan value, ByteSpan sum) {
  const Sha256Digest expected = SumOf(key, value);
  if (std::ranges::equal(sum, expected.bytes())) return Ok();
  return Error{Code::kDataLoss, "catalog row " + std::string(key) +
                                    " does not verify: expected SHA-256 " + Hex(sum) + ", found " +
                                    expected.hex()};
}

struct Statements {
  Statement get;
  Statement put;
  Statement remove;
};

class SqliteTxn : public Txn {
 public:
  SqliteTxn(Database& database, Statements& statements, int64_t now, bool writable)
      : database_(database), statements_(statements), now_(now), writable_(writable) {}

  Result<std::optional<Bytes>> Get(const std::string& key) override {
    Statement& get = statements_.get;
    get.Reset();
    get.BindText(1, key);
    if (!WC_TRY(get.Step())) return std::optional<Bytes>();
    const ByteSpan value = get.Blob(0);
    WC_TRY(CheckSum(key, value, get.Blob(1)));
    return std::optional<Bytes>(Bytes(value.begin(), value.end()));
  }

  Status Put(const std::string& key, ByteSpan value) override {
    WC_CHECK(writable_);
    const Sha256Digest sum = SumOf(key, value);
    Statement& put = statements_.put;
    put.Reset();
    put.BindText(1, key);
    put.BindBlob(2, value);
    put.BindBlob(3, sum.bytes());
    WC_TRY(put.Step());
    return Ok();
  }

  Status Delete(const std::string& key) override {
    WC_CHECK(writable_);
    statements_.remove.Reset();
    statements_.remove.BindText(1, key);
    WC_TRY(statements_.remove.Step());
    return Ok();
  }

  // A statement of its own: `visit` may Get.
  Status Scan(const std::string& prefix, const Visit& visit) override {
    Statement scan =
        WC_TRY(database_.Prepare("SELECT key, value, sum FROM rows WHERE key >= ?1 ORDER BY key"));
    scan.BindText(1, prefix);
    while (WC_TRY(scan.Step())) {
      const std::string_view key = scan.Text(0);
      if (!key.starts_with(prefix)) break;
      WC_TRY(CheckSum(key, scan.Blob(1), scan.Blob(2)));
      WC_TRY(visit(key, scan.Blob(1)));
    }
    return Ok();
  }

  int64_t NowUnixMillis() override { return now_; }

 private:
  Database& database_;
  Statements& statements_;
  const int64_t now_;
  const bool writable_;
};

class SqliteRows : public Rows {
 public:
  SqliteRows(std::unique_ptr<Database> database, Statements statements, os::Clock& clock)
      : database_(std::move(database)), statements_(std::move(statements)), clock_(clock) {}

  Status Read(const Work& work) override { return Transact("BEGIN", work, false); }
  // IMMEDIATE: the write lock is taken (or waited for) before anything is read.
  Status Write(const Work& work) override { return Transact("BEGIN IMMEDIATE", work, true); }

 private:
  Status Transact(const char* begin, const Work& work, bool writable) {
    MutexLock lock(mu_);
    WC_TRY(database_->Run(begin));
    SqliteTxn txn(*database_, statements_, clock_.UnixMillis(), writable);
    Status status = work(txn);
    for (Statement* s : {&statements_.get, &statements_.put, &statements_.remove}) s->Reset();
    if (status.ok()) status = database_->Run("COMMIT");
    if (status.ok()) return status;
    // Fails only if SQLite has rolled back by itself (disk full, I/O): then nothing is left to
    // undo.
    static_cast<void>(database_->Run("ROLLBACK"));
    return status;
  }

  Mutex mu_;
  const std::unique_ptr<Database> database_;
  Statements statements_;
  os::Clock& clock_;
};

}  // namespace

Result<std::unique_ptr<Rows>> NewSqliteRows(std::unique_ptr<Database> database, os::Clock& clock) {
  Statements statements{WC_TRY(database->Prepare("SELECT value, sum FROM rows WHERE key = ?1")),
                        WC_TRY(database->Prepare(
                            "INSERT OR REPLACE INTO rows (key, value, sum) VALUES (?1, ?2, ?3)")),
                        WC_TRY(database->Prepare("DELETE FROM rows WHERE key = ?1"))};
  return std::unique_ptr<Rows>(
      std::make_unique<SqliteRows>(std::move(database), std::move(statements), clock));
}

}  // namespace weightcast::catalog
