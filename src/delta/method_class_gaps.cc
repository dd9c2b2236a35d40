// Whether a weight changes is mostly decided by its own exponent: an optimizer's step hardly
// depends on the weight, while the unit in the last place doubles with every octave. So positions
// are coded as gaps inside classes of base magnitude, which the receiver sees too, and values as
// signed steps of one unit in the last place. docs/formats/part.md, "Method 1"; measurements in
// docs/design/codec.md.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "delta/cost.h"
#include "delta/method.h"

namespace weightcast::delta {
namespace {

constexpr unsigned kShiftMax = 20;
constexpr uint32_t kEscape = 15;  // a nibble that says "the rest follows in the tail"
constexpr size_t kVarintBytesMax = 10;

// What another block costs: its header and a Huffman table.
constexpr uint64_t kBlockBits = 400;

struct ClassPart {
  size_t count = 0;
  unsigned shift = 0;
};
using ClassParts = std::array<ClassPart, kClassesMax>;

size_t LowBitBytes(const ClassParts& parts) {
  size_t bits = 0;
  for (const ClassPart& part : parts) bits += part.count * (part.shift + 1);
  return (bits + 7) / 8;
}

// Both go eight bytes at a time, so their memory must reach that far behind the last bit.
constexpr size_t kBitSlack = 8;

class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) { StoreLe(to, uint64_t{0}); }
  //   Requires: value < 2^bits, bits <= 32.
  void Put(uint64_t value, unsigned bits) {
    held_ |= value << count_;
    StoreLe(to_, held_);
    count_ += bits;
    to_ += count_ / 8;
    held_ >>= count_ & ~7u;
    count_ %= 8;
  }

 private:
  uint8_t* to_;
  uint64_t held_ = 0;
  unsigned count_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const uint8_t* from) : from_(from) {}
  //   Requires: bits <= 32.
  uint32_t Get(unsigned bits) {
    const uint64_t held = LoadLe<uint64_t>(from_ + at_ / 8) >> (at_ % 8);
    at_ += bits;
    return static_cast<uint32_t>(held & ((uint64_t{1} << bits) - 1));
  }

 private:
  const uint8_t* from_;
  size_t at_ = 0;
};

// ---- Encoding.

uint8_t* Grow(Bytes* out, size_t bytes) {
  out->resize(out->size() + bytes);
  return out->data() + out->size() - bytes;
}

// Gaps of a class are about geometric. Their quotients by 2^shift fit a nibble nearly always, and
// lose less than 0.03 bits to the split, if their mean lies between 0.5 and 2.
unsigned ShiftFor(uint32_t class_units, size_t changed) {
  const uint64_t mean = class_units / changed;
  const auto width = static_cast<unsigned>(std::bit_width(mean * 2 / 3));
  return width > 0 ? width - 1 : 0;
}

// Sorts the changed units by class; gaps and step codes run class by class from then on.
template <typename U>
ClassParts SortByClass(const ChunkDiff& diff, const ClassTable& table, Scratch::State& state) {
  const size_t n = diff.changed.size();
  state.ranks.resize(n);
  state.gaps.resize(n);
  state.codes.resize(n);
  RankUnits(table, diff.base, diff.mask, state.ranks.data());
  ClassParts parts{};
  for (const uint32_t rank : state.ranks) ++parts[rank >> 24].count;
  std::array<size_t, kClassesMax> at{};
  for (size_t c = 1; c < kClassesMax; ++c) at[c] = at[c - 1] + parts[c - 1].count;
  std::array<uint32_t, kClassesMax> passed{};  // units of the class up to the last changed one
  for (size_t i = 0; i < n; ++i) {
    const uint32_t c = state.ranks[i] >> 24;
    const uint32_t rank = state.ranks[i] & 0xffffff;
    state.gaps[at[c]] = rank - passed[c];
    passed[c] = rank + 1;
    state.codes[at[c]++] =
        StepCode(diff.format, LoadUnit<U>(diff.old_units, i), LoadUnit<U>(diff.new_units, i));
  }
  for (size_t c = 0; c < kClassesMax; ++c) {
    if (parts[c].count > 0) parts[c].shift = ShiftFor(passed[c], parts[c].count);
  }
  return parts;
}

void PutHeader(const ClassTable& table, const ClassParts& parts, Bytes* out) {
  ByteWriter writer(out);
  writer.Put(static_cast<uint8_t>(table.classes));
  for (size_t c = 1; c < table.classes; ++c) {
    writer.PutVarint(table.first_octave[c] - table.first_octave[c - 1]);
  }
  for (size_t c = 0; c < table.classes; ++c) {
    writer.PutVarint(parts[c].count);
    if (parts[c].count > 0) writer.Put(static_cast<uint8_t>(parts[c].shift));
  }
}

