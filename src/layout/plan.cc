#include "layout/plan.h"

#include "base/bytes.h"
#include "base/hash.h"

namespace weightcast::layout {
namespace {

constexpr std::string_view kMagic = "weightcast plan 1\n";

void PutSlice(const Slice& s, ByteWriter& out) {
  for (const int64_t v :
       {int64_t{s.tensor}, s.box.row, s.box.rows, s.box.row_step, s.box.col, s.box.cols,
        s.box.col_step, int64_t{s.param}, s.source, s.row_stride, s.col_stride}) {
    out.Put(v);
  }
  out.Put(static_cast<uint8_t>(s.map));
}

void PutRank(const RankPlan& rank, ByteWriter& out) {
  out.PutVarint(rank.params.size());
  for (const Param& p : rank.params) {
    out.PutString(p.key);
    out.Put(static_cast<uint8_t>(p.dtype));
    out.PutVarint(p.shape.size());
    for (const int64_t n : p.shape) out.Put(n);
  }
  out.PutVarint(rank.ignored.size());
  for (const std::string& pattern : rank.ignored) out.PutString(pattern);
  out.PutVarint(rank.slices.size());
  for (const Slice& s : rank.slices) PutSlice(s, out);
}

}  // namespace

PlanHash Plan::Hash() const {
  Bytes encoded;
  ByteWriter out(&encoded);
  Sha256 sha;
  out.PutBytes(AsBytes(kMagic));
  out.PutString(family);
  out.PutBytes(inventory->signature().bytes());
  out.PutVarint(ranks.size());
  for (const RankPlan& rank : ranks) {
    PutRank(rank, out);
    sha.Update(encoded);  // rank by rank: the encoding is never held whole
    encoded.clear();
  }
  sha.Update(encoded);
  return PlanHash::From(sha.Finish().bytes());
}

std::optional<Owner> FindOwner(const Plan& plan, int32_t tensor, int64_t row, int64_t col) {
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const Slice& s : plan.ranks[r].slices) {
      if (s.tensor != tensor) continue;
      const int64_t i = (row - s.box.row) / s.box.row_step;
      const int64_t j = (col - s.box.col) / s.box.col_step;
      if (row < s.box.row || col < s.box.col || i >= s.box.rows || j >= s.box.cols ||
          s.box.row + i * s.box.row_step != row || s.box.col + j * s.box.col_step != col) {
        continue;
      }
      return Owner{static_cast<int32_t>(r), &s, s.source + i * s.row_stride + j * s.col_stride};
    }
  }
  return std::nullopt;
}

std::optional<TensorUnit> FindTensorUnit(const RankPlan& rank, int32_t param, int64_t unit) {
  for (const Slice& s : rank.slices) {
    const int64_t distance = unit - s.source;
    if (s.param != param || distance < 0) continue;
    // The larger stride counts whole lines; one line counts none.
    const bool row_major = s.box.cols == 1 || (s.box.rows > 1 && s.row_stride >= s.col_stride);
    const int64_t i = row_major ? distance / s.row_stride : distance % s.col_stride / s.row_stride;
    const int64_t j =
        row_major ? (distance - i * s.row_stride) / s.col_stride : distance / s.col_stride;
    if (i >= s.box.rows || j >= s.box.cols || i * s.row_stride + j * s.col_stride != distance) {
      continue;
    }
    return TensorUnit{s.tensor, s.box.row + i * s.box.row_step, s.box.col + j * s.box.col_step};
  }
  return std::nullopt;
}

Plan IdentityPlan(std::shared_ptr<const tensor::Inventory> inventory) {
  Plan plan;
  plan.family = "hf";
  RankPlan& rank = plan.ranks.emplace_back();
  for (size_t i = 0; i < inventory->size(); ++i) {
    const tensor::TensorSpec& spec = (*inventory)[i];
    rank.params.push_back({spec.name, spec.dtype, spec.shape});
    const tensor::Matrix matrix = spec.matrix();
    if (matrix.units() == 0) continue;  // nothing to own
    Slice slice;
    slice.tensor = slice.param = static_cast<int32_t>(i);
    slice.box = Box::All(matrix);
    slice.row_stride = matrix.cols;
    rank.slices.push_back(slice);
  }
  plan.inventory = std::move(inventory);
  return plan;
}

}  // namespace weightcast::layout
