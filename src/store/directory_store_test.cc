// What a directory store does when its writer dies, its disk is full or its files are damaged.
#include "store/directory_store.h"

#include <gmock/gmock.h>

#include "os/crash_script.h"
#include "os/sim.h"
#include "store/store_conformance.h"

namespace weightcast::store {
namespace {

using store_cases::CodeOf;
using store_cases::Keys;
using store_cases::Pattern;
using store_cases::PutOk;
using store_cases::Whole;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kRoot[] = "/data/store";

std::unique_ptr<DirectoryStore> OpenStore(os::World& world) {
  return DirectoryStore::Open(world, kRoot).value();
}

// "absent", "whole", or what else became of the object.
std::string StateOf(Store& store, std::string_view key, const Bytes& expected) {
  const Result<Bytes> bytes = store.GetAll(key, kGiB);
  if (bytes.ok()) return *bytes == expected ? "whole" : "other bytes";
  const Code code = bytes.error().code;
  // The root itself may not have been made, or may have been lost.
  return code == Code::kNotFound || code == Code::kUnavailable ? "absent" : bytes.error().message;
}

const Bytes kOld = Pattern(5000, 1);
const Bytes kNew = Pattern(3 * 4096 + 100, 2);

os::CrashScript PutScript() {
  os::CrashScript script;
  script.machine_only = true;
  script.prepare = [](os::World&) {};
  script.act = [](os::World& world) { return OpenStore(world)->Put("a/b/new", kNew).ok(); };
  script.verify = [](os::World& world, bool done) -> std::string {
    const auto store = OpenStore(world);
    const std::string state = StateOf(*store, "a/b/new", kNew);
    if (state != "whole" && (done || state != "absent")) return state + (done ? " after ok" : "");
    if (state == "whole") {
      return CodeOf(store->Put("a/b/new", kOld)) == Code::kAlreadyExists ? "" : "put again";
    }
    const Status retried = store->Put("a/b/new", kNew);
    return retried.ok() ? "" : "retry: " + retried.error().message;
  };
  return script;
}

TEST(DirectoryStoreCrashTest, APutIsAbsentOrWholeAfterEveryDeath) {
  EXPECT_EQ(os::RunCrashScript(PutScript()), "");
}

TEST(DirectoryStoreCrashTest, EverySyncAndTheLinkOfAPutAreNeeded) {
  EXPECT_THAT(os::NeedlessCalls(PutScript(), {"Sync", "SyncDirectory", "Link", "Write"}),
              IsEmpty());
}

TEST(DirectoryStoreCrashTest, AnUploadInPiecesIsAbsentOrWholeAndOthersStay) {
  os::CrashScript script = PutScript();
  script.prepare = [](os::World& world) { PutOk(*OpenStore(world), "a/old", kOld); };
  script.act = [](os::World& world) {
    const auto store = OpenStore(world);
    const auto upload = store->StartUpload("a/b/new", 0);
    if (!upload.ok()) return false;
    for (size_t at = 0; at < kNew.size(); at += 5000) {
      const size_t length = std::min<size_t>(5000, kNew.size() - at);
      if (!(*upload)->Append(ByteSpan(kNew).subspan(at, length)).ok()) return false;
    }
    return (*upload)->Commit().ok();
  };
  const auto verify = script.verify;
  script.verify = [verify](os::World& world, bool done) -> std::string {
    const std::string wrong = verify(world, done);
    if (!wrong.empty()) return wrong;
    const std::string old = StateOf(*OpenStore(world), "a/old", kOld);
    return old == "whole" ? "" : "the old object: " + old;
  };
  EXPECT_EQ(os::RunCrashScript(script), "");
}

os::CrashScript DeleteScript() {
  os::CrashScript script;
  script.machine_only = true;
  script.prepare = [](os::World& world) {
    PutOk(*OpenStore(world), "a/b/o", kOld);
    PutOk(*OpenStore(world), "stays", kOld);
  };
  script.act = [](os::World& world) { return OpenStore(world)->Delete("a/b/o").ok(); };
  script.verify = [](os::World& world, bool done) -> std::string {
    const auto store = OpenStore(world);
    const std::string state = StateOf(*store, "a/b/o", kOld);
    if (state != "absent" && (done || state != "whole")) return state + (done ? " after ok" : "");
    return StateOf(*store, "stays", kOld) == "whole" ? "" : "took another object along";
  };
  return script;
}

TEST(DirectoryStoreCrashTest, ADeleteIsDoneOrNotAfterEveryDeath) {
  EXPECT_EQ(os::RunCrashScript(DeleteScript()), "");
  EXPECT_THAT(os::NeedlessCalls(DeleteScript(), {"SyncDirectory"}), IsEmpty());
}

TEST(DirectoryStoreCrashTest, ARefusedPutMeansThatTheObjectIsThereForGood) {
  // A first writer dies right after its link; the second hears "already there" and may rely on it.
  os::CrashScript script = PutScript();
  script.prepare = [](os::World&) {};
  script.act = [](os::World& world) {
    const auto first = OpenStore(world);
    if (!first->Put("a/b/new", kNew).ok()) return false;
    return CodeOf(OpenStore(world)->Put("a/b/new", kNew)) == Code::kAlreadyExists;
  };
  // The syncs of the first Put (a/b, a, the root and what is above) do nothing: as if it had died.
  os::CrashOptions options = {.deaths = {os::Death::kPower}, .seeds = 64};
  for (int64_t i = 0; i < 5; ++i) options.swallowed.emplace_back("SyncDirectory", i);
  const auto verify = script.verify;
  script.verify = [verify](os::World& world, bool done) { return done ? verify(world, true) : ""; };
  EXPECT_EQ(os::RunCrashScript(script, options), "");
}

TEST(DirectoryStoreTest, UnfinishedObjectsAreSweptByAgeAndNeverListed) {
  os::SimMachine machine;
  os::World& world = machine.world();
  const auto store = OpenStore(world);
  const auto upload = store->StartUpload("o", 0).value();
  ASSERT_TRUE(upload->Append(kNew).ok());
  EXPECT_THAT(Keys(*store), IsEmpty());
  const std::string directory = os::JoinPath(kRoot, ".tmp");
  const auto left = [&] { return world.fs.List(directory).value().size(); };
  EXPECT_EQ(left(), 1u);
  world.clock.SleepFor(std::chrono::hours(23));
  ASSERT_TRUE(store->Sweep().ok());
  EXPECT_EQ(left(), 1u) << "its writer may be alive";
  world.clock.SleepFor(std::chrono::hours(2));
  PutOk(*OpenStore(world), "other", kOld);  // a new writer sweeps by itself
  EXPECT_EQ(left(), 0u);
  EXPECT_EQ(CodeOf(upload->Commit()), Code::kUnavailable) << "its file was taken away";
  EXPECT_THAT(Keys(*store), ElementsAre("other"));
}

TEST(DirectoryStoreTest, AWriterLeavesNoTemporaryFilesBehind) {
  os::SimMachine machine;
  const auto store = OpenStore(machine.world());
  PutOk(*store, "o", kOld);
  EXPECT_EQ(CodeOf(store->Put("o", kOld)), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(store->Put("o/p", kOld)), Code::kInvalidArgument);
  static_cast<void>(store->StartUpload("p", 0).value());
  EXPECT_THAT(machine.world().fs.List(os::JoinPath(kRoot, ".tmp")).value(), IsEmpty());
}

TEST(DirectoryStoreTest, DirectoriesThatBecameEmptyAreRemoved) {
  os::SimMachine machine;
  const auto store = OpenStore(machine.world());
  PutOk(*store, "a/b/1", kOld);
  PutOk(*store, "a/c", kOld);
  ASSERT_TRUE(store->Delete("a/b/1").ok());
  EXPECT_THAT(machine.world().fs.List(os::JoinPath(kRoot, "a")).value(), ElementsAre("c"));
  ASSERT_TRUE(store->Delete("a/c").ok());
  EXPECT_THAT(machine.world().fs.List(kRoot).value(), ElementsAre(".tmp"));
}

TEST(DirectoryStoreTest, AMissingRootIsUnavailableUntilTheFirstPut) {
  os::SimMachine machine;
  const auto store = OpenStore(machine.world());
  Bytes out(1);
  const Status missing = store->Get("o", 0, out);
  EXPECT_EQ(CodeOf(missing), Code::kUnavailable);
  EXPECT_EQ(missing.error().message, "file:/data/store: there is no such directory");
  EXPECT_EQ(CodeOf(store->Size("o")), Code::kUnavailable);
  EXPECT_EQ(CodeOf(store->Delete("o")), Code::kUnavailable);
  EXPECT_EQ(CodeOf(store->List("", [](const ObjectInfo&) { return Ok(); })), Code::kUnavailable);
  PutOk(*store, "o", kOld);
  EXPECT_TRUE(Whole(*store, "o") == kOld);
}

TEST(DirectoryStoreTest, AFullDiskAndAReadOnlyOneAreTheirOwnErrors) {
  os::SimMachine machine;
  const auto store = OpenStore(machine.world());
  PutOk(*store, "o", kOld);
  machine.SetFreeBytes(4096);
  EXPECT_EQ(CodeOf(store->Put("p", kNew)), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(store->Size("p")), Code::kNotFound);
  {
    const auto upload = store->StartUpload("p", 0).value();
    EXPECT_EQ(CodeOf(upload->Append(kNew)), Code::kResourceExhausted);
    EXPECT_EQ(CodeOf(upload->Commit()), Code::kInvalidArgument) << "it would lack bytes";
  }
  PutOk(*store, "small", AsBytes("x"));
  machine.SetReadOnly(true);
  EXPECT_EQ(CodeOf(store->Put("q", AsBytes("x"))), Code::kUnavailable);
  EXPECT_EQ(CodeOf(store->Delete("o")), Code::kUnavailable);
  EXPECT_TRUE(Whole(*store, "o") == kOld);
}

// field_reports.md S10: a body that ends early, with a normal close, is not an object.
TEST(DirectoryStoreTest, ABodyCutAt30PercentIsDataLoss_S10) {
  os::SimMachine machine;
  const auto store = OpenStore(machine.world());
  PutOk(*store, "o", Pattern(1000));
  ASSERT_TRUE(machine.world()
                  .fs.OpenFile(os::JoinPath(kRoot, "o"), os::Open::kReadWrite)
                  .value()
                  ->Truncate(300)
                  .ok());
  Bytes out(1000);
  const Status cut = store->Get("o", 0, out);
  EXPECT_EQ(CodeOf(cut), Code::kDataLoss);
  EXPECT_EQ(cut.error().message, "file:/data/store: object o: has 300 bytes, expected 1000 from 0");
}

TEST(DirectoryStoreTest, RelativeRootsBecomeAbsoluteUrls) {
  os::SimMachine machine;
  EXPECT_EQ(DirectoryStore::Open(machine.world(), "data/store").value()->url(), "file:/data/store");
}

}  // namespace
}  // namespace weightcast::store
