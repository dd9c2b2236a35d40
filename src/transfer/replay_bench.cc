// Replay of a chain out of memory, one thread: bytes of canonical tensor a second, beside memcpy.
#include <benchmark/benchmark.h>

#include <cstring>

#include "transfer/chain.h"
#include "transfer/testing.h"

namespace weightcast::transfer {
namespace {

// A weight of 16 cells, 32 MiB of bf16.
struct Bed {
  Bed(Share share, int ranks) {
    run.AddSeed(run.RandomState(1));
    run.Publish(run.Changed(2, 150), {.kind = catalog::VersionKind::kFull,
                                      .ranks = ranks,
                                      .share = [share](size_t) { return share; }});
  }
  TestWorld world;
  store::MemoryStore memory{world.clock};
  StoreSource source{memory};
  Fetcher fetcher{world.world, {&source}, {.parallel = 1}};
  TestRun run{{{"w", tensor::DType::kBf16, {8192, 2048}}}, &memory};
};

void Replay(benchmark::State& state, catalog::ReplayStart start, Share share, int ranks) {
  Bed bed(share, ranks);
  const bool full = start == catalog::ReplayStart::kFull;
  const Chain chain =
      Chain::Load(bed.run.inventory(), bed.run.Plan(start, full ? 1 : 0, 1),
                  [&](const catalog::Version&) -> Result<Fetcher*> { return &bed.fetcher; })
          .value();
  const std::vector<ReplayBatch> batches = chain.Batches(8 * kMiB, 1);
  const Bytes& from = bed.run.states()[0][0];
  Bytes to(from.size());
  auto place = [](const ReplayCell& cell) {
    return static_cast<size_t>(cell.box.row * cell.box.cols) * 2;
  };
  Chain::Scratch scratch;
  std::vector<tensor::Partial> gained(1);
  for (auto _ : state) {
    for (const ReplayBatch& batch : batches) {
      const Status status = chain.Replay(
          batch, scratch,
          [&](const ReplayCell& cell) {
            return ByteSpan(from).subspan(place(cell), static_cast<size_t>(cell.box.units()) * 2);
          },
          [&](const ReplayCell& cell, const ReplayedCell& made) {
            std::memcpy(to.data() + place(cell), made.next.data(), made.next.size());
            return Ok();
          },
          &gained);
      WC_CHECK(status.ok());
    }
  }
  WC_CHECK(to == bed.run.states()[1][0]);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(to.size()));
}
BENCHMARK_CAPTURE(Replay, DeltaWholeCells, catalog::ReplayStart::kSeed, Share::kRows, 4);
BENCHMARK_CAPTURE(Replay, DeltaColumns, catalog::ReplayStart::kSeed, Share::kColumns, 4);
BENCHMARK_CAPTURE(Replay, FullWholeCells, catalog::ReplayStart::kFull, Share::kRows, 4);
BENCHMARK_CAPTURE(Replay, FullColumns, catalog::ReplayStart::kFull, Share::kColumns, 4);

void Memcpy(benchmark::State& state) {
  const Bytes from(32 * kMiB, 1);
  Bytes to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(to.size()));
}
BENCHMARK(Memcpy);

// What a thread of the fetcher adds to a read: its own buffer and a copy.
void Fetch(benchmark::State& state, int parallel) {
  TestWorld world;
  store::MemoryStore memory(world.clock);
  const Bytes object(64 * kMiB, 1);
  WC_CHECK(memory.Put("k", object).ok());
  StoreSource source(memory);
  Fetcher fetcher(os::RealWorld(), {&source}, {.parallel = parallel});
  Bytes out(object.size());
  for (auto _ : state) {
    std::vector<Piece> pieces;
    for (size_t at = 0; at < out.size(); at += 4 * kMiB) {
      pieces.push_back(
          {"k", static_cast<int64_t>(at), MutableByteSpan(out).subspan(at, 4 * kMiB), {}});
    }
    WC_CHECK(fetcher.Fetch(pieces).ok());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(out.size()));
}
BENCHMARK_CAPTURE(Fetch, OnThisThread, 1)->UseRealTime();
BENCHMARK_CAPTURE(Fetch, OnTwoThreads, 2)->UseRealTime();

}  // namespace
}  // namespace weightcast::transfer
