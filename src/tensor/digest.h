// Tensor digest: 127 bits, linear over the canonical bytes of one tensor, exact modulo 2^127 - 1.
// It sums from any slicing and is updated in O(changes). Definition, constants and proof sketch:
// docs/formats/digest.md. It finds accidents, not attackers.
//
// Kernels: portable, AVX2, AVX-512; the best one the CPU has is chosen at the first use. All give
// equal results. Every function is pure and may run on many threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "tensor/inventory.h"

namespace weightcast::tensor {

// A number in [0, 2^127 - 1), little endian in 16 bytes on the wire.
struct TensorDigest {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const TensorDigest&) const = default;
  std::string hex() const;        // 32 digits, most significant first
  void Store(uint8_t* to) const;  // 16 bytes
  // Errors: kInvalidData if not below 2^127 - 1.
  static Result<TensorDigest> Load(const uint8_t* from);
  static Result<TensorDigest> ParseHex(std::string_view text);
};
TensorDigest operator+(TensorDigest a, TensorDigest b);
TensorDigest operator-(TensorDigest a, TensorDigest b);

// What a part of a tensor contributes: its digest and how many units it covers. Zeros add nothing
// to a digest, so a partial without a count would hide missing coverage.
struct Partial {
  TensorDigest digest;
  int64_t units = 0;

  bool operator==(const Partial&) const = default;
  Partial& operator+=(const Partial& other) {
    digest = digest + other.digest;
    units += other.units;
    return *this;
  }
};

// A sub-matrix of a tensor's Matrix (in units): rows row + i * row_step, cols col + j * col_step.
struct Box {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t row_step = 1;
  int64_t col = 0;
  int64_t cols = 0;
  int64_t col_step = 1;

  int64_t units() const { return rows * cols; }
  bool operator==(const Box&) const = default;
  // The whole of a matrix.
  static Box All(const Matrix& m) { return {0, m.rows, 1, 0, m.cols, 1}; }
};
std::string BoxText(const Box& box);
// Steps ≥ 1, nothing negative, last row and column inside the matrix (an empty box is inside).
bool Inside(const Box& box, const Matrix& matrix);

// The digest of `bytes` lying at byte `offset` of a tensor's canonical bytes.
TensorDigest DigestRun(int64_t offset, ByteSpan bytes);

// The digest of a box whose units are packed row by row in `packed`.
//   Requires: Inside(box, matrix); packed.size() == box.units() * matrix.unit_bytes.
TensorDigest DigestBox(const Matrix& matrix, const Box& box, ByteSpan packed);

// Digest change of a box in which some units changed: the sum of the terms of (next - base).
// O(changed).
//   Requires: `changed` ascending, the positions (packed unit index) of all units that differ.
TensorDigest DigestChange(const Matrix& matrix, const Box& box, ByteSpan base, ByteSpan next,
                          std::span<const uint32_t> changed);

enum class DigestKernel : uint8_t { kPortable, kAvx2, kAvx512 };
// For tests and benches: forces a kernel. False if this CPU lacks it.
bool ForceDigestKernel(DigestKernel kernel);

}  // namespace weightcast::tensor
