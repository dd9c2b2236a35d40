#include "bridge/expand.h"

#include <algorithm>
#include <string>

namespace weightcast::bridge {
namespace {

// Rows [first, first + rows) of an output, lying at row `at` of the whole (uncut) parameter, or of
// the shard for Fusion::kPerRank.
struct Run {
  int32_t output;
  int64_t first;
  int64_t rows;
  int64_t at;
};

Status CheckDivides(const Rule& rule, const char* what, int64_t n, int64_t by,
                    const char* by_what) {
  if (n % by == 0) return Ok();
  return Error{Code::kInvalidData, std::string(rule.name) + ": " + std::to_string(n) + " " + what +
                                       " are not divisible by " + by_what + " " +
                                       std::to_string(by)};
}

// The runs of which the parameter's rows are made, in the order in which they lie.
std::vector<Run> RunsOf(const Rule& rule, const Dims& dims) {
  const auto outputs = rule.used_outputs();
  const int64_t groups = rule.fusion == Fusion::kPerKvHead ? dims[Dim::kKvHeads] : 1;
  std::vector<Run> runs;
  int64_t at = 0;
  for (int64_t g = 0; g < groups; ++g) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const int64_t rows = dims(outputs[o].rows) / groups;
      runs.push_back({static_cast<int32_t>(o), g * rows, rows, at});
      at += rows;
    }
  }
  return runs;
}

// The part of `run` inside rows [from, from + rows) of the whole parameter, relative to `from`.
Run Clip(const Run& run, int64_t from, int64_t rows) {
  const int64_t begin = std::max(run.at, from);
  const int64_t end = std::min(run.at + run.rows, from + rows);
  return {run.output, run.first + begin - run.at, std::max<int64_t>(0, end - begin), begin - from};
}

// Each output's equal part, one after the other.
Result<std::vector<Run>> PerRankRuns(const Rule& rule, const Dims& dims, int32_t parts,
                                     int32_t index) {
  std::vector<Run> runs;
  int64_t at = 0;
  const auto outputs = rule.used_outputs();
  for (size_t o = 0; o < outputs.size(); ++o) {
    const int64_t rows = dims(outputs[o].rows);
    WC_TRY(CheckDivides(rule, "rows", rows, parts, "tensor parallel size"));
    runs.push_back({static_cast<int32_t>(o), index * (rows / parts), rows / parts, at});
    at += rows / parts;
  }
  return runs;
}

}  // namespace

int32_t ShardsOf(const Rule& rule, const TensorCut& cut) {
  return rule.cut == Cut::kReplicated ? 1 : cut.ranks;
}

Result<Shard> ExpandRule(const Rule& rule, const Dims& dims, const TensorCut& cut, int32_t index) {
  const auto outputs = rule.used_outputs();
  const int32_t parts = ShardsOf(rule, cut);
  int64_t cols = outputs[0].cols ? dims(*outputs[0].cols) : 1;
  int64_t first_col = 0;
  if (rule.cut == Cut::kCols) {
    WC_TRY(CheckDivides(rule, "columns", cols, parts, "tensor parallel size"));
    cols /= parts;
    first_col = index * cols;
  }

  std::vector<Run> runs;
  int64_t rows = 0;  // of the shard
  if (rule.fusion == Fusion::kPerRank) {
    runs = WC_TRY(PerRankRuns(rule, dims, parts, index));
    rows = runs.back().at + runs.back().rows;
  } else {
    const std::vector<Run> whole = RunsOf(rule, dims);
    const int64_t real = whole.back().at + whole.back().rows;
    const int64_t all = rule.cut == Cut::kVocabRows ? cut.vocab_rows : real;
    if (all < real) {
      return Error{Code::kInvalidData, std::string(rule.name) + ": padded to " +
                                           std::to_string(all) + " rows, fewer than the model's " +
                                           std::to_string(real)};
    }
    const int64_t row_parts = rule.cut == Cut::kCols ? 1 : parts;
    WC_TRY(CheckDivides(rule, "rows", all, row_parts, "tensor parallel size"));
    rows = all / row_parts;
    const int64_t from = rule.cut == Cut::kCols ? 0 : index * rows;
    for (const Run& run : whole) {
      const Run part = Clip(run, from, rows);
      if (part.rows > 0) runs.push_back(part);
    }
    std::ranges::stable_sort(runs, {}, &Run::output);
  }

  Shard shard;
  shard.shape = outputs[0].cols ? tensor::Shape{rows, cols} : tensor::Shape{rows};
  for (const Run& run : runs) {
    Piece piece;
    piece.output = run.output;
    piece.box = {run.first, run.rows, 1, first_col, cols, 1};
    piece.source = run.at * cols;
    piece.row_stride = cols;
    shard.pieces.push_back(piece);
    shard.real_units += run.rows * cols;
  }
  return shard;
}

}  // namespace weightcast::bridge
