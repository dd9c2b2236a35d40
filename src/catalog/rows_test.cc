// What rows.h promises, for every backend.
#include "catalog/rows.h"

#include <gmock/gmock.h>

#include <thread>

#include "catalog/catalog_conformance.h"
#include "catalog/sql/database.h"
#include "catalog/sql/sqlite.h"
#include "catalog/sql/sqlite_rows.h"
#include "os/temp_dir.h"

namespace weightcast::catalog {
namespace {

using testing::ElementsAre;

class RowsTest : public testing::TestWithParam<bool> {
 protected:
  RowsTest() : directory_(os::RealWorld(), ScratchParent()) {
    if (!GetParam()) {
      rows_ = NewMemoryRows([] { return int64_t{42}; });
      return;
    }
    const std::string path = os::JoinPath(directory_.path(), "rows.db");
    {
      Must(OpenSqliteCatalog(os::RealWorld(), path));
    }
    auto database = Must(Database::Open(path, seconds(60)));
    EXPECT_OK(database->Run("DELETE FROM rows"));
    rows_ = Must(NewSqliteRows(std::move(database), os::RealWorld().clock));
    other_ = Must(NewSqliteRows(Must(Database::Open(path, seconds(60))), os::RealWorld().clock));
  }

  // Another connection to the same rows, where there is such a thing.
  Rows& other() { return other_ != nullptr ? *other_ : *rows_; }

  Status Put(const std::string& key, const std::string& value) {
    return rows_->Write([&](Txn& txn) { return txn.Put(key, AsBytes(value)); });
  }
  std::vector<std::string> Scan(const std::string& prefix) {
    std::vector<std::string> found;
    EXPECT_OK(rows_->Read([&](Txn& txn) {
      return txn.Scan(prefix, [&](std::string_view key, ByteSpan value) {
        found.push_back(std::string(key) + "=" + std::string(AsText(value)));
        return Ok();
      });
    }));
    return found;
  }

  os::TempDir directory_;
  std::unique_ptr<Rows> rows_;
  std::unique_ptr<Rows> other_;
};

TEST_P(RowsTest, KeepsWhatWasPut) {
  EXPECT_OK(Put("a", "1"));
  EXPECT_OK(Put("b", ""));
  EXPECT_OK(Put("a", std::string("\0\xff", 2)));
  EXPECT_THAT(Scan(""), ElementsAre(std::string("a=\0\xff", 4), "b="));
  EXPECT_OK(rows_->Write([](Txn& txn) -> Status {
    EXPECT_EQ(AsText(Must(txn.Get("a")).value()), std::string("\0\xff", 2));
    EXPECT_EQ(Must(txn.Get("b")).value().size(), 0u);
    EXPECT_FALSE(Must(txn.Get("c")).has_value());
    EXPECT_OK(txn.Delete("a"));
    EXPECT_OK(txn.Delete("c"));
    EXPECT_FALSE(Must(txn.Get("a")).has_value()) << "a transaction sees its own changes";
    return Ok();
  }));
  EXPECT_THAT(Scan(""), ElementsAre("b="));
}

TEST_P(RowsTest, ScansAPrefixInTheOrderOfBytes) {
  for (const char* key : {"p/b", "p/", "p/a", "p0", "p", "q/a", "p/\u00fc", "o/z"}) {
    EXPECT_OK(Put(key, ""));
  }
  EXPECT_THAT(Scan("p/"), ElementsAre("p/=", "p/a=", "p/b=", "p/\u00fc="));
  EXPECT_THAT(Scan("z"), ElementsAre());
  EXPECT_EQ(Scan("").size(), 8u);
}

TEST_P(RowsTest, AScanEndsWithTheVisitorsErrorAndMayGet) {
  EXPECT_OK(Put("a", "1"));
  EXPECT_OK(Put("b", "2"));
  int visited = 0;
  const Status status = rows_->Read([&](Txn& txn) {
    return txn.Scan("", [&](std::string_view, ByteSpan) -> Status {
      EXPECT_EQ(AsText(Must(txn.Get("b")).value()), "2");
      ++visited;
      return Error{Code::kAborted, "enough"};
    });
  });
  EXPECT_EQ(Text(status), "aborted: enough");
  EXPECT_EQ(visited, 1);
}

TEST_P(RowsTest, AFailedWriteChangesNothing) {
  EXPECT_OK(Put("kept", "1"));
  EXPECT_OK(Put("deleted", "2"));
  const Status status = rows_->Write([](Txn& txn) -> Status {
    WC_TRY(txn.Put("kept", AsBytes("3")));
    WC_TRY(txn.Put("kept", AsBytes("4")));
    WC_TRY(txn.Put("new", AsBytes("5")));
    WC_TRY(txn.Delete("new"));
    WC_TRY(txn.Put("new", AsBytes("6")));
    WC_TRY(txn.Delete("deleted"));
    return Error{Code::kConflict, "no"};
  });
  EXPECT_EQ(Text(status), "conflict: no");
  EXPECT_THAT(Scan(""), ElementsAre("deleted=2", "kept=1"));
  EXPECT_OK(Put("after", "7"));
}

TEST_P(RowsTest, WritesAreSerialWhoeverMakesThem) {
  constexpr int kEach = 20;
  const auto count_up = [](Rows& rows) -> Status {
    for (int i = 0; i < kEach; ++i) {
      WC_TRY(rows.Write([](Txn& txn) -> Status {
        const std::optional<Bytes> before = WC_TRY(txn.Get("count"));
        os::RealWorld().clock.SleepFor(milliseconds(1));  // the other one is at it, too
        const Bytes after(before ? before->size() + 1 : 1, 'x');
        return txn.Put("count", after);
      }));
    }
    return Ok();
  };
  Status theirs;
  std::thread thread([&] { theirs = count_up(other()); });
  const Status mine = count_up(*rows_);
  thread.join();
  EXPECT_OK(mine);
  EXPECT_OK(theirs);
  EXPECT_THAT(Scan("count"), ElementsAre("count=" + std::string(2 * kEach, 'x')));
}

TEST_P(RowsTest, OneClockATransaction) {
  EXPECT_OK(rows_->Read([](Txn& txn) {
    const int64_t now = txn.NowUnixMillis();
    EXPECT_GT(now, 0);
    EXPECT_EQ(txn.NowUnixMillis(), now);
    return Ok();
  }));
}

INSTANTIATE_TEST_SUITE_P(Backends, RowsTest, testing::Bool(), [](const auto& parameter) {
  return std::string(parameter.param ? "Sqlite" : "Memory");
});

}  // namespace
}  // namespace weightcast::catalog
