// A deterministic stand-in for training: fp32 AdamW on independent weights whose bf16 casts are
// what a trainer publishes. It gives the densities and step sizes of real reinforcement learning (a
// few tenths of a percent to a few percent a step, nearly all of them one unit in the last place),
// which uniform random changes would not. Used by tests, `weightcast bench` and `weightcast demo`.
// Equal options give equal weights on every CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weightcast::delta {

struct AdamOptions {
  uint64_t seed = 1;
  float sigma = 0.02f;  // of the initial weights, which are normal and exact in bf16
  float learning_rate = 1e-6f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;
  // Masters begin anywhere among the values that round to their weights, as after long training;
  // else at the weights, as in the first steps from a bf16 checkpoint, when the weights alone
  // decide what changes.
  bool settled = false;
};

class AdamSim {
 public:
  AdamSim(const AdamOptions& options, size_t units);
  // Continues from published weights, as a trainer that restarts without its optimizer state.
  AdamSim(const AdamOptions& options, std::span<const uint16_t> weights);

  // One optimizer step with independent, roughly normal gradients.
  void Step();

  // The bf16 casts (round to nearest, ties to even) of the masters.
  const std::vector<uint16_t>& weights() const { return weights_; }

 private:
  AdamOptions options_;
  uint32_t steps_ = 0;
  double beta1_power_ = 1;
  double beta2_power_ = 1;
  std::vector<float> masters_;
  std::vector<float> momentum_;
  std::vector<float> variance_;
  std::vector<uint16_t> weights_;
};

}  // namespace weightcast::delta
