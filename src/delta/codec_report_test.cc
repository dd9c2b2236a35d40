#include "delta/codec_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "delta/codec_baselines.h"

namespace weightcast::delta {
namespace {

using testing::ElementsAre;
using testing::Key;
using testing::UnorderedElementsAre;

TEST(AdamSimTest, IsTheSameOnEveryMachine) {
  AdamSim sim({.seed = 42}, 10000);
  for (int i = 0; i < 3; ++i) sim.Step();
  const auto* bytes = reinterpret_cast<const uint8_t*>(sim.weights().data());
  EXPECT_EQ(Sha256::Of({bytes, 20000}).brief(), "5a8dceca");
}

TEST(AdamSimTest, ChangesAsFewWeightsAsTraining) {
  AdamSim sim({}, 1 << 18);
  std::vector<double> densities;
  for (int step = 0; step < 30; ++step) {
    const std::vector<uint16_t> before = sim.weights();
    sim.Step();
    size_t changed = 0;
    for (size_t i = 0; i < before.size(); ++i) changed += before[i] != sim.weights()[i] ? 1u : 0u;
    densities.push_back(static_cast<double>(changed) / static_cast<double>(before.size()));
  }
  EXPECT_NEAR(densities.front(), 0.019, 0.001);
  EXPECT_NEAR(densities.back(), 0.0078, 0.0005);
}

TEST(AdamSimTest, GoesOnFromPublishedWeights) {
  const std::vector<uint16_t> weights = {0x3f80, 0xbf80, 0x0000};
  AdamSim sim({.learning_rate = 0.5f}, weights);
  EXPECT_EQ(sim.weights(), weights);
  sim.Step();
  EXPECT_NE(sim.weights(), weights);
}

TEST(BoundsTest, OfKnownChanges) {
  // Half of all elements change by one step up; octaves say nothing, then everything.
  const std::vector<uint16_t> base = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
  const std::vector<uint16_t> next = {0x3f81, 0x3f81, 0x3f80, 0x3f80};
  EXPECT_DOUBLE_EQ(BoundsOf(base, next).l0, 4.0 / 2 / 8);
  EXPECT_DOUBLE_EQ(BoundsOf(base, next).l1, 4.0 / 2 / 8);
  const std::vector<uint16_t> apart = {0x3f80, 0x3f80, 0x4f80, 0x4f80};
  const std::vector<uint16_t> moved = {0x3f81, 0x3f81, 0x4f80, 0x4f80};
  EXPECT_DOUBLE_EQ(BoundsOf(apart, moved).l0, 4.0 / 2 / 8);
  EXPECT_DOUBLE_EQ(BoundsOf(apart, moved).l1, 0);
}

// Each look at it takes a millisecond.
class TickingClock : public os::Clock {
 public:
  SteadyTime Now() override { return SteadyTime(milliseconds(++ticks_)); }
  int64_t UnixMillis() override { return 0; }
  void SleepFor(Duration) override {}

 private:
  int64_t ticks_ = 0;
};

TEST(CodecReportTest, HasAllThatTheCommandPrints) {
  TickingClock clock;
  const CodecReport report = RunCodecBench({.units = 3 << 19, .steps = 30}, clock).value();
  EXPECT_EQ(report.elements, 3 << 19);
  EXPECT_NEAR(report.density, 0.0078, 0.0005);
  EXPECT_LT(report.bound_l1, report.bound_l0);
  EXPECT_LT(report.bound_l1, report.bytes_per_changed);
  EXPECT_LT(report.bytes_per_changed, 0.85);
  EXPECT_LT(report.full_bytes, 2 * report.elements * 7 / 10);
  EXPECT_THAT(report.gb_per_s,
              ElementsAre(Key("decode_verify_apply"), Key("diff"), Key("digest_full"),
                          Key("encode"), Key("memcpy"), Key("xor_read")));
  EXPECT_GT(report.digest_update_per_s, 0);
  EXPECT_THAT(report.baselines,
              UnorderedElementsAre(Key("xor+zstd1"), Key("xor_planes+zstd1"),
                                   Key("bitmap+xor+zstd1"), Key("gaps16+xor+zstd1"),
                                   Key("int32+bf16"), Key("int32+bf16+zstd1"), Key("full+zstd1")));
  for (const auto& [name, bytes] : report.baselines) EXPECT_GT(bytes, report.wire_bytes) << name;
}

TEST(CodecReportTest, NothingToMeasureIsAnError) {
  TickingClock clock;
  EXPECT_EQ(RunCodecBench({.units = 0}, clock).error().code, Code::kInvalidArgument);
  const Bytes same(64);
  EXPECT_EQ(MeasureCodec(same, same, {}, clock).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::delta
