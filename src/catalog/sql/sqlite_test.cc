// SQLite itself: foreign and damaged files, processes, network file systems.
#include "catalog/sql/sqlite.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "catalog/catalog_conformance.h"
#include "catalog/sql/database.h"
#include "os/fs_real.h"
#include "os/sim.h"
#include "os/temp_dir.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

class SqliteTest : public testing::Test {
 protected:
  SqliteTest()
      : directory_(os::RealWorld(), ScratchParent()),
        path_(os::JoinPath(directory_.path(), "catalog.db")) {}

  Result<std::unique_ptr<Catalog>> Open(SqliteOptions options = {}) {
    return OpenSqliteCatalog(os::RealWorld(), path_, options);
  }
  // Runs SQL on the file behind the catalog's back.
  void Sql(const std::string& sql) {
    EXPECT_OK(Must(Database::Open(path_, seconds(1)))->Run(sql.c_str()));
  }
  Bytes ReadFile() { return Must(os::RealFs().ReadAll(path_, kMiB * 64)); }
  void WriteFile(ByteSpan bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
    for (const char* side : {"-wal", "-shm"}) static_cast<void>(os::RealFs().Remove(path_ + side));
  }

  os::TempDir directory_;
  std::string path_;
};

TEST_F(SqliteTest, StaysBetweenOpens) {
  std::string incarnation;
  RunUid uid;
  {
    const auto catalog = Must(Open());
    incarnation = Must(catalog->Incarnation());
    uid = Must(catalog->OpenRun({"policy", ToyInventory(), {}})).uid;
  }
  const auto catalog = Must(Open({.create = false}));
  EXPECT_EQ(Must(catalog->Incarnation()), incarnation);
  EXPECT_EQ(Must(catalog->FindRun("policy")).uid, uid);
}

TEST_F(SqliteTest, DoesNotMakeAFileUnasked) {
  EXPECT_THAT(Text(Open({.create = false})), StartsWith("unavailable"));
  EXPECT_FALSE(Must(os::RealFs().Exists(path_)));
  WriteFile({});
  EXPECT_THAT(Text(Open({.create = false})), StartsWith("data-loss"));
}

TEST_F(SqliteTest, MakesDirectoriesWhenItMayCreate) {
  path_ = os::JoinPath(directory_.path(), "a/b/catalog.db");
  EXPECT_OK(Open());
}

TEST_F(SqliteTest, RefusesForeignAndNewerSchemas) {
  Sql("CREATE TABLE theirs (x)");
  EXPECT_THAT(Text(Open()), AllOf(StartsWith("data-loss"), HasSubstr("not a catalog")));
  WriteFile({});
  EXPECT_OK(Open());
  Sql("PRAGMA user_version=7");
  EXPECT_THAT(Text(Open()), AllOf(StartsWith("data-loss"), HasSubstr("schema 7 is newer")));
  Sql("PRAGMA user_version=1; CREATE TABLE more (x)");
  EXPECT_THAT(Text(Open()), StartsWith("data-loss"));
  Sql("DROP TABLE more; PRAGMA application_id=5");
  EXPECT_THAT(Text(Open()), StartsWith("data-loss"));
}

TEST_F(SqliteTest, AFileOfTheFirstSchemaIsMigrated) {
  EXPECT_OK(Open());
  Sql("PRAGMA user_version=1");
  EXPECT_OK(Open());
  EXPECT_EQ(Must(Must(Database::Open(path_, seconds(1)))->QueryInt("PRAGMA user_version")), 2);
}

TEST_F(SqliteTest, RefusesWhatIsNoDatabase) {
  const Bytes text(4096, 'x');
  WriteFile(text);
  EXPECT_THAT(Text(Open()), AllOf(StartsWith("data-loss"), HasSubstr(path_)));
  path_ = directory_.path();
  EXPECT_THAT(Text(Open()), StartsWith("unavailable"));
}

// X3, M: locks of a network file system are not to be trusted.
TEST_F(SqliteTest, RefusesANetworkFileSystem) {
  os::SimMachine machine;
  machine.SetKind(os::FsKind::kNetwork);
  EXPECT_THAT(Text(OpenSqliteCatalog(machine.world(), "/mnt/nfs/catalog.db")),
              AllOf(StartsWith("conflict"), HasSubstr("network file system"),
                    HasSubstr("weightcast serve")));
}