// Fills symbols and tail and appends the low bits to `out`.
void PutSteps(const ClassParts& parts, Scratch::State& state, Bytes* out) {
  state.symbols.resize(state.gaps.size());
  state.tail.clear();
  ByteWriter tail(&state.tail);
  const size_t low_end = out->size() + LowBitBytes(parts);
  BitWriter bits(Grow(out, LowBitBytes(parts) + kBitSlack));
  size_t i = 0;
  for (const ClassPart& part : parts) {
    const uint32_t low_mask = (uint32_t{1} << part.shift) - 1;
    for (const size_t end = i + part.count; i < end; ++i) {
      const uint32_t quotient = state.gaps[i] >> part.shift;
      const uint64_t size = state.codes[i] >> 1;
      bits.Put((state.gaps[i] & low_mask) << 1 | (state.codes[i] & 1), part.shift + 1);
      const uint32_t gap_nibble = std::min(quotient, kEscape);
      const auto size_nibble = static_cast<uint32_t>(std::min<uint64_t>(size, kEscape));
      state.symbols[i] = static_cast<uint8_t>(gap_nibble | size_nibble << 4);
      if (gap_nibble == kEscape) tail.PutVarint(quotient - kEscape);
      if (size_nibble == kEscape) tail.PutVarint(size - kEscape);
    }
  }
  out->resize(low_end);
  state.symbols.insert(state.symbols.end(), state.tail.begin(), state.tail.end());
}

// Where blocks should end: between classes whose symbols differ by more than a table costs, and
// before the tail.
std::vector<size_t> ChooseCuts(const ClassParts& parts, ByteSpan symbols) {
  using Counts = std::array<uint32_t, 256>;
  std::vector<size_t> cuts;
  Counts block{};
  size_t at = 0;
  for (const ClassPart& part : parts) {
    Counts own{};
    for (const uint8_t symbol : symbols.subspan(at, part.count)) ++own[symbol];
    Counts both;
    std::ranges::transform(block, own, both.begin(), std::plus());
    const uint64_t apart = EntropyBits(block) + EntropyBits(own) + kBlockBits;
    const bool cut = at > 0 && EntropyBits(both) > apart;
    if (cut) cuts.push_back(at);
    block = cut ? own : both;
    at += part.count;
  }
  if (at < symbols.size()) cuts.push_back(at);
  return cuts;
}

uint64_t EstimateBits(const ChunkDiff&, const ChunkProfile& profile) {
  return profile.gap_bits + profile.step_bits;
}

void Encode(const ChunkDiff& diff, const ChunkProfile& profile, Scratch::State& state, Bytes* out) {
  const ClassParts parts = WithUnit(diff.format.bytes, [&]<typename U>() {
    return SortByClass<U>(diff, profile.classes, state);
  });
  PutHeader(profile.classes, parts, out);
  PutSteps(parts, state, out);
  ByteWriter(out).PutVarint(state.tail.size());
  state.coder.Pack(state.symbols, ChooseCuts(parts, state.symbols), Repeats::kFew, out);
}

// ---- Decoding.

struct Header {
  ClassTable table;
  ClassParts parts{};
};

Result<Header> GetHeader(const ChunkPayload& chunk, ByteReader& in) {
  Header header;
  ClassTable& table = header.table;
  table.format = chunk.format;
  table.classes = in.Get<uint8_t>();
  if (table.classes < 1 || table.classes > kClassesMax) return Malformed("number of classes");
  for (size_t c = 1; c < table.classes; ++c) {
    const uint64_t step = in.GetVarint();
    const uint64_t room = chunk.format.octaves - 1 - table.first_octave[c - 1];
    if (step < 1 || step > room) return Malformed("class thresholds");
    table.first_octave[c] = table.first_octave[c - 1] + static_cast<uint32_t>(step);
  }
  size_t left = chunk.changed_units;
  for (size_t c = 0; c < table.classes; ++c) {
    const uint64_t count = in.GetVarint();
    if (count > left) return Malformed("class counts do not sum up to the changed units");
    left -= count;
    const unsigned shift = count > 0 ? in.Get<uint8_t>() : 0;
    if (shift > kShiftMax) return Malformed("shift of a class");
    header.parts[c] = {count, shift};
  }
  if (!in.ok() || left != 0) return Malformed("class counts do not sum up to the changed units");
  return header;
}

using RankLists = std::array<const uint32_t*, kClassesMax>;

