// Rules as data: how a model family's Megatron parameters become Hugging Face tensors. A rule says
// what a parameter holds and how it is cut, never how to copy it; compile_plan.cc turns rules into
// a plan. Adding a family: docs/design/rules.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "layout/plan.h"

namespace weightcast::bridge {

// Numbers of a model that sizes are made of; config.json gives them (dims.cc has the keys).
enum class Dim : uint8_t { kOne, kVocab, kHidden, kFfn, kHeads, kKvHeads, kHeadDim };
inline constexpr size_t kDims = 7;

// a * b.
struct Extent {
  Dim a = Dim::kOne;
  Dim b = Dim::kOne;
};

// How tensor parallelism cuts the Megatron parameter.
enum class Cut : uint8_t {
  kReplicated,  // every rank of the tensor group holds all of it
  kRows,        // "column parallel": rank t holds the t-th equal part of the rows
  kCols,        // "row parallel": ... of the columns
  kVocabRows,   // kRows after rows were padded up; the padding never leaves
};

// In which order a parameter's rows hold its outputs, when there are several.
enum class Fusion : uint8_t {
  kNone,       // one output
  kPerKvHead,  // for each KV head its part of every output: [q | k | v] [q | k | v] ...; Cut::kRows
               // cuts the interleaved rows, so that a rank's first and last group may be parts
  kPerRank,    // each rank holds its part of every output: [gate_t | up_t]
};

// Which ranks hold the parameter.
enum class Holder : uint8_t {
  kLayer,       // the stage of the decoder layer that `*` stands for
  kFirstStage,  // the first stage, in its first chunk
  kLastStage,   // the last stage, in its last chunk
};

// Whether the parameter exists.
enum class When : uint8_t {
  kAlways,
  kUntied,          // embedding and output layer have weights of their own
  kTiedOverStages,  // they share one weight, and first and last stage are not the same
};

// A canonical tensor. `*` in the name is the global layer number. [rows, cols], or [rows] without.
struct Output {
  const char* name = nullptr;
  Extent rows = {};
  std::optional<Extent> cols = std::nullopt;
};
inline constexpr size_t kOutputsMax = 4;

struct Rule {
  const char* name = nullptr;        // Megatron's, with Transformer Engine; `*` is the layer number
  const char* local_name = nullptr;  // its spelling in the local spec, where that differs
  Holder holder = Holder::kLayer;
  Cut cut = Cut::kReplicated;
  Fusion fusion = Fusion::kNone;
  When when = When::kAlways;
  bool copy = false;  // another place of the same output, never its owner (a tied output layer)
  bool fp32 = false;  // held in fp32, whatever the model's dtype is
  layout::ValueMap map = layout::ValueMap::kCopy;
  Output outputs[kOutputsMax] = {};  // up to the first without a name

  constexpr std::span<const Output> used_outputs() const {
    size_t n = 0;
    while (n < kOutputsMax && outputs[n].name != nullptr) ++n;
    return {outputs, n};
  }
};

struct Family {
  const char* name;
  std::span<const std::string_view> architectures;  // config.json: "architectures"
  std::span<const std::span<const Rule>> rules;     // groups that families share
  std::span<const std::string_view> refused;        // config.json: flags that, if true, mean
                                                    // parameters for which there is no rule
  bool tied_by_default = false;                     // when config.json does not say
  // A tied model has no output layer of its own; a checkpoint that lists one all the same
  // (`alias`) gets the embedding's values under that name.
  const char* tied_alias = "lm_head.weight";
  const char* tied_to = "model.embed_tokens.weight";
};

}  // namespace weightcast::bridge
