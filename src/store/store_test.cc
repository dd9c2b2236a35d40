// Every store of this floor, and every wrapper, against the promises of store.h.
#include "store/store.h"

#include <gmock/gmock.h>

#include "os/sim.h"
#include "os/temp_dir.h"
#include "store/directory_store.h"
#include "store/memory_store.h"
#include "store/store_conformance.h"
#include "store/wrappers.h"

namespace weightcast::store {
namespace {

class MemoryBed final : public StoreBed {
 public:
  Store& store() override { return store_; }
  Store& other() override { return store_; }

 private:
  MemoryStore store_{os::RealWorld().clock};
};

// Two clients of one directory. A memory file system where there is one: the promises are the same
// and syncs cost nothing.
class DirectoryBed final : public StoreBed {
 public:
  explicit DirectoryBed(os::World& world, const std::string& parent) : directory_(world, parent) {
    one_ = DirectoryStore::Open(world, directory_.path()).value();
    other_ = DirectoryStore::Open(world, directory_.path()).value();
  }
  Store& store() override { return *one_; }
  Store& other() override { return *other_; }

 private:
  os::TempDir directory_;
  std::unique_ptr<Store> one_;
  std::unique_ptr<Store> other_;
};

std::unique_ptr<StoreBed> RealDirectoryBed() {
  os::World& world = os::RealWorld();
  const bool memory = world.fs.Exists("/dev/shm").value();
  return std::make_unique<DirectoryBed>(world, memory ? "/dev/shm" : "/tmp");
}

class SimulatedBed final : public StoreBed {
 public:
  Store& store() override { return inner_.store(); }
  Store& other() override { return inner_.other(); }

 private:
  os::SimMachine machine_;
  DirectoryBed inner_{machine_.world(), "/data"};
};

// A wrapper that changes nothing that store.h promises.
template <typename Wrapper, auto... kArguments>
class WrappedBed final : public StoreBed {
 public:
  template <typename Make>
  explicit WrappedBed(Make make) : wrapper_(make(inner_)) {}
  Store& store() override { return *wrapper_; }
  Store& other() override { return *wrapper_; }

 private:
  MemoryStore inner_{os::RealWorld().clock};
  std::unique_ptr<Wrapper> wrapper_;
};

template <typename Wrapper, typename Make>
StoreProvider Wrapped(const std::string& name, Make make, StoreTraits traits = {}) {
  return {name, [make] { return std::make_unique<WrappedBed<Wrapper>>(make); }, traits};
}

std::vector<StoreProvider> Providers() {
  const auto counting = [](Store& inner) { return std::make_unique<CountingStore>(inner); };
  const auto throttled = [](Store& inner) {
    return std::make_unique<ThrottledStore>(inner, os::RealWorld().clock, 4 * kGiB);
  };
  const auto faulty = [](Store& inner) {
    return std::make_unique<FaultyStore>(inner, os::RealWorld().clock, FaultPlan{});
  };
  // field_reports.md X3: a shared store whose lists lag behind.
  const auto lagging = [](Store& inner) {
    return std::make_unique<FaultyStore>(inner, os::RealWorld().clock,
                                         FaultPlan{.unlisted = size_t{1} << 20});
  };
  const StoreTraits directory = {.nested_keys = false};
  return {
      {"Memory", [] { return std::make_unique<MemoryBed>(); }},
      {"Directory", &RealDirectoryBed, directory},
      {"SimulatedDirectory", [] { return std::make_unique<SimulatedBed>(); }, directory},
      Wrapped<CountingStore>("Counting", counting),
      Wrapped<ThrottledStore>("Throttled", throttled),
      Wrapped<FaultyStore>("FaultyWithoutFaults", faulty),
      Wrapped<FaultyStore>("LaggingLists_X3", lagging, {.lists_at_once = false}),
  };
}

class EveryStore : public testing::TestWithParam<std::tuple<StoreProvider, StoreCase>> {};
TEST_P(EveryStore, KeepsItsPromise) { RunStoreCase(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Of, EveryStore,
                         testing::Combine(testing::ValuesIn(Providers()),
                                          testing::ValuesIn(StoreCases())),
                         [](const auto& row) { return StoreCaseName(row); });

TEST(CheckKeyTest, NamesTheKeyAndTheFault) {
  EXPECT_TRUE(CheckKey("runs/a/1").ok());
  EXPECT_EQ(CheckKey("a//b").error().message, "key \"a//b\" has an empty part");
  EXPECT_EQ(CheckKey("a/../b").error().message, "key \"a/../b\" has a part \".\" or \"..\"");
  EXPECT_TRUE(CheckKey(std::string(255, 'a')).ok());
  EXPECT_EQ(CheckKey(std::string(256, 'a')).error().code, Code::kInvalidArgument);
  std::string longest;
  while (longest.size() < 1023) longest += longest.size() % 8 == 7 ? '/' : 'a';
  EXPECT_TRUE(CheckKey(longest + "b").ok());
  EXPECT_THAT(CheckKey(longest + "bc").error().message, testing::HasSubstr("more than 1024 bytes"));
}

}  // namespace
}  // namespace weightcast::store
