#include "base/task_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace weightcast {
namespace {

TEST(ParallelForTest, DoesEveryItemOnce) {
  for (const size_t items : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    for (const int threads : {0, 1, 2, 8}) {
      std::vector<std::atomic<int>> done(items);
      const Status status = ParallelFor(items, threads, [&](size_t item, int) {
        ++done[item];
        return Ok();
      });
      ASSERT_TRUE(status.ok());
      for (const auto& count : done) EXPECT_EQ(count, 1) << items << " on " << threads;
    }
  }
}

TEST(ParallelForTest, AWorkerNumberIsUsedByOneItemAtATime) {
  constexpr int kThreads = 4;
  std::vector<std::atomic<bool>> busy(kThreads);
  const Status status = ParallelFor(200, kThreads, [&](size_t, int worker) -> Status {
    if (worker < 0 || worker >= kThreads) return Error{Code::kInternal, "no such worker"};
    if (busy[static_cast<size_t>(worker)].exchange(true)) return Error{Code::kInternal, "shared"};
    busy[static_cast<size_t>(worker)] = false;
    return Ok();
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST(ParallelForTest, OneThreadStartsItemsInOrderAndStopsAtTheFirstError) {
  std::vector<size_t> seen;
  const Status status = ParallelFor(10, 1, [&](size_t item, int) -> Status {
    seen.push_back(item);
    if (item == 3) return Error{Code::kDataLoss, "item 3"};
    return Ok();
  });
  EXPECT_EQ(seen, (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_EQ(status.error().code, Code::kDataLoss);
}

// Item 0 fails last, always: it waits for the failure of item 1.
TEST(ParallelForTest, TheLowestFailedItemIsTheErrorWhateverTheTiming) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> one_failed{false};
    const Status status = ParallelFor(2, 2, [&](size_t item, int) -> Status {
      if (item == 1) {
        one_failed = true;
        one_failed.notify_all();
        return Error{Code::kUnavailable, "item 1"};
      }
      one_failed.wait(false);
      return Error{Code::kConflict, "item 0"};
    });
    EXPECT_EQ(status.error().message, "item 0");
  }
}

TEST(ParallelForTest, NoNewItemStartsAfterAnError) {
  std::atomic<int> started{0};
  const Status status = ParallelFor(100'000, 4, [&](size_t, int) -> Status {
    ++started;
    return Error{Code::kInternal, "always"};
  });
  EXPECT_FALSE(status.ok());
  EXPECT_LE(started, 4);
}

TEST(TaskPoolTest, ItsEndWaitsForEveryTaskAlsoThoseThatTasksStart) {
  std::atomic<int> done{0};
  {
    TaskPool pool(3);
    for (int i = 0; i < 50; ++i) {
      pool.Run([&] {
        pool.Run([&] { ++done; });
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(TaskPoolTest, StartsTasksInOrderAndNeverMoreThanItsThreads) {
  std::vector<int> order;
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  {
    TaskPool one(1);
    TaskPool two(2);
    for (int i = 0; i < 100; ++i) {
      one.Run([&, i] { order.push_back(i); });
      two.Run([&] {
        most = std::max(most.load(), ++running);
        --running;
      });
    }
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_LE(most, 2);
}

TEST(ThreadCountTest, IsWhatIsAskedForOrAtLeastOne) {
  EXPECT_EQ(ThreadCount(3), 3);
  EXPECT_GE(ThreadCount(0), 1);
}

}  // namespace
}  // namespace weightcast
