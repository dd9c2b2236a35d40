#include "delta/adam_sim.h"

#include <bit>
#include <cmath>

namespace weightcast::delta {
namespace {

// A counter-based generator: the value depends on (key, index) alone, so that the loops below are
// free of state and vectorize.
inline uint32_t Hash(uint32_t key, uint32_t index) {
  uint32_t x = index * 0x9e3779b1u ^ key;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// The sum of the four bytes of a hash is nearly normal, with mean 510 and deviation 147.8.
inline float RoughNormal(uint32_t hash) {
  const uint32_t pairs = (hash & 0x00ff00ffu) + ((hash >> 8) & 0x00ff00ffu);
  const auto sum = static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16));
  return static_cast<float>(sum - 510) * (1 / 147.8f);
}

inline uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// One of the values that round to `bits`, drawn by `hash`.
inline float WithinRounding(uint16_t bits, uint32_t hash) {
  const uint32_t middle = static_cast<uint32_t>(bits) << 16;
  if ((bits & 0x7fff) == 0) return std::bit_cast<float>(middle);  // the other sign begins below
  return std::bit_cast<float>(middle - 0x7fff + hash % 0xffff);
}

uint32_t StreamKey(uint64_t seed, uint32_t stream) {
  return Hash(Hash(static_cast<uint32_t>(seed), stream), static_cast<uint32_t>(seed >> 32));
}

// Weights need finer steps near zero than RoughNormal has: the smallest ones change most often.
std::vector<uint16_t> InitialWeights(const AdamOptions& options, size_t units) {
  constexpr uint32_t kDraws = 8;
  uint32_t keys[kDraws];
  for (uint32_t d = 0; d < kDraws; ++d) keys[d] = StreamKey(options.seed, 0x80000000u + d);
  // A sum of eight uniform numbers in [0, 2^32) has deviation 2^32 * sqrt(8 / 12).
  const double scale = options.sigma / (4294967296.0 * std::sqrt(kDraws / 12.0));
  std::vector<uint16_t> weights(units);
  for (size_t i = 0; i < units; ++i) {
    double sum = -0.5 * kDraws * 4294967296.0;
    for (const uint32_t key : keys) sum += Hash(key, static_cast<uint32_t>(i));
    weights[i] = ToBf16(static_cast<float>(sum * scale));
  }
  return weights;
}

}  // namespace

AdamSim::AdamSim(const AdamOptions& options, size_t units)
    : AdamSim(options, InitialWeights(options, units)) {}

AdamSim::AdamSim(const AdamOptions& options, std::span<const uint16_t> weights)
    : options_(options),
      masters_(weights.size()),
      momentum_(weights.size()),
      variance_(weights.size()),
      weights_(weights.begin(), weights.end()) {
  const uint32_t key = StreamKey(options_.seed, 0x40000000u);
  for (size_t i = 0; i < weights.size(); ++i) {
    // The middle of them is the weight itself.
    const uint32_t draw = options.settled ? Hash(key, static_cast<uint32_t>(i)) : 0x7fff;
    masters_[i] = WithinRounding(weights[i], draw);
  }
}

void AdamSim::Step() {
  beta1_power_ *= options_.beta1;
  beta2_power_ *= options_.beta2;
  const uint32_t key = StreamKey(options_.seed, ++steps_);
  const float momentum_rate = 1 - options_.beta1;
  const float variance_rate = 1 - options_.beta2;
  const auto momentum_scale = static_cast<float>(options_.learning_rate / (1 - beta1_power_));
  const auto variance_scale = static_cast<float>(1 / (1 - beta2_power_));
  const float decay = options_.learning_rate * options_.weight_decay;
  const float epsilon = options_.epsilon;
  float* const masters = masters_.data();
  float* const momentum = momentum_.data();
  float* const variance = variance_.data();
  uint16_t* const weights = weights_.data();
  const size_t units = weights_.size();
  for (size_t i = 0; i < units; ++i) {
    const float gradient = RoughNormal(Hash(key, static_cast<uint32_t>(i)));
    momentum[i] += momentum_rate * (gradient - momentum[i]);
    variance[i] += variance_rate * (gradient * gradient - variance[i]);
    const float root = std::sqrt(variance[i] * variance_scale);
    masters[i] -= momentum_scale * momentum[i] / (root + epsilon) + decay * masters[i];
    weights[i] = ToBf16(masters[i]);
  }
}

}  // namespace weightcast::delta
