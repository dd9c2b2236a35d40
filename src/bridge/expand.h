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

// `box` of output `output` (its matrix; of a packed one, an expert's part of it): unit (i, j) of
// the box is unit source + i * row_stride + j * col_stride of the shard.
struct Piece {
  int32_t output = 0;
  tensor::Box box;
  int64_t source = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

struct Shard {
  tensor::Shape shape;
  std::vector<Piece> pieces;  // by output, then place
  int64_t real_units = 0;     // without padded rows, which lie at the end
};

// Cut of a model into tensor ranks.
struct TensorCut {
  int32_t ranks = 1;       // of the rule's group
  int64_t vocab_rows = 0;  // padded rows of the embedding over all tensor ranks
};

// How many different shards the rule's parameter has. Rank r of the group holds shard
// r * shards / ranks.
int32_t ShardsOf(const Rule& rule, const Dims& dims, const TensorCut& cut);

// An output's shape: [rows, columns], or [columns, rows] if the rule transposes; experts come
// first.
tensor::Shape ShapeOf(const Rule& rule, const Output& output, const Dims& dims);

// Of how many runs of rows the rule's parameter is made, all shards together; at most `max`.
int64_t RunsOf(const Rule& rule, const Dims& dims, int64_t max);

// Errors: kInvalidData if rows or columns cannot be cut evenly, naming the parameter and the sizes.
//   Requires: 0 <= index < ShardsOf(rule, dims, cut).
Result<Shard> ExpandRule(const Rule& rule, const Dims& dims, const TensorCut& cut, int32_t index);

}  // namespace weightcast::bridge
