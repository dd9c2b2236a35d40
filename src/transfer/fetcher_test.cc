#include "transfer/fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/hash.h"
#include "base/mutex.h"
#include "transfer/testing.h"

namespace weightcast::transfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

Bytes Content(int64_t offset, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<uint8_t>((static_cast<uint64_t>(offset) + i) * 0x9e3779b97f4a7c15 >> 56);
  }
  return bytes;
}

// Answers with Content, unless `fault` says otherwise for the n-th read (from 0) of a range.
class TestSource : public Source {
 public:
  using Fault = std::function<Status(int64_t offset, int nth, MutableByteSpan out)>;
  TestSource(std::string kind, std::string name, Fault fault = {})
      : kind_(std::move(kind)), name_(std::move(name)), fault_(std::move(fault)) {}

  std::string kind() const override { return kind_; }
  std::string name() const override { return name_; }
  Status Read(std::string_view, int64_t offset, MutableByteSpan out) override {
    int nth = 0;
    {
      MutexLock lock(mu_);
      nth = reads_[offset]++;
      ++total_;
      threads_[std::this_thread::get_id()] = true;
    }
    std::ranges::copy(Content(offset, out.size()), out.begin());
    return fault_ ? fault_(offset, nth, out) : Ok();
  }

  int reads() const {
    MutexLock lock(mu_);
    return total_;
  }
  int reads(int64_t offset) const {
    MutexLock lock(mu_);
    const auto found = reads_.find(offset);
    return found == reads_.end() ? 0 : found->second;
  }
  bool only_this_thread() const {
    MutexLock lock(mu_);
    return threads_.size() == 1 && threads_.contains(std::this_thread::get_id());
  }

 private:
  const std::string kind_;
  const std::string name_;
  const Fault fault_;
  mutable Mutex mu_;
  std::map<int64_t, int> reads_ WC_GUARDED_BY(mu_);
  std::map<std::thread::id, bool> threads_ WC_GUARDED_BY(mu_);
  int total_ WC_GUARDED_BY(mu_) = 0;
};

constexpr size_t kPieceBytes = 1000;

// `n` adjacent pieces into one buffer, each verified by SHA-256.
struct Load {
  explicit Load(size_t n) : out(n * kPieceBytes, 0xee) {
    for (size_t i = 0; i < n; ++i) {
      const auto offset = static_cast<int64_t>(i * kPieceBytes);
      const Sha256Digest expected = Sha256::Of(Content(offset, kPieceBytes));
      pieces.push_back({"runs/r/part", offset,
                        MutableByteSpan(out).subspan(i * kPieceBytes, kPieceBytes),
                        [expected](ByteSpan bytes) -> Status {
                          if (Sha256::Of(bytes) == expected) return Ok();
                          return Error{Code::kDataLoss, "SHA-256 differs"};
                        }});
    }
  }
  bool Right() const { return out == Content(0, out.size()); }

  Bytes out;
  std::vector<Piece> pieces;
};

FetchOptions Parallel(int parallel) {
  FetchOptions options;
  options.parallel = parallel;
  return options;
}

class FetcherTest : public testing::TestWithParam<int> {
 protected:
  Status Fetch(std::vector<Source*> sources, std::span<Piece> pieces) {
    Fetcher fetcher(world_.world, std::move(sources), Parallel(GetParam()));
    const Status status = fetcher.Fetch(pieces);
    bytes_ = fetcher.bytes_by_kind();
    return status;
  }

  TestWorld world_;
  std::map<std::string, int64_t> bytes_;
};
INSTANTIATE_TEST_SUITE_P(, FetcherTest, testing::Values(1, 4), testing::PrintToStringParamName());

TEST_P(FetcherTest, NothingToFetchIsFine) {
  TestSource store("store", "file:/s");
  EXPECT_TRUE(Fetch({&store}, {}).ok());
  EXPECT_EQ(store.reads(), 0);
}

TEST_P(FetcherTest, BringsEveryPieceOnce) {
  TestSource store("store", "file:/s");
  Load load(100);
  const Status status = Fetch({&store}, load.pieces);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(load.Right());
  EXPECT_EQ(store.reads(), 100);
  EXPECT_THAT(bytes_, UnorderedElementsAre(Pair("store", 100 * 1000)));
}

