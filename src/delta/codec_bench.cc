// Speeds of the codec's parts on simulated training, in bytes of the dense bf16 state a second;
// beside them what memory allows. `weightcast bench codec` gives sizes against bounds and other
// encodings.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <vector>

#include "delta/adam_sim.h"
#include "delta/codec.h"
#include "delta/part.h"
#include "delta/scan.h"

namespace weightcast::delta {
namespace {

constexpr size_t kUnits = size_t{32} << 20;  // no cache holds them
constexpr size_t kChunkBytes = 2 * static_cast<size_t>(kChunkUnitsMax);

struct Chunk {
  ByteSpan base;
  ByteSpan next;
  PartChunk record;
  Bytes payload;
};

// Two states one optimizer step apart, and their chunks, encoded.
struct States {
  std::vector<uint16_t> base;
  std::vector<uint16_t> next;
  tensor::TensorSpec spec{"weights", tensor::DType::kBf16, {kUnits}};
  std::vector<Chunk> chunks;
  double changed = 0;
  double payload_bytes = 0;

  explicit States(float learning_rate) {
    AdamSim sim({.learning_rate = learning_rate}, kUnits);
    for (int step = 0; step < 10; ++step) sim.Step();
    base = sim.weights();
    sim.Step();
    next = sim.weights();
    Scratch scratch;
    for (size_t at = 0; at < 2 * kUnits; at += kChunkBytes) {
      Chunk chunk{.base = Bytes2(base).subspan(at, kChunkBytes),
                  .next = Bytes2(next).subspan(at, kChunkBytes)};
      const ChunkInfo info =
          EncodeChunk(spec.dtype, chunk.base, chunk.next, scratch, &chunk.payload);
      const auto row = static_cast<int64_t>(at / 2);
      chunk.record.box = {row, kChunkUnitsMax, 1, 0, 1, 1};
      chunk.record.method = info.method;
      chunk.record.changed_units = info.changed_units;
      chunk.record.payload_bytes = static_cast<int64_t>(chunk.payload.size());
      chunk.record.sha256 = Sha256::Of(chunk.payload);
      chunk.record.base_digest = DigestBox(spec.matrix(), chunk.record.box, chunk.base);
      chunk.record.next_digest = DigestBox(spec.matrix(), chunk.record.box, chunk.next);
      changed += static_cast<double>(info.changed_units);
      payload_bytes += static_cast<double>(chunk.payload.size());
      chunks.push_back(std::move(chunk));
    }
  }

  static ByteSpan Bytes2(const std::vector<uint16_t>& units) {
    return {reinterpret_cast<const uint8_t*>(units.data()), 2 * units.size()};
  }
};

// Argument: the learning rate times 10^8; 100 changes about one weight in a hundred.
const States& StatesAt(int64_t rate) {
  static std::map<int64_t, States> states;
  const auto found = states.find(rate);
  if (found != states.end()) return found->second;
  return states.try_emplace(rate, 1e-8f * static_cast<float>(rate)).first->second;
}

void Report(benchmark::State& state, const States& states) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * kUnits));
  state.counters["density"] = states.changed / static_cast<double>(kUnits);
  state.counters["B_per_changed"] = states.payload_bytes / states.changed;
}

void Memcpy(benchmark::State& state) {
  const States& states = StatesAt(100);
  std::vector<uint16_t> to(kUnits);
  for (auto _ : state) {
    std::memcpy(to.data(), states.base.data(), states.base.size() * sizeof to[0]);
    benchmark::ClobberMemory();
  }
  Report(state, states);
}
BENCHMARK(Memcpy)->Unit(benchmark::kMillisecond);

void Diff(benchmark::State& state) {
  if (!ForceScanKernel(static_cast<ScanKernel>(state.range(0)))) {
    state.SkipWithError("this CPU lacks the kernel");
    return;
  }
  const States& states = StatesAt(100);
  std::vector<uint64_t> mask(MaskWords(kUnits));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        DiffUnits(2, States::Bytes2(states.base), States::Bytes2(states.next), mask));
  }
  Report(state, states);
}
BENCHMARK(Diff)->ArgName("kernel")->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

