#include "delta/codec.h"

#include <algorithm>
#include <array>
#include <bit>

#include "delta/method.h"

namespace weightcast::delta {
namespace {

// In the order of preference between equal sizes.
constexpr std::array<const MethodRow*, kMethods - 1> kRows = {&kClassGapsMethod, &kBitmapMethod,
                                                              &kXorPlanesMethod, &kRawMethod};

const MethodRow* RowOf(Method method) {
  const auto row = std::ranges::find(kRows, method, [](const MethodRow* r) { return r->method; });
  return row == kRows.end() ? nullptr : *row;
}

// Units compared at a time: two copies of them lie in a core's first cache.
constexpr size_t kBlockUnits = 4096;

// Calls work(position) for every bit of a mask.
template <typename Work>
void ForEachBit(std::span<const uint64_t> mask, Work work) {
  for (size_t w = 0; w < mask.size(); ++w) {
    for (uint64_t left = mask[w]; left != 0; left &= left - 1) {
      work(64 * w + static_cast<size_t>(std::countr_zero(left)));
    }
  }
}

// Finds the changed units, and packs what they were and became while they are in the cache.
template <typename U>
void FindChanges(ByteSpan base, ByteSpan next, Scratch::State& state) {
  const size_t units = next.size() / sizeof(U);
  state.mask.resize(MaskWords(units));
  size_t n = 0;
  for (size_t first = 0; first < units; first += kBlockUnits) {
    const size_t bytes = std::min(kBlockUnits, units - first) * sizeof(U);
    const ByteSpan old_block = base.subspan(first * sizeof(U), bytes);
    const ByteSpan new_block = next.subspan(first * sizeof(U), bytes);
    const auto mask = std::span(state.mask).subspan(first / 64, MaskWords(bytes / sizeof(U)));
    const size_t end = n + DiffUnits(sizeof(U), old_block, new_block, mask);
    state.changed.resize(end);
    state.old_units.resize(end * sizeof(U));
    state.new_units.resize(end * sizeof(U));
    ForEachBit(mask, [&](size_t i) {
      state.changed[n] = static_cast<uint32_t>(first + i);
      StoreUnit<U>(state.old_units, n, LoadUnit<U>(old_block, i));
      StoreUnit<U>(state.new_units, n, LoadUnit<U>(new_block, i));
      ++n;
    });
  }
}

// Estimates are right to about a tenth; what they put within a quarter of the least is really
// encoded.
constexpr uint64_t kNear = 4;

// In chunks of fewer units what estimates leave out decides, and trying all costs little.
constexpr size_t kEstimateFrom = 16384;

Method EncodeSmallest(const ChunkDiff& diff, const ChunkProfile& profile, Scratch::State& state,
                      Bytes* out) {
  constexpr uint64_t kNever = ~uint64_t{0};
  std::array<uint64_t, kRows.size()> estimates{};
  uint64_t least = kNever;
  for (size_t r = 0; r < kRows.size(); ++r) {
    if (diff.base.empty()) {
      estimates[r] = kRows[r]->needs_base ? kNever : 0;
    } else {
      estimates[r] = kRows[r]->estimate_bits(diff, profile);
    }
    least = std::min(least, estimates[r]);
  }
  const MethodRow* best = &kRawMethod;
  state.best.clear();
  for (size_t r = 0; r < kRows.size(); ++r) {
    const bool near = estimates[r] - least <= least / kNear;
    const bool tried = near || (diff.units < kEstimateFrom && estimates[r] != kNever);
    if (kRows[r] == &kRawMethod || !tried) continue;
    state.candidate.clear();
    kRows[r]->encode(diff, profile, state, &state.candidate);
    const size_t limit = best == &kRawMethod ? diff.next.size() : state.best.size();
    if (state.candidate.size() >= limit) continue;
    state.best.swap(state.candidate);
    best = kRows[r];
  }
  if (best == &kRawMethod) kRawMethod.encode(diff, profile, state, &state.best);
  ByteWriter(out).PutBytes(state.best);
  return best->method;
}

}  // namespace

Status CheckChangedUnits(const ChunkPayload& chunk, Scratch::State& state, ByteSpan next) {
  state.mask.clear();
  size_t changed = chunk.units;
  if (!chunk.base.empty()) {
    state.mask.resize(MaskWords(chunk.units));
    changed = DiffUnits(chunk.format.bytes, chunk.base, next, state.mask);
  }
  if (changed == chunk.changed_units) return Ok();
  return Malformed(std::to_string(changed) + " units changed");
}

Scratch::Scratch() : state_(std::make_unique<State>()) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;
const std::vector<uint32_t>& Scratch::changed() const { return state_->changed; }

ChunkInfo EncodeChunk(tensor::DType dtype, ByteSpan base, ByteSpan next, Scratch& scratch,
                      Bytes* out) {
  Scratch::State& state = scratch.state();
  ChunkDiff diff{.format = FormatOf(dtype), .base = base, .next = next};
  diff.units = next.size() / diff.format.bytes;
  WC_CHECK(next.size() == diff.units * diff.format.bytes);
  WC_CHECK(diff.units > 0 && diff.units <= kChunkUnitsMax);
  WC_CHECK(base.empty() || base.size() == next.size());
  state.changed.clear();
  if (base.empty()) {
    return {EncodeSmallest(diff, {}, state, out), static_cast<int64_t>(diff.units)};
  }
  WithUnit(diff.format.bytes, [&]<typename U>() { FindChanges<U>(base, next, state); });
  if (state.changed.empty()) return {};
  diff.mask = state.mask;
  diff.changed = state.changed;
  diff.old_units = state.old_units;
  diff.new_units = state.new_units;
  const ChunkProfile profile = ProfileChunk(diff.format, base, diff.old_units, diff.new_units);
  return {EncodeSmallest(diff, profile, state, out), static_cast<int64_t>(state.changed.size())};
}

// NOLINTNEXTLINE(readability-function-size): one parameter for each thing that a record says.
Status DecodeChunk(Method method, tensor::DType dtype, int64_t changed_units, ByteSpan payload,
                   ByteSpan base, Scratch& scratch, MutableByteSpan next) {
  Scratch::State& state = scratch.state();
  state.changed.clear();
  ChunkPayload chunk{.format = FormatOf(dtype), .base = base, .payload = payload};
  chunk.units = next.size() / chunk.format.bytes;
  WC_CHECK(next.size() == chunk.units * chunk.format.bytes && chunk.units <= kChunkUnitsMax);
  WC_CHECK(base.empty() || base.size() == next.size());
  const MethodRow* row = RowOf(method);
  if (row == nullptr)
    return Malformed("no chunk method " + std::to_string(static_cast<int>(method)));
  if (row->needs_base && base.empty()) return Malformed("this chunk method needs a base");
  if (changed_units < 1 || static_cast<uint64_t>(changed_units) > chunk.units) {
    return Malformed(std::to_string(changed_units) + " changed units of " +
                     std::to_string(chunk.units));
  }
  if (payload.size() > next.size()) return Malformed("payload is longer than the units themselves");
  chunk.changed_units = static_cast<size_t>(changed_units);
  WC_TRY(row->decode(chunk, state, next));
  if (base.empty()) return Ok();
  state.changed.reserve(chunk.changed_units);
  ForEachBit(state.mask, [&](size_t i) { state.changed.push_back(static_cast<uint32_t>(i)); });
  return Ok();
}

}  // namespace weightcast::delta
