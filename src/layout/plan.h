// A plan: which place of which trainer shard holds each unit of each canonical tensor, for one
// model in one parallel layout. Compiled once, hashed, compared once; every rank compiles the same
// one.
//
// Pure data and pure functions; safe on many threads once built. Units and matrices:
// tensor/inventory.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::layout {

using tensor::Box;

// How a canonical unit is made from a shard's unit. Values are part of the plan hash.
enum class ValueMap : uint8_t {
  kCopy = 0,
  kAddOneBf16 = 1,  // bf16(w) + 1, computed in bf16: zero-centred norms
  kWidenToF32 = 2,  // bf16 -> fp32, exact
};

// A box of a canonical tensor and where its units lie in a shard's matrix of units:
// unit (i, j) of the box (i < box.rows, j < box.cols) is shard unit
// source + i * row_stride + j * col_stride of parameter `param`.
struct Slice {
  int32_t tensor = 0;  // index into the inventory
  Box box;
  int32_t param = 0;  // index into RankPlan::params
  int64_t source = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  ValueMap map = ValueMap::kCopy;

  bool operator==(const Slice&) const = default;
};

// One local tensor of a rank: key "vp<chunk>/<megatron local name>", as its shard file spells it.
struct Param {
  std::string key;
  tensor::DType dtype = tensor::DType::kBf16;
  tensor::Shape shape;

  bool operator==(const Param&) const = default;
};

// What one rank holds and what of it the rank owns. Slices are sorted by (tensor, box.row,
// box.col); only owned slices are listed: of replicas exactly one rank has the slice.
struct RankPlan {
  std::vector<Param> params;         // sorted by key; all that the shard must have, nothing else
  std::vector<std::string> ignored;  // patterns (MatchesGlob) of keys that may be there and are not
                                     // sent, by declared rule
  std::vector<Slice> slices;

  bool operator==(const RankPlan&) const = default;
};

struct Plan {
  // What the trainer produces: the run's inventory less its carried tensors.
  std::shared_ptr<const tensor::Inventory> inventory;
  std::string family;  // of the model, or "hf" for a plain directory
  std::vector<RankPlan> ranks;

  // SHA-256 over a canonical encoding of all of it (docs/formats/plan.md): equal plans, equal
  // hashes.
  PlanHash Hash() const;
};

// Whether two boxes of one tensor share a unit. O(1) but for boxes with large steps on both sides:
// O(smaller step).
bool Overlap(const Box& a, const Box& b);

// Proves that the owned slices of all ranks cover every unit of every tensor exactly once, lie
// inside their tensors, and read inside their params, in a dtype that their value map turns into
// the tensor's. O(n log n) where boxes do not interleave. Errors: kInvalidData listing every tensor
// that is not fully or is doubly covered, with ranks, parameters and boxes, and every slice that
// does not fit.
Status ProveCoverage(const Plan& plan);

// Who owns one unit of one tensor, and where it lies in the owner's parameter.
struct Owner {
  int32_t rank = 0;
  const Slice* slice = nullptr;  // into the plan
  int64_t unit = 0;              // of the shard's matrix of units
};
// Linear in the plan. Nothing if nobody owns it.
std::optional<Owner> FindOwner(const Plan& plan, int32_t tensor, int64_t row, int64_t col);

// The way back: the unit of the tensor that lies at `unit` of `rank`'s parameter, which owns it.
struct TensorUnit {
  int32_t tensor = 0;
  int64_t row = 0;
  int64_t col = 0;
};
// Linear in the rank's slices. Nothing if the rank does not send that unit from there.
std::optional<TensorUnit> FindTensorUnit(const RankPlan& rank, int32_t param, int64_t unit);

// The plan of one writer that holds whole canonical tensors (a Hugging Face directory): one rank,
// one parameter a tensor, key = tensor name.
Plan IdentityPlan(std::shared_ptr<const tensor::Inventory> inventory);

}  // namespace weightcast::layout
