#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/task_pool.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, ACounterIsCreatedAtItsFirstUseAndAddsUp) {
  CountMetric("weightcast_test_bytes_total", 3);
  CountMetric("weightcast_test_bytes_total", 4.5);
  EXPECT_THAT(MetricsText(), HasSubstr("weightcast_test_bytes_total 7.5\n"));
  EXPECT_THAT(MetricsText(), HasSubstr("# TYPE weightcast_test_bytes_total counter\n"));
}

TEST(MetricsTest, LosesNothingWhenManyThreadsCount) {
  const Status status = ParallelFor(1000, 8, [](size_t, int) {
    CountMetric("weightcast_test_items_total", 1);
    return Ok();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(MetricsText(), HasSubstr("weightcast_test_items_total 1000\n"));
}

}  // namespace
}  // namespace weightcast
