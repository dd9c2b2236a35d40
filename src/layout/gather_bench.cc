// Copies out of shards, as ratios to memcpy of the same bytes (GB/s both ways counted once).
#include <benchmark/benchmark.h>

#include <cstring>

#include "layout/gather.h"

namespace weightcast::layout {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kCols = 4096;  // of the shard, bf16: larger than the caches

void Run(benchmark::State& state, int64_t shard_cols, int64_t row_stride, int64_t col_stride) {
  const int64_t rows = kCellUnits / shard_cols;
  Bytes shard(static_cast<size_t>(kRows * kCols * 2), 1);
  Bytes out;
  Chunk chunk;
  chunk.box = {0, rows, 1, 0, shard_cols, 1};
  chunk.fragments = {{chunk.box, 0, 0, row_stride, col_stride, ValueMap::kCopy}};
  const std::vector<ByteSpan> params = {shard};
  const tensor::TensorSpec spec{"w", tensor::DType::kBf16, {kRows, kCols}};
  for (auto _ : state) {
    GatherChunk(spec, chunk, params, &out);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(out.size()));
}

void Memcpy(benchmark::State& state) {
  Bytes from(static_cast<size_t>(kCellUnits * 2), 1), to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(from.size()));
}
BENCHMARK(Memcpy);

// Runs of `range` bytes out of longer rows: a box of columns.
void GatherColumns(benchmark::State& state) { Run(state, state.range(0) / 2, kCols, 1); }
BENCHMARK(GatherColumns)->Arg(256)->Arg(1024)->Arg(4096);

void GatherTransposed(benchmark::State& state) { Run(state, 1024, 1, kRows); }
BENCHMARK(GatherTransposed);

}  // namespace
}  // namespace weightcast::layout