TEST_F(SqliteTest, ALockedDatabaseIsUnavailableAfterTheTimeout) {
  const auto catalog = Must(Open({.busy_timeout = milliseconds(50)}));
  const auto other = Must(Database::Open(path_, seconds(1)));
  EXPECT_OK(other->Run("BEGIN IMMEDIATE"));
  EXPECT_THAT(Text(catalog->OpenRun({"policy", ToyInventory(), {}})),
              AllOf(StartsWith("unavailable"), HasSubstr("locked")));
  EXPECT_OK(catalog->ListRuns()) << "readers do not wait for writers";
  EXPECT_OK(other->Run("ROLLBACK"));
  EXPECT_OK(catalog->OpenRun({"policy", ToyInventory(), {}}));
}

TEST_F(SqliteTest, AFullDatabaseIsExhaustedAndChangesNothing) {
  const auto catalog = Must(Open());
  EXPECT_OK(catalog->OpenRun({"policy", ToyInventory(), {}}));
  const int64_t pages =
      Must(Must(Database::Open(path_, seconds(1)))->QueryInt("PRAGMA page_count"));
  // The limit of a connection; a file system that is full answers the same.
  const auto database = Must(Database::Open(path_, seconds(1)));
  EXPECT_OK(database->Run(("PRAGMA max_page_count=" + std::to_string(pages)).c_str()));
  Statement insert = Must(database->Prepare("INSERT INTO rows VALUES ('x', zeroblob(100000), '')"));
  EXPECT_THAT(Text(insert.Step()), StartsWith("resource-exhausted"));
  EXPECT_EQ(Must(catalog->ListRuns()).size(), 1u);
}

// A catalog with every kind of row, and everything that can be asked of it.
struct Everything {
  Run run;
  std::vector<Version> versions;
  LeaseId lease;
  RoundUid round;

  explicit Everything(Catalog& catalog) {
    run = Must(catalog.OpenRun({"policy", ToyInventory(), {}}));
    versions.push_back(Must(catalog.RegisterSeed({run.uid, ToyDigests(0), ToySideFiles(), ""})));
    const Epoch epoch = Must(catalog.OpenEpoch({run.uid, "job", std::nullopt, ToyPlan(2), {0, 1}}));
    for (const int64_t number : {1, 2}) {
      BeginRequest request;
      request.run = run.uid;
      request.epoch = epoch;
      request.number = number;
      request.step_token = "t";
      request.store_url = "file:/s";
      versions.push_back(Must(catalog.BeginVersion(request)));
      const int content = static_cast<int>(number);
      for (const int32_t rank : {0, 1}) {
        if (number == 2 && rank == 1) continue;  // stays STAGING
        versions.back() =
            Must(catalog.Announce(ToyAnnouncement(versions.back(), rank, content - 1, content)));
      }
    }
    EXPECT_OK(catalog.SetAlias(run.uid, "best", versions[1].uid));
    lease =
        Must(catalog.PlanReplay({versions[1].uid, versions[0].uid, {}, "h", seconds(9999)})).lease;
    round = Must(catalog.BeginRound({run.uid, versions[1].uid, {"http://a:1"}})).uid;
  }

  // One line an answer; a line of an error begins with its code.
  std::vector<std::string> Ask(Catalog& catalog) const {
    std::vector<std::string> lines;
    const auto add = [&](const auto& result, auto text) {
      lines.push_back(result.ok() ? "ok " + text(*result) : Text(result));
    };
    const auto run_text = [](const Run& r) {
      return r.uid.hex() + r.name + r.inventory->signature().hex() +
             std::to_string(r.carried.size()) + r.forked_from.hex();
    };
    const auto version_text = [](const Version& v) {
      VersionDocument d{{}, v, std::vector<tensor::TensorDigest>(4)};
      d.run.inventory = ToyInventory();
      return std::string(StateName(v.state)) + EncodeVersionJson(d);
    };
    add(catalog.Incarnation(), [](const std::string& s) { return s; });
    add(catalog.FindRun("policy"), run_text);
    add(catalog.GetRun(run.uid), run_text);
    add(catalog.ListRuns(), [&](const auto& runs) {
      std::string text;
      for (const Run& r : runs) text += run_text(r);
      return text;
    });
    add(catalog.ListVersions(run.uid), [&](const auto& all) {
      std::string text;
      for (const Version& v : all) text += version_text(v);
      return text;
    });
    for (const char* name : {"latest", "0", "1", "best"}) {
      add(catalog.FindVersion(run.uid, name), version_text);
    }
    for (const Version& v : versions) {
      add(catalog.GetVersion(v.uid), version_text);
      add(catalog.GetAnnouncements(v.uid), [](const auto& all) {
        std::string text;
        for (const Announcement& a : all) text += a.version.hex() + std::to_string(a.rank.value);
        return text;
      });
    }
    for (const size_t i : {0u, 1u}) {
      add(catalog.GetDigests(versions[i].uid), [](const auto& digests) {
        std::string text;
        for (const auto& d : digests) text += d.hex();
        return text;
      });
    }
    add(catalog.ListAliases(run.uid), [](const auto& aliases) {
      std::string text;
      for (const auto& [name, uid] : aliases) text += name + uid.hex();
      return text;
    });
    add(catalog.OpenEpoch({run.uid, "job", std::nullopt, ToyPlan(2), {0, 1}}),
        [](Epoch e) { return std::to_string(e.value); });
    const auto round_text = [](const Round& r) { return r.uid.hex() + r.engines.at(0).url; };
    add(catalog.GetRound(round), round_text);
    add(catalog.ListRounds(run.uid), [&](const auto& all) { return round_text(all.at(0)); });
    const Status renewed = catalog.RenewLease(lease, seconds(9999));
    lines.push_back(Text(renewed));
    return lines;
  }
};