// Symbols, low bits and tail to ranks (each class's list ended by kNoRank) and step codes.
Result<RankLists> GetSteps(const Header& header, const ChunkPayload& chunk, ByteSpan low_bits,
                           Scratch::State& state) {
  constexpr uint64_t kTooFar = uint64_t{1} << 40;  // a quotient that no shift brings back
  const size_t n = chunk.changed_units;
  const uint64_t last_code = (~uint64_t{0} >> (64 - 8 * chunk.format.bytes)) - 1;
  state.ranks.resize(n + kClassesMax);
  state.codes.resize(n);
  ByteReader tail(ByteSpan(state.symbols).subspan(n));
  state.low_bits.assign(low_bits.begin(), low_bits.end());
  state.low_bits.resize(low_bits.size() + kBitSlack);
  BitReader bits(state.low_bits.data());
  RankLists lists{};
  uint32_t* to = state.ranks.data();
  size_t i = 0;
  for (size_t c = 0; c < header.table.classes; ++c) {
    const ClassPart part = header.parts[c];
    lists[c] = to;
    uint64_t passed = 0;
    for (const size_t end = i + part.count; i < end; ++i) {
      uint64_t quotient = state.symbols[i] & 0xf;
      uint64_t size = state.symbols[i] >> 4;
      if (quotient == kEscape) quotient += std::min(tail.GetVarint(), kTooFar);
      if (size == kEscape) size += std::min(tail.GetVarint(), last_code);
      const uint64_t low = bits.Get(part.shift + 1);
      const uint64_t rank = passed + (quotient << part.shift) + (low >> 1);
      if (rank >= chunk.units) return Malformed("a gap leads out of the chunk");
      if (size > last_code / 2) return Malformed("a step is out of range");
      state.codes[i] = size << 1 | (low & 1);
      if (state.codes[i] > last_code) return Malformed("a step is out of range");
      *to++ = static_cast<uint32_t>(rank);
      passed = rank + 1;
    }
    *to++ = kNoRank;
  }
  if (!tail.done()) return Malformed("the tail does not fit the symbols");
  if (bits.Get(7) != 0) return Malformed("spare bits are not zero");  // at most 7, then slack
  return lists;
}

// Units that are selected and stepped at a time: two copies of them lie in a core's first cache.
constexpr size_t kBlockUnits = 4096;

template <typename U>
Status ApplySteps(const Header& header, const ChunkPayload& chunk, const RankLists& ranks,
                  Scratch::State& state, MutableByteSpan next) {
  std::array<const uint64_t*, kClassesMax> code{};
  code[0] = state.codes.data();
  for (size_t c = 1; c < kClassesMax; ++c) code[c] = code[c - 1] + header.parts[c - 1].count;
  const OctaveClasses class_of(header.table);
  UnitSelector selector(header.table, ranks);
  size_t found = 0;
  for (size_t first = 0; first < chunk.units; first += kBlockUnits) {
    const size_t units = std::min(kBlockUnits, chunk.units - first);
    const ByteSpan base = chunk.base.subspan(first * sizeof(U), units * sizeof(U));
    const MutableByteSpan block = next.subspan(first * sizeof(U), units * sizeof(U));
    const auto mask = std::span(state.mask).subspan(first / 64, MaskWords(units));
    found += selector.Next(base, mask, block);
    for (size_t w = 0; w < mask.size(); ++w) {
      for (uint64_t left = mask[w]; left != 0; left &= left - 1) {
        const size_t i = 64 * w + static_cast<size_t>(std::countr_zero(left));
        const U old_unit = LoadUnit<U>(base, i);
        const auto step = static_cast<U>(*code[class_of[OctaveOf(chunk.format, old_unit)]]++);
        StoreUnit(block, i, ApplyStep(chunk.format, old_unit, step));
      }
    }
  }
  return found == chunk.changed_units ? Ok() : Malformed("a rank is beyond its class");
}

Status Decode(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  ByteReader in(chunk.payload);
  const Header header = WC_TRY(GetHeader(chunk, in));
  const ByteSpan low_bits = in.GetBytes(LowBitBytes(header.parts));
  const uint64_t tail_bytes = in.GetVarint();
  if (!in.ok()) return Malformed("low bits end early");
  if (tail_bytes > 2 * kVarintBytesMax * chunk.changed_units) return Malformed("tail is too long");
  state.symbols.resize(chunk.changed_units + tail_bytes);
  WC_TRY(state.coder.Unpack(in, state.symbols));
  if (!in.done()) return Malformed("bytes behind the symbols");
  const RankLists ranks = WC_TRY(GetSteps(header, chunk, low_bits, state));
  state.mask.resize(MaskWords(chunk.units));
  return WithUnit(chunk.format.bytes,
                  [&]<typename U>() { return ApplySteps<U>(header, chunk, ranks, state, next); });
}

}  // namespace

const MethodRow kClassGapsMethod = {Method::kClassGaps, true, EstimateBits, Encode, Decode};

}  // namespace weightcast::delta
