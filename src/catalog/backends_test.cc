// The backends that the conformance suite runs on.
#include <atomic>

#include "catalog/catalog_conformance.h"
#include "catalog/sql/sqlite.h"
#include "os/temp_dir.h"

namespace weightcast::catalog {
namespace {

// A clock whose calendar moves by hand; waiting is real.
class HandClock : public os::Clock {
 public:
  SteadyTime Now() override { return os::RealWorld().clock.Now(); }
  int64_t UnixMillis() override { return unix_ms_; }
  void SleepFor(Duration d) override { os::RealWorld().clock.SleepFor(d); }
  void Advance(Duration by) { unix_ms_ += std::chrono::duration_cast<milliseconds>(by).count(); }

 private:
  std::atomic<int64_t> unix_ms_ = 1'800'000'000'000;
};

class MemoryHome : public CatalogHome {
 public:
  MemoryHome() : catalog_(NewMemoryCatalog([this] { return clock_.UnixMillis(); })) {}
  Catalog& handle(size_t) override { return *catalog_; }
  size_t handles() const override { return 1; }
  bool Advance(Duration by) override {
    clock_.Advance(by);
    return true;
  }

 private:
  HandClock clock_;
  std::unique_ptr<Catalog> catalog_;
};

// Several connections to one file: each call comes from another one, as from other processes.
class SqliteHome : public CatalogHome {
 public:
  explicit SqliteHome(int handles) : directory_(os::RealWorld(), ScratchParent()) {
    for (int i = 0; i < handles; ++i) {
      handles_.push_back(
          Must(OpenSqliteCatalog(world_, os::JoinPath(directory_.path(), "catalog.db"))));
    }
  }
  Catalog& handle(size_t index) override { return *handles_[index]; }
  size_t handles() const override { return handles_.size(); }
  bool Advance(Duration by) override {
    clock_.Advance(by);
    return true;
  }

 private:
  HandClock clock_;
  os::World world_{os::RealWorld().fs, clock_, os::RealWorld().random, "boot"};
  os::TempDir directory_;
  std::vector<std::unique_ptr<Catalog>> handles_;
};

std::unique_ptr<CatalogHome> MakeMemoryHome() { return std::make_unique<MemoryHome>(); }
std::unique_ptr<CatalogHome> MakeSqliteHome() { return std::make_unique<SqliteHome>(1); }
std::unique_ptr<CatalogHome> MakeSqliteHomeOfTwo() { return std::make_unique<SqliteHome>(2); }

INSTANTIATE_TEST_SUITE_P(Memory, CatalogConformance, testing::Values(&MakeMemoryHome));
INSTANTIATE_TEST_SUITE_P(Sqlite, CatalogConformance, testing::Values(&MakeSqliteHome));
INSTANTIATE_TEST_SUITE_P(SqliteOfTwo, CatalogConformance, testing::Values(&MakeSqliteHomeOfTwo));

}  // namespace
}  // namespace weightcast::catalog
