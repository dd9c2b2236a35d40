// Rules as data: how a model family's Megatron parameters become Hugging Face tensors. A rule says
// what a parameter holds and how it is cut, never how to copy it; compile_plan.cc turns rules into
// a plan. Adding a family: docs/design/rules.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "bridge/setting.h"
#include "layout/plan.h"

namespace weightcast::bridge {

// Numbers of a model that sizes are made of; config.json gives them (dims.cc has the keys).
enum class Dim : uint8_t {
  kOne,
  kVocab,
  kHidden,
  kFfn,
  kHeads,
  kKvHeads,
  kHeadDim,
  kHeadsPerKvHead,
  kExperts,
  kExpertFfn,
  kSharedFfn,  // of all shared experts together
  kQueryRank,  // multi-head latent attention: ranks of the query's and the KV's projections,
  kKvRank,     // and a head's parts without and with position, and its value
  kNopeDim,
  kRopeDim,
  kValueDim,
  kLinearKeyHeads,  // gated delta net
  kLinearValueHeads,
  kLinearValueHeadsPerKeyHead,
  kLinearKeyDim,
  kLinearValueDim,
  kConvWidth,
  kVisionHidden,
  kVisionFfn,
  kVisionHeads,
  kVisionHeadDim,
  kVisionChannels,
  kVisionFrames,  // of a patch
  kVisionPatch,
  kVisionPositions,
  kVisionMerged,  // hidden size after spatial merging
  kVisionOut,
  kCount
};
inline constexpr size_t kDims = static_cast<size_t>(Dim::kCount);

// A sum of at most three products n * a * b.
struct Extent {
  struct Term {
    int64_t n = 0;
    Dim a = Dim::kOne;
    Dim b = Dim::kOne;
  };
  Term terms[3] = {};

  constexpr Extent() = default;
  constexpr Extent(Dim a) : Extent(1, a) {}  // NOLINT: a size is an extent
  constexpr Extent(int64_t n, Dim a, Dim b = Dim::kOne) { terms[0] = {n, a, b}; }
  constexpr bool given() const { return terms[0].n != 0; }
};
constexpr Extent operator*(Dim a, Dim b) { return {1, a, b}; }
constexpr Extent operator*(int64_t n, Extent e) {
  for (Extent::Term& t : e.terms) t.n *= n;
  return e;
}
constexpr Extent operator+(Extent a, const Extent& b) {
  size_t i = 0;
  while (i < std::size(a.terms) && a.terms[i].n != 0) ++i;
  for (const Extent::Term& t : b.terms) {
    if (t.n != 0) a.terms[i++] = t;  // one too many does not compile
  }
  return a;
}

// How a parameter is cut among the ranks of its tensor group: for experts the expert tensor ranks.
enum class Cut : uint8_t {
  kReplicated,  // every rank holds all of it
  kRows,        // "column parallel": rank t holds the t-th equal part of the rows of each section
  kCols,        // "row parallel": ... of the columns
  kVocabRows,   // kRows after rows were padded up; the padding never leaves
  kKvRows,      // kRows; of more ranks than KV heads, neighbours hold the same head
};

// Rows of a group: for each of `blocks`, `rows` rows of one output. Block i of all groups (i counts
// on over groups) lies in the output's rows from `base` + i * `stride`, `step` rows apart.
struct Part {
  int output = 0;
  Extent rows = {};
  Dim blocks = Dim::kOne;
  Extent base = {};
  Extent stride = {};  // not given: rows
  int step = 1;
};
inline constexpr size_t kPartsMax = 4;

// Groups one after the other, each with its parts one after the other.
struct Section {
  Dim groups = Dim::kOne;
  Part parts[kPartsMax] = {};  // up to the first without rows
};
inline constexpr size_t kSectionsMax = 6;

// What a parameter's rows hold, in their order. Cut::kRows cuts every section by itself: what is
// one section is concatenated over the ranks and then split, so that a rank's first and last group
// may be parts; a rank's shard has its share of each section, one after the other.
struct Rows {
  Section sections[kSectionsMax] = {};  // up to the first without parts
};

// Which layers have the parameter. The kinds that a layer has are known from config.json.
enum class Only : uint8_t { kAny, kFullAttention, kLinearAttention, kDense, kMoe };

// Whether the parameter exists.
enum class When : uint8_t {
  kAlways,
  kUntied,          // embedding and output layer have weights of their own
  kTiedOverStages,  // they share one weight, and first and last stage are not the same
  kMtpElsewhere,    // a chunk that is not the first stage's first predicts further tokens
  kQkvBias,         // attention_bias
  kQkNorm,          // use_qk_norm
  kQueryRank,       // the query has a low-rank projection
  kNoQueryRank,
  kRouterBias,     // the trainer corrects its router by a bias
  kSharedExperts,  // n_shared_experts
  kPerName,        // the checkpoint has a tensor for each expert,
  kPackedOutIn,    // or one for all: [expert, out, in]
  kPackedInOut,    // ... [expert, in, out]
  kMegatronTower,  // vision is made of Megatron's own modules,
  kKeptTower,      // or of the checkpoint's
};

// A canonical tensor. Names are below the stack's; from the root with a leading '/'. '#' is the
// global number of an expert. Without cols a vector.
struct Output {
  const char* name = nullptr;
  Extent shape[5] = {};  // up to the first that is not given
  // One tensor for all experts, which are its first dimension; `shape` is that of one.
  bool packed = false;
};
inline constexpr size_t kOutputsMax = 4;

struct Rule {
  // Megatron's name below the stack's, with Transformer Engine; '#' is the local number of an
  // expert.
  const char* name = nullptr;
  const char* local_name = nullptr;       // its spelling in the local spec, where that differs
  const char* sequential_name = nullptr;  // ... where each expert is a module
  Cut cut = Cut::kReplicated;
  const Rows* rows = nullptr;  // none: all of the one output's
  Only only = Only::kAny;
  When when = When::kAlways;
  bool copy = false;  // another place of the same output, never its owner (a tied output layer)
  // Of the last stage: where the last layer is, if the trainer has it so.
  bool after_layers = false;
  bool fp32 = false;            // held in fp32, whatever the model's dtype is
  bool transposed = false;      // outputs are [columns, rows]
  bool halves_swapped = false;  // of the columns
  layout::ValueMap map = layout::ValueMap::kCopy;
  Output outputs[kOutputsMax] = {};  // up to the first without a name

