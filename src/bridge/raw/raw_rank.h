// One rank and what its parameters hold: the few ways in which Megatron lays rows and columns.
#pragma once

#include <string>
#include <vector>

#include "bridge/raw/raw_model.h"
#include "layout/plan.h"

namespace weightcast::bridge::raw {

// One of several equal parts.
struct Part {
  int64_t index = 0;
  int64_t of = 1;
};

// A parameter of a rank. `slices` count tensors by Model::NumberOf; their `param` is not set.
struct Param {
  std::string key;
  tensor::DType dtype = tensor::DType::kBf16;
  tensor::Shape shape;
  bool copy = false;  // of what another parameter holds and sends
  std::vector<layout::Slice> slices;

  int64_t cols() const { return shape.size() == 1 ? 1 : shape.back(); }
};

// Where a layer is: what stands in front of its names, and its number in the model (-1: a layer
// that predicts further tokens).
struct Layer {
  std::string megatron;
  std::string hf;
  int32_t number = -1;
};

class Rank {
 public:
  Rank(Model& its_model, const layout::Coordinates& coordinates)
      : model(its_model), at(coordinates) {}

  Model& model;
  const layout::Coordinates at;
  int32_t chunk = 0;  // of which parameters are added
  std::vector<Param> params;
  int64_t slices = 0;  // of them

  Part tp() const { return {at.tp, model.topology.tp}; }
  Part etp() const { return {at.etp, model.topology.etp}; }

  // Adds a parameter that holds nothing yet. Good until the next one is added.
  Param& Add(const std::string& name, tensor::Shape shape);
  // Rows [row, row + rows) of the tensor lie in `param` from its row `where` on.
  void Lay(Param& param, const Tensor& tensor, int64_t row, int64_t rows, int64_t where);
  void Put(Param& param, const Tensor& tensor, layout::Slice slice);

  void Whole(const std::string& name, const Tensor& tensor);
  void RowPart(const std::string& name, const Tensor& tensor, Part part);
  void ColPart(const std::string& name, const Tensor& tensor, Part part);
  // The rank's gate, then the rank's up.
  void GateUp(const std::string& name, const Tensor& gate, const Tensor& up, Part part);
  // The rank's part of the padded vocabulary; the padding is nobody's.
  enum class Use { kOwn, kCopy, kUnused };  // unused: there, and nobody looks at what it holds
  void VocabPart(const std::string& name, const Tensor& tensor, Use use);
};

}  // namespace weightcast::bridge::raw
