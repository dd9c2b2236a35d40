#include "bridge/expand.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

namespace weightcast::bridge {
namespace {

// Rows first, first + step, ... of an output, `rows` of them, lying at row `at` of their section,
// then of the shard.
struct Run {
  int32_t output = 0;
  int64_t first = 0;
  int64_t step = 1;
  int64_t rows = 0;
  int64_t at = 0;
};

Status CheckDivides(const Rule& rule, const char* what, int64_t n, int64_t by,
                    const char* by_what) {
  if (n % by == 0) return Ok();
  return Error{Code::kInvalidData, std::string(rule.name) + ": " + std::to_string(n) + " " + what +
                                       " are not divisible by " + by_what + " " +
                                       std::to_string(by)};
}

// The runs of which a section's rows are made, in the order in which they lie.
std::vector<Run> RunsOf(const Section& section, const Dims& dims) {
  std::vector<Run> runs;
  int64_t at = 0;
  for (int64_t g = 0; g < dims[section.groups]; ++g) {
    for (const Part& part : section.parts) {
      if (!part.rows.given()) break;
      const int64_t rows = dims(part.rows);
      const int64_t blocks = dims[part.blocks];
      const int64_t stride = part.stride.given() ? dims(part.stride) : rows * part.step;
      for (int64_t b = g * blocks; b < (g + 1) * blocks; ++b) {
        runs.push_back({part.output, dims(part.base) + b * stride, part.step, rows, at});
        at += rows;
      }
    }
  }
  return runs;
}

int64_t EndOf(const std::vector<Run>& runs) { return runs.back().at + runs.back().rows; }

// The part of `run` inside rows [from, from + rows) of its section, relative to `from`.
Run Clip(const Run& run, int64_t from, int64_t rows) {
  const int64_t begin = std::max(run.at, from);
  const int64_t end = std::min(run.at + run.rows, from + rows);
  return {run.output, run.first + (begin - run.at) * run.step, run.step,
          std::max<int64_t>(0, end - begin), begin - from};
}

// All rows of the one output, as a section.
Section Plain(const Rule& rule) { return {.parts = {{.rows = rule.outputs[0].shape[0]}}}; }

struct Cutter {
  const Rule& rule;
  const Dims& dims;
  const TensorCut& cut;
  int32_t parts;  // of rows
  int32_t index;
  std::vector<Run> runs = {};
  int64_t rows = 0;

