// The ordered list of (name, dtype, shape) of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace weightcast::tensor {

using Shape = std::vector<int64_t>;  // [] is a scalar; a 0 anywhere makes it empty

// Bounds for shapes from outside: at most kDimsMax dimensions, each ≥ 0, and a byte size < 2^62.
inline constexpr size_t kDimsMax = 16;
inline constexpr size_t kNameBytesMax = 4096;

// Every tensor is also a matrix of units, in row-major order: rows = product of all dimensions but
// the last, cols = the last. A vector [n] has n rows of 1 column (so that a bias is cut like the
// rows of its weight), a scalar is 1 x 1, a tensor of sub-byte elements is one row of its bytes.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int unit_bytes = 1;

  int64_t units() const { return rows * cols; }
  int64_t bytes() const { return units() * unit_bytes; }
  bool operator==(const Matrix&) const = default;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kBf16;
  Shape shape;

  Matrix matrix() const;
  int64_t bytes() const { return matrix().bytes(); }
  int64_t units() const { return matrix().units(); }
  bool operator==(const TensorSpec&) const = default;
};

std::string ShapeText(const Shape& shape);     // "[4096, 1024]"
std::string SpecText(const TensorSpec& spec);  // "BF16 [4096, 1024]"

// Errors: kInvalidData (name empty, too long, not UTF-8 or "__metadata__", too many dimensions,
// negative, byte size overflows or is not whole; zeros count as ones where the size is bounded).
// The one check that every reader of foreign shapes calls. Before it, matrix() may overflow.
Status CheckSpec(const TensorSpec& spec);

// Appends the spec's part of the canonical encoding (docs/formats/root.md).
//   Requires: CheckSpec(spec).
void AppendCanonical(const TensorSpec& spec, Bytes* out);

// Sorted by name bytes, names unique. Immutable once made; share it as shared_ptr<const Inventory>.
class Inventory {
 public:
  // Sorts. Errors: kInvalidData (CheckSpec, duplicate names: all are listed).
  static Result<Inventory> Make(std::vector<TensorSpec> tensors);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const TensorSpec& operator[](size_t i) const { return tensors_[i]; }
  size_t size() const { return tensors_.size(); }
  // Index of a name, or -1. O(log n).
  int64_t Find(std::string_view name) const;
  int64_t units() const { return units_; }
  int64_t bytes() const { return bytes_; }
  // SHA-256 over the canonical encoding (docs/formats/root.md): equal inventories, equal
  // signatures.
  const LayoutSignature& signature() const { return signature_; }
  bool operator==(const Inventory& other) const { return tensors_ == other.tensors_; }

 private:
  std::vector<TensorSpec> tensors_;
  int64_t units_ = 0;
  int64_t bytes_ = 0;
  LayoutSignature signature_;
};

// Names (with specs) only in `a`, only in `b`, and in both with another dtype or shape; as one
// message for people, empty if the inventories are equal.
std::string DifferenceText(const Inventory& expected, const Inventory& found);

}  // namespace weightcast::tensor