void Digest(benchmark::State& state) {
  const States& states = StatesAt(100);
  for (auto _ : state) {
    for (const Chunk& chunk : states.chunks) {
      benchmark::DoNotOptimize(DigestBox(states.spec.matrix(), chunk.record.box, chunk.base));
    }
  }
  Report(state, states);
}
BENCHMARK(Digest)->Unit(benchmark::kMillisecond);

void Encode(benchmark::State& state) {
  const States& states = StatesAt(state.range(1));
  ForceScanKernel(static_cast<ScanKernel>(state.range(0)));
  Scratch scratch;
  Bytes payload;
  for (auto _ : state) {
    for (const Chunk& chunk : states.chunks) {
      payload.clear();
      EncodeChunk(states.spec.dtype, chunk.base, chunk.next, scratch, &payload);
    }
  }
  Report(state, states);
}
BENCHMARK(Encode)
    ->ArgNames({"kernel", "rate"})
    ->ArgsProduct({{1, 2}, {10, 100, 1000}})
    ->Args({0, 100})
    ->Unit(benchmark::kMillisecond);

void DecodeAll(benchmark::State& state, bool verified) {
  const States& states = StatesAt(state.range(1));
  ForceScanKernel(static_cast<ScanKernel>(state.range(0)));
  Scratch scratch;
  Bytes next(2 * kUnits);
  for (auto _ : state) {
    size_t at = 0;
    for (const Chunk& chunk : states.chunks) {
      const auto to = MutableByteSpan(next).subspan(at, kChunkBytes);
      const PartChunk& record = chunk.record;
      const Status status =
          verified ? DecodeVerified(states.spec, record, chunk.payload, chunk.base, scratch, to)
                   : DecodeChunk(record.method, states.spec.dtype, record.changed_units,
                                 chunk.payload, chunk.base, scratch, to);
      WC_CHECK(status.ok());
      at += kChunkBytes;
    }
  }
  Report(state, states);
}
void Decode(benchmark::State& state) { DecodeAll(state, false); }
void DecodeAndProve(benchmark::State& state) { DecodeAll(state, true); }
BENCHMARK(Decode)
    ->ArgNames({"kernel", "rate"})
    ->ArgsProduct({{1, 2}, {10, 100, 1000}})
    ->Args({0, 100})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(DecodeAndProve)
    ->ArgNames({"kernel", "rate"})
    ->ArgsProduct({{1, 2}, {10, 100, 1000}})
    ->Unit(benchmark::kMillisecond);

void EncodeFull(benchmark::State& state) {
  const States& states = StatesAt(100);
  Scratch scratch;
  Bytes payload;
  size_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    for (const Chunk& chunk : states.chunks) {
      payload.clear();
      EncodeChunk(states.spec.dtype, {}, chunk.next, scratch, &payload);
      bytes += payload.size();
    }
  }
  Report(state, states);
  state.counters["ratio"] = static_cast<double>(bytes) / static_cast<double>(2 * kUnits);
}
BENCHMARK(EncodeFull)->Unit(benchmark::kMillisecond);

void DecodeFull(benchmark::State& state) {
  const States& states = StatesAt(100);
  Scratch scratch;
  std::vector<std::pair<ChunkInfo, Bytes>> encoded;
  for (const Chunk& chunk : states.chunks) {
    Bytes payload;
    const ChunkInfo info = EncodeChunk(states.spec.dtype, {}, chunk.next, scratch, &payload);
    encoded.emplace_back(info, std::move(payload));
  }
  Bytes next(2 * kUnits);
  for (auto _ : state) {
    size_t at = 0;
    for (const auto& [info, payload] : encoded) {
      WC_CHECK(DecodeChunk(info.method, states.spec.dtype, info.changed_units, payload, {}, scratch,
                           MutableByteSpan(next).subspan(at, kChunkBytes))
                   .ok());
      at += kChunkBytes;
    }
  }
  Report(state, states);
}
BENCHMARK(DecodeFull)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weightcast::delta
