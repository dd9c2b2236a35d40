// One suite for every file system: what fs.h promises, on the kernel's and on the simulator's.
#include "os/fs.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <numeric>
#include <thread>

#include "os/sim.h"
#include "os/temp_dir.h"
#include "os/world.h"

namespace weightcast::os {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kPage = 4096;

struct Kind {
  std::string name;
  bool real;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class FsTest : public testing::TestWithParam<Kind> {
 protected:
  FsTest() : world_(GetParam().real ? RealWorld() : machine_.world()), dir_(world_) {}

  Fs& fs() { return world_.fs; }
  std::string Path(std::string_view name) const { return JoinPath(dir_.path(), name); }

  std::unique_ptr<File> OpenOk(std::string_view name, Open mode) {
    auto file = fs().OpenFile(Path(name), mode);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(file).value();
  }
  void Lay(std::string_view name, std::string_view content) {
    const auto file = OpenOk(name, Open::kCreate);
    ASSERT_TRUE(file->Truncate(0).ok());
    ASSERT_TRUE(file->Write(0, AsBytes(content)).ok());
  }
  std::string Content(std::string_view name) {
    const Result<Bytes> bytes = fs().ReadAll(Path(name), kMiB);
    return bytes.ok() ? std::string(AsText(*bytes)) : "error: " + bytes.error().message;
  }
  std::vector<std::string> Names(std::string_view name = ".") {
    return fs().List(Path(name)).value();
  }

  SimMachine machine_;
  World& world_;
  TempDir dir_;
};

template <typename T>
Code CodeOf(const Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? Code::kInternal : result.error().code;
}

TEST_P(FsTest, WritesAndReadsAtOffsets) {
  const auto file = OpenOk("f", Open::kCreateNew);
  ASSERT_TRUE(file->Write(0, AsBytes("hello")).ok());
  ASSERT_TRUE(file->Write(8, AsBytes("world")).ok());
  EXPECT_EQ(*file->Size(), 13);
  EXPECT_EQ(Content("f"), std::string("hello\0\0\0world", 13));
  Bytes out(5);
  ASSERT_TRUE(file->Read(8, out).ok());
  EXPECT_EQ(AsText(out), "world");
}

TEST_P(FsTest, ReadPastTheEndIsDataLoss) {
  Lay("f", "hello");
  const auto file = OpenOk("f", Open::kRead);
  Bytes out(3);
  const Status status = file->Read(3, out);
  EXPECT_EQ(CodeOf(status), Code::kDataLoss);
  EXPECT_THAT(status.error().message,
              HasSubstr(Path("f") + ": read: ends at 5, expected 3 bytes from 3"));
  EXPECT_EQ(CodeOf(file->Read(100, out)), Code::kDataLoss);
  EXPECT_TRUE(file->Read(100, {}).ok());
}

TEST_P(FsTest, OpenModes) {
  struct Case {
    Open mode;
    Code missing;  // kInternal: opens
    Code there;
  };
  constexpr Case kCases[] = {
      {Open::kRead, Code::kNotFound, Code::kInternal},
      {Open::kReadWrite, Code::kNotFound, Code::kInternal},
      {Open::kCreate, Code::kInternal, Code::kInternal},
      {Open::kCreateNew, Code::kInternal, Code::kAlreadyExists},
  };
  Lay("there", "x");
  for (const Case& c : kCases) {
    SCOPED_TRACE(static_cast<int>(c.mode));
    const std::string missing = "missing" + std::to_string(static_cast<int>(c.mode));
    const auto code = [](const auto& r) { return r.ok() ? Code::kInternal : r.error().code; };
    EXPECT_EQ(code(fs().OpenFile(Path(missing), c.mode)), c.missing);
    EXPECT_EQ(code(fs().OpenFile(Path("there"), c.mode)), c.there);
    EXPECT_FALSE(fs().OpenFile(dir_.path(), c.mode).ok());
    EXPECT_EQ(CodeOf(fs().OpenFile(Path("there/below"), c.mode)), Code::kNotFound);
    EXPECT_EQ(CodeOf(fs().OpenFile(Path("no/below"), c.mode)), Code::kNotFound);
  }
  EXPECT_EQ(Content("there"), "x");
}

TEST_P(FsTest, ErrorsNameThePathAndTheOperation) {
  const auto file = fs().OpenFile(Path("missing"), Open::kRead);
  EXPECT_EQ(file.error().message, Path("missing") + ": open: No such file or directory");
}

TEST_P(FsTest, AFileOpenedForReadingRefusesWrites) {
  Lay("f", "hello");
  const auto file = OpenOk("f", Open::kRead);
  EXPECT_EQ(CodeOf(file->Write(0, AsBytes("j"))), Code::kUnavailable);
  EXPECT_EQ(CodeOf(file->Map(true)), Code::kUnavailable);
  EXPECT_FALSE(file->Truncate(0).ok());
  EXPECT_FALSE(file->Allocate(kPage).ok());
  EXPECT_EQ(Content("f"), "hello");
}

TEST_P(FsTest, AllocateAndTruncateSetTheSizeAndGrowWithZeros) {
  Lay("f", "hello");
  const auto file = OpenOk("f", Open::kReadWrite);
  for (const int64_t size : {5, 5000, 7, 7, 0, 3, 0}) {
    ASSERT_TRUE(file->Allocate(size).ok()) << size;
    EXPECT_EQ(*file->Size(), size);
  }
  ASSERT_TRUE(file->Write(0, AsBytes("hello")).ok());
  for (const int64_t size : {2, 9}) {
    ASSERT_TRUE(file->Truncate(size).ok());
    EXPECT_EQ(*file->Size(), size);
  }
  EXPECT_EQ(Content("f"), std::string("he\0\0\0\0\0\0\0", 9));
  ASSERT_TRUE(file->Sync().ok());
}

TEST_P(FsTest, AMappingSeesWritesAndWritesAreSeen) {
  const auto file = OpenOk("f", Open::kCreate);
  ASSERT_TRUE(file->Allocate(3 * kPage + 5).ok());
  const auto mapping = file->Map(true).value();
  ASSERT_EQ(mapping->bytes().size(), 3 * kPage + 5);
  ASSERT_TRUE(file->Write(kPage - 2, AsBytes("hello")).ok());
  EXPECT_EQ(AsText(mapping->bytes().subspan(kPage - 2, 5)), "hello");
  mapping->Update(kPage - 1, 3, [](MutableByteSpan bytes) {
    ASSERT_EQ(AsText(bytes), "ell");
    std::fill(bytes.begin(), bytes.end(), uint8_t{'x'});
  });
  mapping->Update(3 * kPage + 5, 0, [](MutableByteSpan bytes) { EXPECT_TRUE(bytes.empty()); });
  EXPECT_EQ(Content("f").substr(kPage - 2, 5), "hxxxo");
  EXPECT_EQ(AsText(mapping->bytes().subspan(kPage - 2, 5)), "hxxxo");
}

TEST_P(FsTest, AMappingKeepsItsBytesThroughGrowthRenameRemovalAndClose) {
  Lay("f", "hello");
  auto file = OpenOk("f", Open::kReadWrite);
  const auto mapping = file->Map(false).value();
  const uint8_t* const address = mapping->bytes().data();
  ASSERT_TRUE(file->Write(3 * kMiB, AsBytes("far")).ok());
  ASSERT_TRUE(file->Write(0, AsBytes("j")).ok());
  ASSERT_TRUE(fs().Rename(Path("f"), Path("g")).ok());
  ASSERT_TRUE(fs().Remove(Path("g")).ok());
  file.reset();
  EXPECT_EQ(mapping->bytes().data(), address);
  EXPECT_EQ(AsText(mapping->bytes()), "jello");
}

TEST_P(FsTest, AnEmptyFileMapsToNothing) {
  Lay("f", "");
  const auto mapping = OpenOk("f", Open::kReadWrite)->Map(true).value();
  EXPECT_TRUE(mapping->bytes().empty());
  mapping->WillNeed(0, 0);
  mapping->DontNeed(0, 0);
}

TEST_P(FsTest, HintsChangeNothing) {
  const auto file = OpenOk("f", Open::kCreate);
  ASSERT_TRUE(file->Allocate(4 * kPage).ok());
  const auto mapping = file->Map(true).value();
  mapping->Update(kPage + 1, 5, [](MutableByteSpan out) { std::memcpy(out.data(), "dirty", 5); });
  mapping->WillNeed(kPage + 7, kPage);
  mapping->DontNeed(kPage + 1, 3 * kPage - 1);
  EXPECT_EQ(AsText(mapping->bytes().subspan(kPage + 1, 5)), "dirty");
}

TEST_P(FsTest, LocksExcludeOtherOpensUntilReleased) {
  Lay("f", "");
  auto a = OpenOk("f", Open::kRead);
  auto b = OpenOk("f", Open::kReadWrite);
  const Duration once = Duration::zero();
  ASSERT_TRUE(a->LockFor(Lock::kShared, once).ok());
  ASSERT_TRUE(b->LockFor(Lock::kShared, once).ok());
  EXPECT_EQ(CodeOf(b->LockFor(Lock::kExclusive, once)), Code::kDeadlineExceeded);
  ASSERT_TRUE(a->LockFor(Lock::kExclusive, once).ok()) << "a failed change leaves no lock";
  ASSERT_TRUE(a->LockFor(Lock::kExclusive, once).ok()) << "asking again is fine";
  const Status refused = b->LockFor(Lock::kShared, milliseconds(20));
  EXPECT_EQ(CodeOf(refused), Code::kDeadlineExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr(Path("f") + ": lock"));
  ASSERT_TRUE(a->Unlock().ok());
  ASSERT_TRUE(b->LockFor(Lock::kExclusive, once).ok());
  b.reset();
  ASSERT_TRUE(a->LockFor(Lock::kExclusive, once).ok()) << "closing releases";
}

TEST_P(FsTest, ALockIsWaitedFor) {
  Lay("f", "");
  auto a = OpenOk("f", Open::kRead);
  const auto b = OpenOk("f", Open::kRead);
  ASSERT_TRUE(a->LockFor(Lock::kExclusive, Duration::zero()).ok());
  std::thread holder([&] {
    std::this_thread::sleep_for(milliseconds(10));
    a.reset();
  });
  EXPECT_TRUE(b->LockFor(Lock::kExclusive, seconds(1000)).ok());
  holder.join();
}

TEST_P(FsTest, ListsNamesSortedByBytes) {
  for (const char* name : {"b", "a", "B", "\xc3\xa9", ".hidden", "a b"}) Lay(name, "");
  ASSERT_TRUE(fs().MakeDirectories(Path("dir/below")).ok());
  EXPECT_THAT(Names(), ElementsAre(".hidden", "B", "a", "a b", "b", "dir", "\xc3\xa9"));
  EXPECT_THAT(Names("dir"), ElementsAre("below"));
  EXPECT_THAT(Names("dir/below"), IsEmpty());
  EXPECT_EQ(CodeOf(fs().List(Path("missing"))), Code::kNotFound);
  EXPECT_EQ(CodeOf(fs().List(Path("a"))), Code::kNotFound);
}

TEST_P(FsTest, StatTellsKindSizeAndIdentity) {
  Lay("f", "hello");
  ASSERT_TRUE(fs().Link(Path("f"), Path("g")).ok());
  Lay("h", "hello");
  EXPECT_TRUE(fs().StatPath(dir_.path())->is_directory);
  const Stat f = fs().StatPath(Path("f")).value();
  EXPECT_FALSE(f.is_directory);
  EXPECT_EQ(f.size, 5);
  EXPECT_EQ(f.inode, fs().StatPath(Path("g"))->inode);
  EXPECT_NE(f.inode, fs().StatPath(Path("h"))->inode);
  EXPECT_LT(std::abs(world_.clock.UnixMillis() - f.modified_unix_ms), 60'000);
  EXPECT_EQ(CodeOf(fs().StatPath(Path("missing"))), Code::kNotFound);
  EXPECT_EQ(CodeOf(fs().StatPath(Path("f/below"))), Code::kNotFound);
  EXPECT_TRUE(*fs().Exists(Path("f")));
  EXPECT_FALSE(*fs().Exists(Path("missing")));
}

TEST_P(FsTest, MakeDirectoriesMakesParentsAndAcceptsExisting) {
  ASSERT_TRUE(fs().MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(fs().MakeDirectories(Path("a/b/c/")).ok());
  EXPECT_TRUE(fs().StatPath(Path("a/b/c"))->is_directory);
  Lay("a/f", "");
  EXPECT_EQ(CodeOf(fs().MakeDirectories(Path("a/f"))), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(fs().MakeDirectories(Path("a/f/b"))), Code::kAlreadyExists);
}

TEST_P(FsTest, RenameReplacesFilesAndEmptyDirectories) {
  Lay("a", "new");
  Lay("b", "old");
  ASSERT_TRUE(fs().Rename(Path("a"), Path("b")).ok());
  EXPECT_EQ(Content("b"), "new");
  EXPECT_EQ(CodeOf(fs().Rename(Path("a"), Path("b"))), Code::kNotFound);
  ASSERT_TRUE(fs().MakeDirectories(Path("d1/sub")).ok());
  ASSERT_TRUE(fs().MakeDirectories(Path("d2")).ok());
  ASSERT_TRUE(fs().Rename(Path("d1"), Path("d2")).ok());
  EXPECT_THAT(Names("d2"), ElementsAre("sub"));
  ASSERT_TRUE(fs().Rename(Path("b"), Path("d2/sub/b")).ok());
  EXPECT_THAT(Names(), ElementsAre("d2"));
  ASSERT_TRUE(fs().MakeDirectories(Path("d3")).ok());
  EXPECT_EQ(CodeOf(fs().Rename(Path("d3"), Path("d2"))), Code::kAlreadyExists);
  EXPECT_FALSE(fs().Rename(Path("d2"), Path("d2/sub/d")).ok()) << "into itself";
  EXPECT_FALSE(fs().Rename(Path("d2/sub/b"), Path("d3")).ok()) << "a file over a directory";
  EXPECT_FALSE(fs().Rename(Path("d3"), Path("d2/sub/b")).ok()) << "a directory over a file";
  EXPECT_EQ(CodeOf(fs().Rename(Path("d3"), Path("no/d"))), Code::kNotFound);
}

TEST_P(FsTest, RenameOntoAnotherNameOfTheSameFileDoesNothing) {
  Lay("a", "x");
  ASSERT_TRUE(fs().Link(Path("a"), Path("b")).ok());
  ASSERT_TRUE(fs().Rename(Path("a"), Path("b")).ok());
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
}

TEST_P(FsTest, ExchangeSwapsFilesAndDirectories) {
  Lay("a", "one");
  Lay("b", "two");
  ASSERT_TRUE(fs().Exchange(Path("a"), Path("b")).ok());
  EXPECT_EQ(Content("a"), "two");
  EXPECT_EQ(Content("b"), "one");
  ASSERT_TRUE(fs().MakeDirectories(Path("d/full")).ok());
  ASSERT_TRUE(fs().Exchange(Path("a"), Path("d")).ok());
  EXPECT_EQ(Content("d"), "two");
  EXPECT_THAT(Names("a"), ElementsAre("full"));
  EXPECT_EQ(CodeOf(fs().Exchange(Path("a"), Path("missing"))), Code::kNotFound);
  EXPECT_FALSE(fs().Exchange(Path("a"), Path("a/full")).ok()) << "into itself";
}

TEST_P(FsTest, LinkGivesASecondNameAndNeverReplaces) {
  Lay("a", "one");
  Lay("b", "two");
  EXPECT_EQ(CodeOf(fs().Link(Path("a"), Path("b"))), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(fs().Link(Path("missing"), Path("c"))), Code::kNotFound);
  EXPECT_EQ(CodeOf(fs().Link(Path("a"), Path("no/c"))), Code::kNotFound);
  EXPECT_FALSE(fs().Link(dir_.path(), Path("c")).ok());
  ASSERT_TRUE(fs().Link(Path("a"), Path("c")).ok());
  ASSERT_TRUE(fs().Remove(Path("a")).ok());
  EXPECT_EQ(Content("c"), "one");
  EXPECT_EQ(Content("b"), "two");
}

TEST_P(FsTest, RemoveTakesFilesAndEmptyDirectoriesOnly) {
  ASSERT_TRUE(fs().MakeDirectories(Path("d")).ok());
  Lay("d/f", "");
  const Status refused = fs().Remove(Path("d"));
  EXPECT_EQ(CodeOf(refused), Code::kAlreadyExists);
  EXPECT_EQ(refused.error().message, Path("d") + ": remove: Directory not empty");
  ASSERT_TRUE(fs().Remove(Path("d/f")).ok());
  ASSERT_TRUE(fs().Remove(Path("d")).ok());
  EXPECT_EQ(CodeOf(fs().Remove(Path("d"))), Code::kNotFound);
}

TEST_P(FsTest, RemoveTreeTakesAllBelow) {
  ASSERT_TRUE(fs().MakeDirectories(Path("d/e/f")).ok());
  ASSERT_TRUE(fs().MakeDirectories(Path("d/g")).ok());
  for (const char* name : {"d/1", "d/e/2", "d/e/f/3", "other"}) Lay(name, "x");
  ASSERT_TRUE(fs().RemoveTree(Path("d")).ok());
  EXPECT_THAT(Names(), ElementsAre("other"));
  EXPECT_TRUE(fs().RemoveTree(Path("d")).ok()) << "fine if missing";
  EXPECT_TRUE(fs().RemoveTree(Path("other")).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_P(FsTest, ReadAllIsBounded) {
  Lay("f", "hello");
  EXPECT_EQ(AsText(fs().ReadAll(Path("f"), 5).value()), "hello");
  const Result<Bytes> refused = fs().ReadAll(Path("f"), 4);
  EXPECT_EQ(CodeOf(refused), Code::kInvalidData);
  EXPECT_EQ(refused.error().message, Path("f") + ": has 5 bytes, at most 4 are accepted");
}

TEST_P(FsTest, WriteAtomicallyReplacesAndLeavesNothingBehind) {
  Lay("f", "old, and longer");
  Lay(".f.tmp", "left by a process that died in the middle of a much longer write");
  for (const bool durable : {false, true}) {
    ASSERT_TRUE(fs().WriteAtomically(Path("f"), AsBytes(durable ? "2" : "one"), durable).ok());
    EXPECT_EQ(Content("f"), durable ? "2" : "one");
  }
  EXPECT_THAT(Names(), ElementsAre("f"));
  EXPECT_EQ(CodeOf(fs().WriteAtomically(Path("no/f"), {}, true)), Code::kNotFound);
}

TEST_P(FsTest, SyncsDirectories) {
  ASSERT_TRUE(fs().MakeDirectories(Path("a/b")).ok());
  EXPECT_TRUE(fs().SyncDirectory(Path("a")).ok());
  EXPECT_TRUE(fs().SyncPath(Path("a/b")).ok());
  EXPECT_EQ(CodeOf(fs().SyncDirectory(Path("missing"))), Code::kNotFound);
  EXPECT_EQ(CodeOf(fs().SyncPath(Path("a/missing"))), Code::kNotFound);
}

TEST_P(FsTest, TellsFreeSpaceAndKind) {
  EXPECT_GT(*fs().FreeBytes(dir_.path()), 0);
  EXPECT_NE(*fs().Kind(dir_.path()), FsKind::kNetwork);
}

TEST_P(FsTest, AbsolutePathsStartAtTheRoot) {
  EXPECT_EQ(*fs().Absolute("/a/b"), "/a/b");
  EXPECT_THAT(*fs().Absolute("a/b"),
              testing::AllOf(testing::StartsWith("/"), testing::EndsWith("/a/b")));
  EXPECT_EQ(JoinPath(*fs().Absolute("."), "a"), *fs().Absolute("a"));
}

INSTANTIATE_TEST_SUITE_P(Every, FsTest,
                         testing::Values(Kind{"Real", true}, Kind{"Simulated", false}),
                         [](const auto& row) { return row.param.name; });

TEST(PathTest, JoinsAndSplits) {
  EXPECT_EQ(JoinPath("a/b", "c"), "a/b/c");
  EXPECT_EQ(JoinPath("a/", "c"), "a/c");
  EXPECT_EQ(JoinPath("/", "c"), "/c");
  EXPECT_EQ(JoinPath("", "c"), "c");
  struct Case {
    const char* path;
    const char* parent;
    const char* base;
  };
  for (const Case& c : {Case{"a/b", "a", "b"}, Case{"a", ".", "a"}, Case{"/a", "/", "a"},
                        Case{"/", "/", ""}, Case{"a/b/", "a", "b"}, Case{"a/b/c", "a/b", "c"}}) {
    EXPECT_EQ(ParentPath(c.path), c.parent) << c.path;
    EXPECT_EQ(BaseName(c.path), c.base) << c.path;
  }
}

TEST(RealFsTest, WhatIsNoOrdinaryFileIsRefusedAndNeverWaitedFor) {
  const TempDir dir(RealWorld());
  const std::string pipe = JoinPath(dir.path(), "pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/null")}) {
    for (const Open mode : {Open::kRead, Open::kReadWrite, Open::kCreate}) {
      const auto file = RealWorld().fs.OpenFile(path, mode);
      ASSERT_FALSE(file.ok()) << path;
      EXPECT_EQ(file.error().code, Code::kInvalidData) << file.error().message;
    }
  }
}

TEST(RealWorldTest, GivesTimeRandomnessAndTheBoot) {
  World& world = RealWorld();
  const SteadyTime before = world.clock.Now();
  world.clock.SleepFor(milliseconds(2));
  EXPECT_GE(world.clock.Now() - before, milliseconds(2));
  EXPECT_GT(world.clock.UnixMillis(), 1'700'000'000'000);
  Bytes a(1000);
  Bytes b(1000);
  world.random.Fill(a);
  world.random.Fill(b);
  EXPECT_NE(a, b);
  EXPECT_GT(std::count_if(a.begin(), a.end(), [](uint8_t x) { return x != 0; }), 900);
  EXPECT_EQ(world.boot_id.size(), 36u) << world.boot_id;
}

}  // namespace
}  // namespace weightcast::os
