// Ratios to memcpy of the same bytes in the same run are what counts: see
// docs/design/digest_speed.md.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>

#include "tensor/digest.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

constexpr int64_t kCols = 4096;

// Larger than any last-level cache, or a piece that stays in the second level.
constexpr int64_t kLarge = int64_t{256} << 20;
constexpr int64_t kSmall = int64_t{256} << 10;

const Bytes& Data() {
  static const Bytes bytes = Pattern(1, kLarge);
  return bytes;
}

void SetBytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BM_Memcpy(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  const uint8_t* from = Data().data();
  Bytes to(size);
  for (auto _ : state) {
    std::memcpy(to.data(), from, size);
    benchmark::ClobberMemory();
  }
  SetBytes(state, state.range(0));
}
BENCHMARK(BM_Memcpy)->Arg(kSmall)->Arg(kLarge);

void BM_DigestFull(benchmark::State& state) {
  if (!ForceDigestKernel(static_cast<DigestKernel>(state.range(0)))) {
    state.SkipWithError("this CPU lacks the kernel");
    return;
  }
  const ByteSpan bytes = ByteSpan(Data()).first(static_cast<size_t>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(DigestRun(0, bytes));
  SetBytes(state, state.range(1));
}
BENCHMARK(BM_DigestFull)->ArgNames({"kernel", "bytes"})->ArgsProduct({{0, 1, 2}, {kSmall, kLarge}});

// A column slice of a BF16 matrix, as a rank of a row-parallel weight holds it.
void BM_DigestColumns(benchmark::State& state) {
  const Matrix matrix{kLarge / 2 / kCols, kCols, 2};
  const Box box{0, matrix.rows, 1, 0, kCols / state.range(0), 1};
  const ByteSpan packed = ByteSpan(Data()).first(static_cast<size_t>(box.units() * 2));
  for (auto _ : state) benchmark::DoNotOptimize(DigestBox(matrix, box, packed));
  SetBytes(state, box.units() * 2);
}
BENCHMARK(BM_DigestColumns)->ArgName("ranks")->Arg(2)->Arg(8)->Arg(64);

// Every other column: interleaved gate and up projections.
void BM_DigestInterleaved(benchmark::State& state) {
  const Matrix matrix{kLarge / 2 / kCols, kCols, 2};
  const Box box{0, matrix.rows, 1, 1, kCols / 2, 2};
  const ByteSpan packed = ByteSpan(Data()).first(static_cast<size_t>(box.units() * 2));
  for (auto _ : state) benchmark::DoNotOptimize(DigestBox(matrix, box, packed));
  SetBytes(state, box.units() * 2);
}
BENCHMARK(BM_DigestInterleaved);

// Items are changed elements; the argument is how many of 100,000 change. One chunk, as the decoder
// leaves it in the cache.
void BM_DigestChange(benchmark::State& state) {
  const auto unit = static_cast<int>(state.range(1));
  constexpr int64_t kUnits = int64_t{1} << 20;
  const Matrix matrix{kUnits / kCols, kCols, unit};
  const ByteSpan base = ByteSpan(Data()).first(static_cast<size_t>(matrix.bytes()));
  Bytes next(base.begin(), base.end());
  std::vector<uint32_t> changed;
  std::mt19937_64 random(1);
  for (uint32_t i = 0; i < kUnits; ++i) {
    if (random() % 100'000 >= static_cast<uint64_t>(state.range(0))) continue;
    changed.push_back(i);
    next[size_t{i} * static_cast<size_t>(unit)] ^= 1;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(DigestChange(matrix, Box::All(matrix), base, next, changed));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(changed.size()));
}
BENCHMARK(BM_DigestChange)
    ->ArgNames({"per_100k", "unit"})
    ->ArgsProduct({{85, 850, 11'900, 100'000}, {2}})
    ->Args({850, 1})
    ->Args({850, 4})
    ->Args({850, 8});

}  // namespace
}  // namespace weightcast::tensor