// Acceptance 7: whichever byte of whichever row flips, what reads it says so; nothing else changes.
TEST_F(SqliteTest, AFlippedByteInAnyRowIsFoundAndNamed) {
  std::vector<std::string> truth;
  std::unique_ptr<Everything> everything;
  {
    const auto catalog = Must(Open());
    everything = std::make_unique<Everything>(*catalog);
    truth = everything->Ask(*catalog);
  }
  for (const std::string& line : truth) ASSERT_THAT(line, StartsWith("ok")) << line;

  // A copy per flip: key (hex), which column, which byte.
  struct Row {
    std::string key;
    int64_t value_bytes;
  };
  std::vector<Row> rows;
  {
    const auto database = Must(Database::Open(path_, seconds(1)));
    EXPECT_OK(database->Run("PRAGMA wal_checkpoint(TRUNCATE)"));
    Statement all = Must(database->Prepare("SELECT key, length(value) FROM rows ORDER BY key"));
    while (Must(all.Step())) rows.push_back({std::string(all.Text(0)), all.Int(1)});
  }
  std::set<std::string> kinds;
  for (const Row& row : rows) kinds.insert(row.key.substr(0, row.key.find('/')));
  EXPECT_EQ(kinds.size(), 11u) << "a kind of row is not covered: " << testing::PrintToString(kinds);

  const Bytes whole = ReadFile();
  for (const Row& row : rows) {
    // In the value: begin, middle, end; in key and sum: begin and end.
    const auto last_key = static_cast<int64_t>(row.key.size()) - 1;
    const std::pair<const char*, int64_t> flips[] = {{"value", 0},
                                                     {"value", row.value_bytes / 2},
                                                     {"value", row.value_bytes - 1},
                                                     {"sum", 0},
                                                     {"sum", 31},
                                                     {"key", 0},
                                                     {"key", last_key}};
    for (const auto& [column, at] : flips) {
      WriteFile(whole);
      {
        const auto database = Must(Database::Open(path_, seconds(1)));
        Statement get = Must(database->Prepare(std::string("SELECT CAST(") + column +
                                               " AS BLOB) FROM rows WHERE key = ?1"));
        get.BindText(1, row.key);
        ASSERT_TRUE(Must(get.Step()));
        Bytes bytes(get.Blob(0).begin(), get.Blob(0).end());
        bytes[static_cast<size_t>(at)] ^= 0x40;  // never the key of a neighbour
        const std::string type = std::string(column) == "key" ? "TEXT" : "BLOB";
        Statement set = Must(database->Prepare(std::string("UPDATE rows SET ") + column +
                                               " = CAST(?2 AS " + type + ") WHERE key = ?1"));
        get.Reset();
        set.BindText(1, row.key);
        set.BindBlob(2, bytes);
        Must(set.Step());
      }
      const std::string what = row.key + " " + column + " byte " + std::to_string(at);
      const auto catalog = Open();
      if (!catalog.ok()) {
        EXPECT_THAT(Text(catalog), StartsWith("data-loss")) << what;
        continue;
      }
      const std::vector<std::string> answers = everything->Ask(**catalog);
      bool found = false;
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_THAT(answers[i], AnyOf(truth[i], StartsWith("data-loss: catalog row"))) << what;
        found = found || answers[i] != truth[i];
      }
      EXPECT_TRUE(found) << what << " is noticed by nobody";
    }
  }
}

