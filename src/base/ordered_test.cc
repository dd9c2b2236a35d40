#include "base/ordered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/task_pool.h"

namespace weightcast {
namespace {

TEST(InOrderTest, TurnsComeInItemOrderOnManyThreads) {
  std::vector<size_t> taken;
  InOrder order;
  const Status status = ParallelFor(200, 8, [&](size_t item, int) {
    return order.Turn(item, [&] {
      taken.push_back(item);
      return Ok();
    });
  });
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(taken.size(), 200u);
  for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i], i);
}

TEST(InOrderTest, NoTurnIsTakenAfterAFailedOne) {
  std::vector<size_t> taken;
  InOrder order;
  const Status status = ParallelFor(200, 8, [&](size_t item, int) {
    return order.Turn(item, [&]() -> Status {
      taken.push_back(item);
      if (item == 5) return Error{Code::kUnavailable, "full"};
      return Ok();
    });
  });
  EXPECT_EQ(status.error().message, "full");
  EXPECT_THAT(taken, testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(InOrderTest, FailWakesWhoWaits) {
  InOrder order;
  const Status status = ParallelFor(2, 2, [&](size_t item, int) -> Status {
    if (item == 1) return order.Turn(1, [] { return Ok(); });
    order.Fail();
    return Error{Code::kDataLoss, "item 0"};
  });
  EXPECT_EQ(status.error().message, "item 0");
}

}  // namespace
}  // namespace weightcast
