// What one tensor rank holds of one rule's parameter: its shape, and which boxes of which outputs
// lie where in it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bridge/dims.h"
#include "bridge/rule.h"
#include "tensor/digest.h"

namespace weightcast::bridge {

// Rows `box` of output `output` (its matrix) start at unit `source` of the shard; a row of the box
// is row_stride units after the one before.
struct Piece {
  int32_t output = 0;
  tensor::Box box;
  int64_t source = 0;
  int64_t row_stride = 0;
};

struct Shard {
  tensor::Shape shape;
  std::vector<Piece> pieces;  // by output, then row
  int64_t real_units = 0;     // without padded rows, which lie at the end
};

// Cut of a model into tensor ranks.
struct TensorCut {
  int32_t ranks = 1;
  int64_t vocab_rows = 0;  // padded rows of the embedding over all ranks
};

// How many different shards the rule's parameter has: the tensor ranks, or 1 if it is replicated.
int32_t ShardsOf(const Rule& rule, const TensorCut& cut);

// Errors: kInvalidData if rows or columns cannot be cut evenly, naming the parameter and the sizes.
//   Requires: 0 <= index < ShardsOf(rule, cut).
Result<Shard> ExpandRule(const Rule& rule, const Dims& dims, const TensorCut& cut, int32_t index);

}  // namespace weightcast::bridge
