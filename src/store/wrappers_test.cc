// What each wrapper adds to the store inside.
#include "store/wrappers.h"

#include <gmock/gmock.h>

#include "os/sim.h"
#include "store/memory_store.h"
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

class WrappersTest : public testing::Test {
 protected:
  os::Clock& clock() { return machine_.world().clock; }
  FaultyStore Faulty(FaultPlan plan) { return FaultyStore(inner_, clock(), std::move(plan)); }

  os::SimMachine machine_;
  MemoryStore inner_{machine_.world().clock};
};

TEST_F(WrappersTest, CountingCountsCallsFailuresAndBytes) {
  CountingStore store(inner_);
  PutOk(store, "a", Pattern(10));
  EXPECT_FALSE(store.Put("a", Pattern(10)).ok());
  const auto upload = store.StartUpload("b", 0).value();
  ASSERT_TRUE(upload->Append(Pattern(7)).ok());
  EXPECT_EQ(store.counts().of(StoreCall::kPut), 2);
  ASSERT_TRUE(upload->Commit().ok());
  Bytes out(4);
  ASSERT_TRUE(store.Get("a", 2, out).ok());
  EXPECT_FALSE(store.Get("c", 2, out).ok());
  EXPECT_TRUE(store.Size("a").ok());
  EXPECT_THAT(Keys(store), ElementsAre("a", "b"));
  EXPECT_TRUE(store.Delete("a").ok());
  const StoreCounts counts = store.counts();
  EXPECT_THAT(counts.calls, ElementsAre(3, 2, 1, 1, 1));
  EXPECT_THAT(counts.failed, ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(counts.put_bytes, 27);
  EXPECT_EQ(counts.got_bytes, 4);
}

TEST_F(WrappersTest, ThrottlingSharesOnePipe) {
  ThrottledStore store(inner_, clock(), 1000);
  Bytes out(500);
  const auto seconds_for = [&](const std::function<void()>& work) {
    const SteadyTime before = clock().Now();
    work();
    return ToSeconds(clock().Now() - before);
  };
  EXPECT_NEAR(seconds_for([&] { PutOk(store, "a", Bytes(2000)); }), 2.0, 0.01);
  EXPECT_NEAR(seconds_for([&] { EXPECT_TRUE(store.Get("a", 0, out).ok()); }), 0.5, 0.01);
  EXPECT_NEAR(seconds_for([&] {
                const auto upload = store.StartUpload("b", 0).value();
                for (int i = 0; i < 3; ++i) EXPECT_TRUE(upload->Append(Bytes(100)).ok());
                EXPECT_TRUE(upload->Commit().ok());
              }),
              0.3, 0.01);
  EXPECT_NEAR(seconds_for([&] { EXPECT_TRUE(store.Size("a").ok()); }), 0.0, 0.01);
}

TEST_F(WrappersTest, AFaultBeforeDoesNothing) {
  FaultyStore store = Faulty({.faults = {{StoreCall::kPut, 1, Fault::kFailBefore},
                                         {StoreCall::kDelete, 0, Fault::kFailBefore},
                                         {StoreCall::kSize, 0, Fault::kFailBefore},
                                         {StoreCall::kList, 0, Fault::kFailBefore}}});
  PutOk(store, "a", Pattern(10));
  EXPECT_EQ(CodeOf(store.Put("b", Pattern(10))), Code::kUnavailable);
  EXPECT_EQ(CodeOf(inner_.Size("b")), Code::kNotFound);
  EXPECT_EQ(CodeOf(store.Delete("a")), Code::kUnavailable);
  EXPECT_TRUE(inner_.Size("a").ok());
  EXPECT_EQ(CodeOf(store.Size("a")), Code::kUnavailable);
  EXPECT_TRUE(store.Size("a").ok());
  EXPECT_FALSE(store.List("", [](const ObjectInfo&) { return Ok(); }).ok());
  EXPECT_THAT(Keys(store), ElementsAre("a"));
  EXPECT_EQ(store.faults(), 4);
}

TEST_F(WrappersTest, AFaultAfterAnswersWronglyAboutWhatHappened) {
  FaultyStore store = Faulty({.faults = {{StoreCall::kPut, 0, Fault::kFailAfter},
                                         {StoreCall::kPut, 2, Fault::kFailAfter},
                                         {StoreCall::kGet, 0, Fault::kFailAfter}}});
  EXPECT_EQ(CodeOf(store.Put("a", Pattern(10))), Code::kUnavailable);
  EXPECT_TRUE(Whole(inner_, "a") == Pattern(10));
  EXPECT_EQ(CodeOf(store.Put("a", Pattern(10))), Code::kAlreadyExists);
  const auto upload = store.StartUpload("b", 0).value();
  ASSERT_TRUE(upload->Append(Pattern(5)).ok());
  EXPECT_EQ(CodeOf(upload->Commit()), Code::kUnavailable);
  EXPECT_TRUE(Whole(inner_, "b") == Pattern(5));
  Bytes out(10);
  EXPECT_EQ(CodeOf(store.Get("a", 0, out)), Code::kUnavailable);
}

TEST_F(WrappersTest, ABodyIsCut_S10) {
  FaultyStore store = Faulty({.faults = {{StoreCall::kGet, 0, Fault::kCut, 30},
                                         {StoreCall::kGet, 1, Fault::kCutUnnoticed, 30}}});
  const Bytes whole = Pattern(100);
  PutOk(store, "a", whole);
  for (const bool noticed : {true, false}) {
    Bytes out(100, 0xee);
    const Status status = store.Get("a", 0, out);
    EXPECT_EQ(status.ok(), !noticed);
    EXPECT_TRUE(std::equal(out.begin(), out.begin() + 30, whole.begin()));
    EXPECT_EQ(std::count(out.begin() + 30, out.end(), 0xee), 70);
  }
  EXPECT_TRUE(Whole(store, "a") == whole);
}

TEST_F(WrappersTest, AByteIsFlippedInSilence) {
  FaultyStore store = Faulty({.faults = {{StoreCall::kGet, 0, Fault::kFlip, 105}}});
  const Bytes whole = Pattern(100);
  PutOk(store, "a", whole);
  Bytes out(100);
  ASSERT_TRUE(store.Get("a", 0, out).ok());
  EXPECT_NE(out[5], whole[5]);
  out[5] = whole[5];
  EXPECT_TRUE(out == whole);
}

TEST_F(WrappersTest, ADelayPassesAndTheCallHappens) {
  FaultyStore store =
      Faulty({.faults = {{StoreCall::kGet, 0, Fault::kDelay}}, .delay = seconds(7)});
  PutOk(store, "a", Pattern(10));
  const SteadyTime before = clock().Now();
  EXPECT_TRUE(Whole(store, "a") == Pattern(10));
  EXPECT_NEAR(ToSeconds(clock().Now() - before), 7.0, 0.1);
}

TEST_F(WrappersTest, SeededFaultsComeAtTheirRateAndRepeat) {
  const auto failures = [&](uint64_t seed) {
    FaultyStore store = Faulty({.seed = seed, .per_mille = {100, 0, 0, 0, 0, 50}});
    std::string history;
    Bytes out(4);
    for (int i = 0; i < 1000; ++i) {
      const Status status = store.Get("a", 0, out);
      history += !status.ok() ? 'f' : out == Pattern(4) ? '.' : 'x';
    }
    for (int i = 0; i < 100; ++i) EXPECT_NE(CodeOf(store.Put("a", out)), Code::kDataLoss);
    return history;
  };
  PutOk(inner_, "a", Pattern(4));
  const std::string history = failures(1);
  EXPECT_NEAR(static_cast<double>(std::count(history.begin(), history.end(), 'f')), 100, 35);
  EXPECT_NEAR(static_cast<double>(std::count(history.begin(), history.end(), 'x')), 50, 25);
  EXPECT_EQ(failures(1), history);
  EXPECT_NE(failures(2), history);
}

TEST_F(WrappersTest, TheNewestObjectsAreNotListedYetButRead_X3) {
  FaultyStore store = Faulty({.unlisted = 2});
  for (const char* key : {"a", "b", "c"}) PutOk(store, key, Pattern(10));
  EXPECT_THAT(Keys(store), ElementsAre("a"));
  EXPECT_TRUE(Whole(store, "c") == Pattern(10));
  PutOk(store, "d", Pattern(10));
  EXPECT_THAT(Keys(store), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace weightcast::store
