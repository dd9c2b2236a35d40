// Megatron's custom pipeline layout (pipeline_model_parallel_layout): what every chunk of every
// stage holds. Two spellings of the same:
//   "Ett|(tt|)*2,m|L"                      one letter a module: E embedding, t decoder layer,
//                                          m module that predicts further tokens, L output layer;
//                                          '|' ends a stage, x*k and (...)*k repeat, commas say
//                                          nothing
//   [["embedding", "decoder"], ["loss"]]   words, as JSON or Python prints lists of lists
// Pure. Facts: Megatron-Core's PipelineParallelLayerLayout.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weightcast::layout {

// The embedding is in the first chunk and the output layer in the last: a layout cannot say else.
struct PipelineChunk {
  int32_t first_layer = 0;  // decoder layers in all chunks before, 0-based
  int32_t layers = 0;
  int32_t mtp_layers = 0;
  bool operator==(const PipelineChunk&) const = default;
};

// Modules and ends of stages, once repeats are written out.
inline constexpr int64_t kLayoutModulesMax = int64_t{1} << 20;

// The chunks in the order of the layers: chunk v of stage p of P is number v * P + p. Untrusted.
// Errors: kInvalidData with the place, what was expected and what was found: a letter, word or
// repeat that is none; not exactly one embedding, first of all, and one output layer, last of all;
// a decoder layer behind a prediction module; prediction modules in several chunks; too many
// modules.
Result<std::vector<PipelineChunk>> ParsePipelineLayout(std::string_view text);

}  // namespace weightcast::layout