// Cut at every page and at odd places, and with bytes flipped anywhere in the file: an answer is
// the true one, or an error that says so; never a crash, never something else.
TEST_F(SqliteTest, ACutOrDamagedFileNeverLies) {
  std::vector<std::string> truth;
  std::unique_ptr<Everything> everything;
  {
    const auto catalog = Must(Open());
    everything = std::make_unique<Everything>(*catalog);
    truth = everything->Ask(*catalog);
  }
  Sql("PRAGMA wal_checkpoint(TRUNCATE)");
  const Bytes whole = ReadFile();
  const auto check = [&](ByteSpan file, const std::string& what) {
    WriteFile(file);
    const auto catalog = Open({.busy_timeout = milliseconds(20), .create = false});
    if (!catalog.ok()) {
      EXPECT_THAT(Text(catalog), AnyOf(StartsWith("data-loss"), StartsWith("unavailable"))) << what;
      return;
    }
    const std::vector<std::string> answers = everything->Ask(**catalog);
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_THAT(answers[i], AnyOf(truth[i], StartsWith("data-loss"), StartsWith("unavailable")))
          << what;
    }
  };
  for (size_t size = 0; size < whole.size(); size += size % 4096 == 0 ? 100 : 4096 - size % 4096) {
    check(ByteSpan(whole).first(size), "cut at " + std::to_string(size));
  }
  for (size_t at = 0; at < whole.size(); at += at < 200 ? 1 : 61) {
    Bytes flipped = whole;
    flipped[at] ^= 0x10;
    check(flipped, "flip at " + std::to_string(at));
  }
}

// Four participants as four processes, each with a catalog of its own, race through five versions.
TEST_F(SqliteTest, ParticipantsRaceAsProcesses) {
  constexpr int kRanks = 4;
  constexpr int kVersions = 5;
  RunUid run_uid;
  {
    const auto catalog = Must(Open());
    run_uid = Must(catalog->OpenRun({"policy", ToyInventory(), {}})).uid;
    Must(catalog->RegisterSeed({run_uid, ToyDigests(0), {}, ""}));
  }
  const auto rank_process = [&](int32_t rank) -> Status {
    const auto catalog = WC_TRY(Open());
    const Epoch epoch =
        WC_TRY(catalog->OpenEpoch({run_uid, "job", std::nullopt, ToyPlan(1), {0, 1, 2, 3}}));
    for (int number = 1; number <= kVersions; ++number) {
      BeginRequest request;
      request.run = run_uid;
      request.epoch = epoch;
      request.number = number;
      request.step_token = "t";
      request.store_url = "file:/s";
      // The others may still be at the version before: the same call, later.
      Result<Version> version = catalog->BeginVersion(request);
      while (!version.ok() && version.error().code == Code::kUnavailable) {
        os::RealWorld().clock.SleepFor(milliseconds(1));
        version = catalog->BeginVersion(request);
      }
      WC_TRY(std::move(version).With("begin"));
      const Version begun = WC_TRY(catalog->BeginVersion(request));
      WC_TRY(catalog->Announce(ToyAnnouncement(begun, rank, number - 1, number)).With("announce"));
      WC_TRY(catalog->Announce(ToyAnnouncement(begun, rank, number - 1, number)).With("again"));
    }
    return Ok();
  };
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const Status status = rank_process(rank);
      if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, Text(status).c_str());
      ::_exit(status.ok() ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  const auto catalog = Must(Open());
  const std::vector<Version> versions = Must(catalog->ListVersions(run_uid));
  ASSERT_EQ(versions.size(), 1u + kVersions) << "one attempt a version";
  for (int number = 0; number <= kVersions; ++number) {
    const Version& version = versions[static_cast<size_t>(number)];
    EXPECT_EQ(version.state, VersionState::kReady);
    EXPECT_EQ(version.root, ToyRoot(number));
    EXPECT_EQ(version.epoch.value, number == 0 ? 0 : 1);
  }
}

// Many processes open a catalog that is not there yet: one makes it, all get the same.
// Often: rare is the look that falls between two statements of a migration.
TEST_F(SqliteTest, ProcessesCreateItTogether) {
  for (int round = 0; round < 25; ++round) {
    WriteFile({});
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      const pid_t pid = ::fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        const auto catalog = Open();
        const bool good = catalog.ok() && (*catalog)->OpenRun({"policy", ToyInventory(), {}}).ok();
        if (!catalog.ok()) std::fprintf(stderr, "%s\n", Text(catalog).c_str());
        ::_exit(good ? 0 : 1);
      }
      children.push_back(pid);
    }
    for (const pid_t pid : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(Must(Must(Open())->ListRuns()).size(), 1u);
  }
}

}  // namespace
}  // namespace weightcast::catalog
