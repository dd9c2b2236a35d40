// Megatron's parallel layout: how many ranks of each kind, who sits where, and which layers a rank
// holds. Facts: Megatron-Core's parallel_state and transformer_layer offsets. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "layout/pipeline_layout.h"

namespace weightcast::layout {

struct Coordinates {
  int32_t rank = 0, tp = 0, pp = 0, dp = 0, cp = 0, ep = 0, etp = 0, edp = 0;
  bool operator==(const Coordinates&) const = default;
};
std::string CoordinatesText(const Coordinates& at);  // "rank 3 (tp 1, pp 1, dp 0, cp 0, ...)"

// Bounds for numbers from outside; far above what exists, low enough that nothing overflows.
inline constexpr int32_t kWorldMax = 1 << 20;
inline constexpr int32_t kLayersMax = 1 << 16;

struct Topology {
  int32_t world = 1;
  int32_t tp = 1;
  int32_t pp = 1;
  int32_t vpp = 1;  // virtual pipeline chunks a rank
  int32_t cp = 1;
  int32_t ep = 1;
  int32_t etp = 1;
  int32_t num_layers = 0;
  int32_t layers_in_first_stage = -1;  // -1: not given
  int32_t layers_in_last_stage = -1;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  // A custom layout, in place of the four above: chunk v of stage p is number v * pp + p.
  std::vector<PipelineChunk> layout;

  int32_t dp() const { return world / (tp * pp * cp); }

  // Errors: kInvalidData naming the numbers that do not fit (world not divisible, layers that
  // cannot be split evenly, ...). Everything below requires that it passed.
  Status Check() const;

  // Megatron's default order: tp fastest, then cp, dp (ep/etp factor the same ranks), pp slowest.
  Coordinates At(int32_t rank) const;

  // Global (0-based) number of the first decoder layer of a chunk, and how many it holds.
  struct LayerRange {
    int32_t first = 0;
    int32_t count = 0;
    bool operator==(const LayerRange&) const = default;
  };
  LayerRange LayersOf(int32_t pp_rank, int32_t vpp_chunk) const;

  // Where the other modules are.
  struct Chunk {
    int32_t stage = 0;
    int32_t chunk = 0;
    bool operator==(const Chunk&) const = default;
  };
  Chunk EmbeddingAt() const { return {0, 0}; }
  Chunk OutputAt() const { return {pp - 1, vpp - 1}; }
  Chunk MtpAt() const;        // what predicts further tokens, if anything does
  Chunk LastLayerAt() const;  // the decoder's last layer

  bool operator==(const Topology&) const = default;
};

}  // namespace weightcast::layout
