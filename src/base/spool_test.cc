#include "base/spool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace weightcast {
namespace {

Bytes Block(size_t size, uint8_t value) { return Bytes(size, value); }

TEST(SpoolTest, DrainsEveryBlockInOrder) {
  Bytes drained;
  Bytes expected;
  Spool spool(10, [&](ByteSpan block) {
    drained.insert(drained.end(), block.begin(), block.end());
    return Ok();
  });
  for (uint8_t i = 0; i < 100; ++i) {
    const Bytes block = Block(i % 13, i);
    expected.insert(expected.end(), block.begin(), block.end());
    ASSERT_TRUE(spool.Append(block).ok());
  }
  ASSERT_TRUE(spool.Finish().ok());
  EXPECT_EQ(drained, expected);
}

TEST(SpoolTest, TheProducerWaitsWhileTheSpoolIsFull) {
  constexpr int64_t kBytesMax = 100;
  std::atomic<int64_t> appended{0};
  std::atomic<int64_t> drained{0};
  std::atomic<int64_t> most{0};
  Spool spool(kBytesMax, [&](ByteSpan block) {
    most = std::max<int64_t>(most, appended - drained);
    drained += static_cast<int64_t>(block.size());
    return Ok();
  });
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(spool.Append(Block(30, 1)).ok());
    appended += 30;
  }
  ASSERT_TRUE(spool.Finish().ok());
  EXPECT_EQ(drained, 30'000);
  EXPECT_LE(most, kBytesMax);
}

// M2: a tensor larger than the bucket.
TEST(SpoolTest, ABlockLargerThanTheSpoolPassesAlone) {
  size_t drained = 0;
  Spool spool(10, [&](ByteSpan block) {
    drained += block.size();
    return Ok();
  });
  ASSERT_TRUE(spool.Append(Block(1000, 1)).ok());
  ASSERT_TRUE(spool.Append(Block(1000, 2)).ok());
  ASSERT_TRUE(spool.Finish().ok());
  EXPECT_EQ(drained, 2000u);
}

TEST(SpoolTest, TheFirstErrorReachesTheProducerAndEndsTheStream) {
  int calls = 0;
  Spool spool(10, [&](ByteSpan) -> Status {
    ++calls;
    return Error{Code::kUnavailable, "store is away"};
  });
  Status status = Ok();
  for (int i = 0; i < 1000 && status.ok(); ++i) status = spool.Append(Block(5, 1));
  ASSERT_FALSE(status.ok()) << "a producer must not run on, or wait for ever";
  EXPECT_EQ(status.error().message, "store is away");
  EXPECT_EQ(spool.Finish().error().code, Code::kUnavailable);
  EXPECT_EQ(calls, 1);
}

TEST(SpoolTest, MayBeDestroyedWithoutFinish) {
  std::atomic<int> calls{0};
  {
    Spool spool(1000, [&](ByteSpan) {
      ++calls;
      return Ok();
    });
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(spool.Append(Block(1, 1)).ok());
  }
  EXPECT_LE(calls, 5);
}

}  // namespace
}  // namespace weightcast