TEST_P(FetcherTest, EmptyPiecesAndPiecesWithoutVerificationAreFine) {
  TestSource store("store", "file:/s");
  Bytes out(10);
  std::vector<Piece> pieces{{"a", 0, {}, {}}, {"a", 5, out, {}}, {"a", 15, {}, {}}};
  EXPECT_TRUE(Fetch({&store}, pieces).ok());
  EXPECT_EQ(out, Content(5, 10));
}

// S4 of the field reports: a tenth of all ranges fails at first.
TEST_P(FetcherTest, OnlyRangesThatFailedAreReadAgain) {
  constexpr int kFailures = 3;
  const Error errors[kFailures] = {{Code::kUnavailable, "503"},
                                   {Code::kUnavailable, "connection reset"},
                                   {Code::kDeadlineExceeded, "timeout"}};
  TestSource store("store", "s3://b", [&](int64_t offset, int nth, MutableByteSpan out) -> Status {
    const int64_t piece = offset / static_cast<int64_t>(kPieceBytes);
    if (piece % 10 != 3 || nth > 0) return Ok();
    std::ranges::fill(out, 0xaa);
    return errors[piece / 10 % kFailures];
  });
  Load load(200);
  const Status status = Fetch({&store}, load.pieces);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(load.Right());
  EXPECT_EQ(store.reads(), 220);
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(store.reads(i * static_cast<int64_t>(kPieceBytes)), i % 10 == 3 ? 2 : 1) << i;
  }
  EXPECT_GT(world_.clock.sleeps, 0) << "after a pause";
}

// S10: a body that was cut and closed in good order.
TEST_P(FetcherTest, ACutBodyIsNotTakenForTheWhole) {
  TestSource peer("peer", "peer 3", [](int64_t, int, MutableByteSpan out) -> Status {
    std::ranges::fill(out.subspan(out.size() * 3 / 10), 0);  // what a lax client would leave
    return Ok();
  });
  TestSource cut("peer", "peer 4", [](int64_t, int, MutableByteSpan) -> Status {
    return Error{Code::kDataLoss, "body ends after 300 of 1000 bytes"};
  });
  TestSource store("store", "s3://b");
  Load load(3);
  const Status status = Fetch({&peer, &cut, &store}, load.pieces);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(load.Right());
  EXPECT_THAT(bytes_, UnorderedElementsAre(Pair("store", 3000)));
}

TEST_P(FetcherTest, ACorruptSourceIsBypassedPieceByPiece) {
  TestSource peer("peer", "peer 3", [](int64_t offset, int, MutableByteSpan out) -> Status {
    if (offset == 2000) out[17] ^= 1;
    return Ok();
  });
  TestSource store("store", "s3://b");
  Load load(8);
  ASSERT_TRUE(Fetch({&peer, &store}, load.pieces).ok());
  EXPECT_TRUE(load.Right());
  EXPECT_THAT(bytes_, UnorderedElementsAre(Pair("peer", 7000), Pair("store", 1000)));
}

TEST_P(FetcherTest, AFailureNamesObjectRangeAndEachSourcesAnswer) {
  TestSource peer("peer", "peer 3", [](int64_t offset, int, MutableByteSpan) -> Status {
    if (offset != 3000) return Ok();
    return Error{Code::kNotFound, "version 41 is not here"};
  });
  TestSource store("store", "s3://b", [](int64_t, int, MutableByteSpan out) -> Status {
    out[0] ^= 0x80;
    return Ok();
  });
  Load load(5);
  const Status status = Fetch({&peer, &store}, load.pieces);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kDataLoss);
  EXPECT_EQ(status.error().message,
            "object runs/r/part bytes [3000, 4000): peer 3: version 41 is not here (not-found); "
            "s3://b: SHA-256 differs (data-loss)");
}