  // The index-th of `parts` equal parts of a section, below what is there already.
  Status Add(const Section& section) {
    const std::vector<Run> whole = RunsOf(section, dims);
    const int64_t real = EndOf(whole);
    const int64_t all = rule.cut == Cut::kVocabRows ? cut.vocab_rows : real;
    if (all < real) {
      return Error{Code::kInvalidData, std::string(rule.name) + ": padded to " +
                                           std::to_string(all) + " rows, fewer than the model's " +
                                           std::to_string(real)};
    }
    WC_TRY(
        CheckDivides(rule, "rows", all, parts,
                     rule.per_expert() ? "expert tensor parallel size" : "tensor parallel size"));
    const int64_t mine = all / parts;
    for (const Run& run : whole) {
      Run part = Clip(run, index * mine, mine);
      if (part.rows == 0) continue;
      part.at += rows;
      runs.push_back(part);
    }
    rows += mine;
    return Ok();
  }
};

int64_t RowsPerUnit(const tensor::Shape& shape) {
  if (shape.size() < 3) return 1;
  return std::accumulate(shape.begin() + 1, shape.end() - 1, int64_t{1}, std::multiplies());
}

// The run as pieces; two where the halves of the columns are swapped.
void AddPieces(const Rule& rule, const Run& run, int64_t inner, int64_t first_col, int64_t cols,
               std::vector<Piece>* pieces) {
  WC_CHECK(run.step == 1 || inner == 1);
  Piece piece;
  piece.output = run.output;
  piece.box = {run.first * inner, run.rows * inner, run.step, first_col, cols, 1};
  piece.source = run.at * inner * cols;
  piece.row_stride = cols;
  if (!rule.halves_swapped) return pieces->push_back(piece);
  const int64_t half = cols / 2;
  piece.box.cols = half;
  for (const int64_t from : {half, int64_t{0}}) {  // in the order of the output
    Piece part = piece;
    part.box.col = half - from;
    part.source += from;
    pieces->push_back(part);
  }
}

// Rows become columns.
void Transpose(Piece* piece) {
  std::swap(piece->box.row, piece->box.col);
  std::swap(piece->box.rows, piece->box.cols);
  std::swap(piece->box.row_step, piece->box.col_step);
  std::swap(piece->row_stride, piece->col_stride);
}

}  // namespace

int64_t RunsOf(const Rule& rule, const Dims& dims, int64_t max) {
  if (rule.rows == nullptr) return 1;
  int64_t runs = 0;
  for (const Section& section : rule.rows->sections) {
    for (const Part& part : section.parts) {
      if (part.rows.given()) runs += dims[section.groups] * dims[part.blocks];
    }
  }
  return std::min(runs, max);
}

int32_t ShardsOf(const Rule& rule, const Dims& dims, const TensorCut& cut) {
  if (rule.cut == Cut::kReplicated) return 1;
  if (rule.cut != Cut::kKvRows) return cut.ranks;
  return static_cast<int32_t>(std::min<int64_t>(cut.ranks, dims[Dim::kKvHeads]));
}

tensor::Shape ShapeOf(const Rule& rule, const Output& output, const Dims& dims) {
  tensor::Shape shape;
  if (output.packed) shape.push_back(dims[Dim::kExperts]);
  for (const Extent& extent : output.shape) {
    if (extent.given()) shape.push_back(dims(extent));
  }
  if (rule.transposed) std::swap(shape[shape.size() - 2], shape.back());
  return shape;
}

Result<Shard> ExpandRule(const Rule& rule, const Dims& dims, const TensorCut& cut, int32_t index) {
  const int32_t parts = ShardsOf(rule, dims, cut);
  WC_TRY(CheckDivides(rule, "tensor ranks", cut.ranks, parts, "KV heads"));
  Shard shard;
  for (const Extent& extent : rule.outputs[0].shape) {
    if (extent.given()) shard.shape.push_back(dims(extent));
  }
  const bool vector = shard.shape.size() == 1;
  const int64_t inner = RowsPerUnit(shard.shape);
  int64_t cols = vector ? 1 : shard.shape.back();
  int64_t first_col = 0;
  if (rule.cut == Cut::kCols) {
    WC_TRY(
        CheckDivides(rule, "columns", cols, parts,
                     rule.per_expert() ? "expert tensor parallel size" : "tensor parallel size"));
    cols /= parts;
    first_col = index * cols;
  }
  if (!vector) shard.shape.back() = cols;

  const bool whole = rule.cut == Cut::kCols;
  Cutter cutter{rule, dims, cut, whole ? 1 : parts, whole ? 0 : index};
  if (rule.rows == nullptr) {
    WC_TRY(cutter.Add(Plain(rule)));
  } else {
    for (const Section& section : rule.rows->sections) {
      if (section.parts[0].rows.given()) WC_TRY(cutter.Add(section));
    }
  }
  shard.shape[0] = cutter.rows;
  std::ranges::stable_sort(cutter.runs, {}, &Run::output);
  for (const Run& run : cutter.runs) {
    AddPieces(rule, run, inner, first_col, cols, &shard.pieces);
    shard.real_units += run.rows * inner * cols;
  }
  for (Piece& piece : shard.pieces) {
    const bool packed_vector = vector && rule.outputs[static_cast<size_t>(piece.output)].packed;
    if (rule.transposed || packed_vector) Transpose(&piece);
  }
  return shard;
}

}  // namespace weightcast::bridge
