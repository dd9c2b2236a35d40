#include "bridge/raw/raw_rank.h"

#include <algorithm>
#include <utility>

namespace weightcast::bridge::raw {

using layout::Slice;

constexpr int64_t kSlicesMax = int64_t{1} << 19;  // of a rank, some 100 bytes each
constexpr double kUnitsMax = 1e15;                // of a parameter: places in it are far below 2^63

Param& Rank::Add(const std::string& name, tensor::Shape shape) {
  const std::string key = "vp" + std::to_string(chunk) + "/" + name;
  double units = 1;
  for (const int64_t size : shape) units *= static_cast<double>(size);
  if (units > kUnitsMax) {
    model.Fault(key + ": more units than any parameter has");
    shape.assign(shape.size(), 1);
  }
  return params.emplace_back(key, model.trainer.params_dtype, std::move(shape));
}

void Rank::Put(Param& param, const Tensor& tensor, Slice slice) {
  if (model.stopped()) return;
  if (++slices > kSlicesMax) {
    return model.Stop("a plan of more than " + std::to_string(kSlicesMax) + " slices");
  }
  slice.tensor = model.NumberOf(tensor);
  param.slices.push_back(slice);
}

void Rank::Lay(Param& param, const Tensor& tensor, int64_t row, int64_t rows, int64_t where) {
  const int64_t cols = param.cols();
  Slice slice;
  slice.box = {row, rows, 1, 0, cols, 1};
  slice.source = where * cols;
  slice.row_stride = cols;
  Put(param, tensor, slice);
}

void Rank::Whole(const std::string& name, const Tensor& tensor) {
  Param& param = Add(name, tensor.shape);
  param.dtype = tensor.dtype.value_or(param.dtype);
  Lay(param, tensor, 0, tensor::TensorSpec{"", param.dtype, param.shape}.matrix().rows, 0);
}

void Rank::RowPart(const std::string& name, const Tensor& tensor, Part part) {
  tensor::Shape shape = tensor.shape;
  const int64_t rows = shape[0] = model.Even(shape[0], part.of, "rows of " + name);
  Lay(Add(name, std::move(shape)), tensor, part.index * rows, rows, 0);
}

void Rank::ColPart(const std::string& name, const Tensor& tensor, Part part) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = model.Even(tensor.shape[1], part.of, "columns of " + name);
  Slice slice;
  slice.box = {0, rows, 1, part.index * cols, cols, 1};
  slice.row_stride = cols;
  Put(Add(name, {rows, cols}), tensor, slice);
}

void Rank::GateUp(const std::string& name, const Tensor& gate, const Tensor& up, Part part) {
  const int64_t ffn = model.Even(gate.shape[0], part.of, "rows of " + name);
  Param& param = Add(name, {2 * ffn, gate.shape[1]});
  Lay(param, gate, part.index * ffn, ffn, 0);
  Lay(param, up, part.index * ffn, ffn, ffn);
}

void Rank::VocabPart(const std::string& name, const Tensor& tensor, Use use) {
  const int64_t vocab = tensor.shape[0];
  const int64_t padded = model.VocabRows();
  if (padded < vocab) {
    model.Fault(name + ": padded to " + std::to_string(padded) + " rows, fewer than the model's " +
                std::to_string(vocab));
  }
  const int64_t rows = model.Even(padded, tp().of, "rows of " + name);
  const int64_t first = at.tp * rows;
  Param& param = Add(name, {rows, tensor.shape[1]});
  param.copy = use == Use::kCopy;
  if (first < vocab && use != Use::kUnused)
    Lay(param, tensor, first, std::min(rows, vocab - first), 0);
}

}  // namespace weightcast::bridge::raw