TEST_P(FetcherTest, AnUnavailableStoreEndsAfterItsAttempts) {
  TestSource store("store", "s3://b", [](int64_t, int, MutableByteSpan) -> Status {
    return Error{Code::kUnavailable, "503 Slow Down"};
  });
  Load load(1);
  const Status status = Fetch({&store}, load.pieces);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  EXPECT_THAT(status.error().message,
              AllOf(HasSubstr("503 Slow Down"), HasSubstr("asked 4 times")));
  EXPECT_EQ(store.reads(), 4);
}

TEST_P(FetcherTest, ADeadPeerCostsLittleAfterTheFirstFetches) {
  TestSource peer("peer", "peer 3", [](int64_t, int, MutableByteSpan) -> Status {
    return Error{Code::kUnavailable, "connection refused"};
  });
  TestSource store("store", "s3://b");
  Fetcher fetcher(world_.world, {&peer, &store}, Parallel(GetParam()));
  for (int i = 0; i < 20; ++i) {
    Load load(1);
    ASSERT_TRUE(fetcher.Fetch(load.pieces).ok());
    EXPECT_TRUE(load.Right());
  }
  EXPECT_LE(peer.reads(), 4);
}

TEST_P(FetcherTest, ManyFetchesAtOnceShareOneFetcher) {
  TestSource store("store", "s3://b", [](int64_t offset, int nth, MutableByteSpan) -> Status {
    if (nth > 0 || offset % 7000 != 0) return Ok();
    return Error{Code::kUnavailable, "reset"};
  });
  Fetcher fetcher(world_.world, {&store}, Parallel(GetParam()));
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      Load load(30);
      right += fetcher.Fetch(load.pieces).ok() && load.Right();
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, 6);
  EXPECT_EQ(fetcher.bytes_by_kind()["store"], 6 * 30 * 1000);
}

TEST(FetcherThreadsTest, OnePieceOrOneReadAtATimeStartsNoThread) {
  for (const auto& [parallel, pieces] : {std::pair{1, 20}, std::pair{8, 1}}) {
    TestSource store("store", "file:/s");
    Fetcher fetcher(os::RealWorld(), {&store}, Parallel(parallel));
    Load load(static_cast<size_t>(pieces));
    ASSERT_TRUE(fetcher.Fetch(load.pieces).ok());
    EXPECT_TRUE(store.only_this_thread());
  }
}

// A gate that holds up whoever passes until it is opened.
class Gate {
 public:
  void Open() {
    MutexLock lock(mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(mu_);
    while (!open_) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ WC_GUARDED_BY(mu_) = false;
};

TEST(FetcherHedgeTest, AHungReadNeitherHoldsUpTheFetchNorWritesIntoItsBuffer) {
  Gate gate;
  TestSource peer("peer", "peer 3", [&](int64_t offset, int, MutableByteSpan out) -> Status {
    if (offset == 5000) {
      gate.Pass();
      std::ranges::fill(out, 0xbb);
    }
    return Ok();
  });
  TestSource store("store", "s3://b");
  FetchOptions options = Parallel(3);
  options.hedge_after_min = milliseconds(5);
  auto fetcher =
      std::make_unique<Fetcher>(os::RealWorld(), std::vector<Source*>{&peer, &store}, options);
  auto load = std::make_unique<Load>(8);
  ASSERT_TRUE(fetcher->Fetch(load->pieces).ok());
  EXPECT_TRUE(load->Right());
  EXPECT_EQ(store.reads(5000), 1);
  load.reset();  // the late read must not touch it
  gate.Open();
  fetcher.reset();
}

TEST(FetcherHedgeTest, TheDeadlineHoldsThoughEverySourceHangs) {
  Gate gate;
  TestSource store("store", "s3://b", [&](int64_t, int, MutableByteSpan) -> Status {
    gate.Pass();
    return Ok();
  });
  FetchOptions options = Parallel(2);
  options.timeout = milliseconds(50);
  Fetcher fetcher(os::RealWorld(), {&store}, options);
  {
    Load load(4);
    const Status status = fetcher.Fetch(load.pieces);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kDeadlineExceeded);
    EXPECT_THAT(status.error().message, HasSubstr("4 of 4 pieces missing"));
  }
  gate.Open();
}

}  // namespace
}  // namespace weightcast::transfer
