#include <map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "catalog/rows.h"

namespace weightcast::catalog {
namespace {

using Table = std::map<std::string, Bytes, std::less<>>;

// Works on the table itself and remembers what each change replaced.
class MemoryTxn : public Txn {
 public:
  MemoryTxn(Table& table, int64_t now, bool writable)
      : table_(table), now_(now), writable_(writable) {}

  Result<std::optional<Bytes>> Get(const std::string& key) override {
    const auto it = table_.find(key);
    if (it == table_.end()) return std::optional<Bytes>();
    return std::optional<Bytes>(it->second);
  }
  Status Put(const std::string& key, ByteSpan value) override {
    Remember(key);
    table_.insert_or_assign(key, Bytes(value.begin(), value.end()));
    return Ok();
  }
  Status Delete(const std::string& key) override {
    Remember(key);
    table_.erase(key);
    return Ok();
  }
  Status Scan(const std::string& prefix, const Visit& visit) override {
    for (auto it = table_.lower_bound(prefix); it != table_.end(); ++it) {
      if (!it->first.starts_with(prefix)) break;
      WC_TRY(visit(it->first, it->second));
    }
    return Ok();
  }
  int64_t NowUnixMillis() override { return now_; }

  void Undo() {
    for (; !undo_.empty(); undo_.pop_back()) {
      auto& [key, old] = undo_.back();
      if (old) {
        table_.insert_or_assign(key, std::move(*old));
      } else {
        table_.erase(key);
      }
    }
  }

 private:
  void Remember(const std::string& key) {
    WC_CHECK(writable_);
    const auto it = table_.find(key);
    undo_.emplace_back(key, it == table_.end() ? std::nullopt : std::optional<Bytes>(it->second));
  }

  Table& table_;
  const int64_t now_;
  const bool writable_;
  std::vector<std::pair<std::string, std::optional<Bytes>>> undo_;
};

class MemoryRows : public Rows {
 public:
  explicit MemoryRows(std::function<int64_t()> now_unix_ms) : now_(std::move(now_unix_ms)) {}

  Status Read(const Work& work) override { return Run(work, false); }
  Status Write(const Work& work) override { return Run(work, true); }

 private:
  Status Run(const Work& work, bool writable) {
    MutexLock lock(mu_);
    MemoryTxn txn(table_, now_(), writable);
    Status status = work(txn);
    if (!status.ok()) txn.Undo();
    return status;
  }

  const std::function<int64_t()> now_;
  Mutex mu_;
  Table table_ WC_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Rows> NewMemoryRows(std::function<int64_t()> now_unix_ms) {
  return std::make_unique<MemoryRows>(std::move(now_unix_ms));
}

}  // namespace weightcast::catalog