  constexpr std::span<const Output> used_outputs() const {
    size_t n = 0;
    while (n < kOutputsMax && outputs[n].name != nullptr) ++n;
    return {outputs, n};
  }
  constexpr bool per_expert() const {
    return std::string_view(name).find('#') != std::string_view::npos;
  }
};

// Which ranks hold the modules of a stack, and how many there are.
enum class Holder : uint8_t {
  kFirstStage,    // one, in the first stage's first chunk
  kLastStage,     // one, in the last stage's last chunk
  kMtpStage,      // one, where further tokens are predicted: there too, or as a custom layout says
  kLayers,        // the decoder's layers, over all stages
  kVisionLayers,  // numbered, all in the first stage's first chunk
  kDeepstack,
  kMtpLayers,  // numbered, all where further tokens are predicted
};

// Modules that rules describe. In both names '*' is a module's number, which for the decoder's
// layers is local in `megatron` and global in `hf`; '+' is the number after the decoder's layers;
// '@' is what Megatron calls the layer inside of a prediction module, '^' what a trainer calls the
// vision tower that it keeps as the checkpoint has it.
struct Stack {
  Holder holder = Holder::kLayers;
  const char* megatron = nullptr;
  const char* hf = nullptr;
  std::span<const std::span<const Rule>> rules;  // groups that families share
  When when = When::kAlways;                     // of all its rules
};

struct Family {
  const char* name;
  std::span<const std::string_view> architectures;  // config.json: "architectures"
  std::span<const Stack> stacks;
  std::span<const std::string_view> refused = {};  // config.json: flags that, if true, mean
                                                   // parameters for which there is no rule
  std::span<const Setting> settings = {};          // in place of the usual ones
  bool packed_by_default = false;                  // experts, when no checkpoint says
  bool in_out_before_5 = false;  // packed ones, in checkpoints from before transformers 5
  // Layers without experts are said by first_k_dense_replace and moe_layer_freq in config.json;
  // else by mlp_only_layers and decoder_sparse_step.
  bool dense_first = false;
  bool tied_by_default = false;  // when config.json does not say
  // A tied model has no output layer of its own; a checkpoint that lists one all the same
  // (`alias`) gets the embedding's values under that name.
  const char* tied_alias = "lm_head.weight";
  const char* tied_to = "model.embed_tokens.weight";
  // Where a larger model has this one as its text part, in place of "model.".
  const char* wrapped = nullptr;
};

// Whether `is` holds of any of the family's rules.
template <typename Is>
constexpr bool AnyRule(const Family& family, const Is& is) {
  for (const Stack& stack : family.stacks) {
    for (const std::span<const Rule> group : stack.rules) {
      for (const Rule& rule : group) {
        if (is(rule)) return true;
      }
    }
  }
  return false;
}

}  // namespace weightcast::bridge
