// Whether a weight changes is mostly decided by its own exponent: an optimizer's step hardly
// depends on the weight, while the unit in the last place doubles with every octave. So positions
// are coded as gaps inside classes of base magnitude, which the receiver sees too, and values as
// signed steps of one unit in the last place. docs/formats/part.md, "Method 1"; measurements in
// docs/design/codec.md.
#include <algorithm>
#include <array>
#include <bit>

#include "delta/method.h"

namespace weightcast::delta {
namespace {

constexpr unsigned kShiftMax = 20;
constexpr uint64_t kEscape =
    248;  // symbol bytes from here on say how many bytes follow in the tail
constexpr size_t kTailBytesMax = 8;

// Gaps of a class are about geometric. Quotients of mean 4 ... 8 lose 0.004 bits to the split, and
// all sparse classes then share one short table.
constexpr unsigned kQuotientBits = 2;

// Symbols of one class that repay a table of their own.
constexpr size_t kBlockSymbolsMin = 512;

struct ClassPart {
  size_t count = 0;
  unsigned shift = 0;
};
using ClassParts = std::array<ClassPart, kClassesMax>;

size_t LowBitBytes(const ClassParts& parts) {
  size_t bits = 0;
  for (const ClassPart& part : parts) bits += part.count * part.shift;
  return (bits + 7) / 8;
}

class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}
  void Put(uint64_t value, unsigned bits) {
    held_ |= value << count_;
    count_ += bits;
    for (; count_ >= 8; count_ -= 8, held_ >>= 8) *to_++ = static_cast<uint8_t>(held_);
  }
  void Flush() {
    if (count_ > 0) *to_ = static_cast<uint8_t>(held_);
  }

 private:
  uint8_t* to_;
  uint64_t held_ = 0;
  unsigned count_ = 0;
};

// Reads past the end give zeros; the caller knows how many bits there are.
class BitReader {
 public:
  explicit BitReader(ByteSpan from) : from_(from) {}
  uint32_t Get(unsigned bits) {
    for (; count_ < bits; count_ += 8) {
      held_ |= uint64_t{at_ < from_.size() ? from_[at_] : uint8_t{0}} << count_;
      ++at_;
    }
    const auto value = static_cast<uint32_t>(held_ & ((uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return value;
  }
  bool RestIsZero() const { return held_ == 0; }

 private:
  ByteSpan from_;
  size_t at_ = 0;
  uint64_t held_ = 0;
  unsigned count_ = 0;
};

uint8_t PutSymbol(uint64_t value, Bytes* tail) {
  if (value < kEscape) return static_cast<uint8_t>(value);
  const uint64_t rest = value - kEscape;
  const size_t bytes = std::max<size_t>(1, (static_cast<size_t>(std::bit_width(rest)) + 7) / 8);
  for (size_t b = 0; b < bytes; ++b) tail->push_back(static_cast<uint8_t>(rest >> (8 * b)));
  return static_cast<uint8_t>(kEscape - 1 + bytes);
}

// Symbols that say they have a longer tail than they need, or that overflow, fail the reader.
uint64_t GetSymbol(uint8_t symbol, ByteReader& tail) {
  if (symbol < kEscape) return symbol;
  const size_t bytes = symbol - (kEscape - 1);
  const ByteSpan from = tail.GetBytes(bytes);
  uint64_t rest = 0;
  for (size_t b = 0; b < from.size(); ++b) rest |= uint64_t{from[b]} << (8 * b);
  if (bytes > 1 && rest >> (8 * (bytes - 1)) == 0) tail.Fail();
  if (rest > ~uint64_t{0} - kEscape) tail.Fail();
  return rest + kEscape;
}

// ---- Encoding.

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
    state.codes[at[c]++] = StepCode(diff.format, LoadUnit<U>(diff.base, diff.changed[i]),
                                    LoadUnit<U>(diff.next, diff.changed[i]));
  }
  for (size_t c = 0; c < kClassesMax; ++c) {
    if (parts[c].count == 0) continue;
    const auto mean_bits = static_cast<unsigned>(std::bit_width(passed[c] / parts[c].count));
    parts[c].shift = mean_bits > kQuotientBits + 1 ? mean_bits - (kQuotientBits + 1) : 0;
  }
  return parts;
}

void PutHeader(const ClassTable& table, const ClassParts& parts, size_t tail_bytes, Bytes* out) {
  ByteWriter writer(out);
  writer.Put(static_cast<uint8_t>(table.classes));
  for (size_t c = 1; c < table.classes; ++c) {
    writer.PutVarint(table.first_octave[c] - table.first_octave[c - 1]);
  }
  for (size_t c = 0; c < table.classes; ++c) {
    writer.PutVarint(parts[c].count);
    if (parts[c].count > 0) writer.Put(static_cast<uint8_t>(parts[c].shift));
  }
  writer.PutVarint(tail_bytes);
}

void PutLowBits(const ClassParts& parts, std::span<const uint32_t> gaps, Bytes* out) {
  const size_t at = out->size();
  out->resize(at + LowBitBytes(parts));
  BitWriter bits(out->data() + at);
  size_t i = 0;
  for (const ClassPart& part : parts) {
    if (part.shift == 0) {
      i += part.count;
      continue;
    }
    const uint32_t mask = (uint32_t{1} << part.shift) - 1;
    for (const size_t end = i + part.count; i < end; ++i) bits.Put(gaps[i] & mask, part.shift);
  }
  bits.Flush();
}

// Fills symbols and tail; returns where blocks should end.
std::vector<size_t> PutSymbols(const ClassParts& parts, Scratch::State& state) {
  const size_t n = state.gaps.size();
  state.symbols.resize(2 * n);
  state.tail.clear();
  std::vector<size_t> cuts;
  size_t i = 0;
  for (const ClassPart& part : parts) {
    for (const size_t end = i + part.count; i < end; ++i) {
      state.symbols[i] = PutSymbol(state.gaps[i] >> part.shift, &state.tail);
    }
  }
  cuts.push_back(n);
  i = 0;
  for (const ClassPart& part : parts) {
    for (const size_t end = i + part.count; i < end; ++i) {
      state.symbols[n + i] = PutSymbol(state.codes[i], &state.tail);
    }
    if (n + i - cuts.back() >= kBlockSymbolsMin) cuts.push_back(n + i);
  }
  if (cuts.back() != 2 * n) cuts.push_back(2 * n);
  if (state.tail.empty()) cuts.pop_back();
  state.symbols.insert(state.symbols.end(), state.tail.begin(), state.tail.end());
  return cuts;
}

uint64_t EstimateBits(const ChunkDiff&, const ChunkProfile& profile) {
  return profile.gap_bits + profile.step_bits;
}

void Encode(const ChunkDiff& diff, const ChunkProfile& profile, Scratch::State& state, Bytes* out) {
  const ClassParts parts = WithUnit(diff.format.bytes, [&]<typename U>() {
    return SortByClass<U>(diff, profile.classes, state);
  });
  const std::vector<size_t> cuts = PutSymbols(parts, state);
  PutHeader(profile.classes, parts, state.tail.size(), out);
  PutLowBits(parts, state.gaps, out);
  state.coder.Pack(state.symbols, cuts, out);
}

// ---- Decoding.

struct Header {
  ClassTable table;
  ClassParts parts{};
  size_t tail_bytes = 0;
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
  const uint64_t tail_bytes = in.GetVarint();
  if (!in.ok() || left != 0) return Malformed("class counts do not sum up to the changed units");
  if (tail_bytes > 2 * kTailBytesMax * chunk.changed_units) return Malformed("tail is too long");
  header.tail_bytes = tail_bytes;
  return header;
}

using RankLists = std::array<const uint32_t*, kClassesMax>;

// Gap symbols and low bits to ranks, each class's list ended by kNoRank.
Result<RankLists> GetRanks(const Header& header, const ChunkPayload& chunk, ByteSpan low_bits,
                           ByteReader& tail, Scratch::State& state) {
  state.ranks.resize(chunk.changed_units + kClassesMax);
  RankLists lists{};
  BitReader bits(low_bits);
  uint32_t* to = state.ranks.data();
  size_t i = 0;
  for (size_t c = 0; c < header.table.classes; ++c) {
    const ClassPart part = header.parts[c];
    lists[c] = to;
    uint64_t passed = 0;
    for (const size_t end = i + part.count; i < end; ++i) {
      const uint64_t quotient = GetSymbol(state.symbols[i], tail);
      if (quotient >= chunk.units) return Malformed("a gap leads out of the chunk");
      const uint64_t rank = passed + (quotient << part.shift) + bits.Get(part.shift);
      if (rank >= chunk.units) return Malformed("a gap leads out of the chunk");
      *to++ = static_cast<uint32_t>(rank);
      passed = rank + 1;
    }
    *to++ = kNoRank;
  }
  if (!bits.RestIsZero()) return Malformed("spare bits are not zero");
  return lists;
}

template <typename U>
Status ApplySteps(const Header& header, const ChunkPayload& chunk, ByteReader& tail,
                  Scratch::State& state, MutableByteSpan next) {
  const size_t n = chunk.changed_units;
  state.codes.resize(n);
  for (size_t i = 0; i < n; ++i) {
    state.codes[i] = GetSymbol(state.symbols[n + i], tail);
    if (state.codes[i] >= static_cast<U>(~U{0})) return Malformed("a step is out of range");
  }
  if (!tail.done()) return Malformed("the tail does not fit the symbols");
  std::array<const uint64_t*, kClassesMax> code{};
  const uint64_t* first = state.codes.data();
  std::array<uint8_t, kOctavesMax> class_of_octave;
  for (size_t c = 0; c < header.table.classes; ++c) {
    code[c] = first;
    first += header.parts[c].count;
    const bool last = c + 1 == header.table.classes;
    const uint32_t end = last ? chunk.format.octaves : header.table.first_octave[c + 1];
    std::fill(class_of_octave.begin() + header.table.first_octave[c], class_of_octave.begin() + end,
              static_cast<uint8_t>(c));
  }
  for (size_t w = 0; w < state.mask.size(); ++w) {
    for (uint64_t left = state.mask[w]; left != 0; left &= left - 1) {
      const size_t i = 64 * w + static_cast<size_t>(std::countr_zero(left));
      const U old_unit = LoadUnit<U>(chunk.base, i);
      const auto step = static_cast<U>(*code[class_of_octave[OctaveOf(chunk.format, old_unit)]]++);
      StoreUnit(next, i, ApplyStep(chunk.format, old_unit, step));
    }
  }
  return Ok();
}

Status Decode(const ChunkPayload& chunk, Scratch::State& state, MutableByteSpan next) {
  ByteReader in(chunk.payload);
  const Header header = WC_TRY(GetHeader(chunk, in));
  const ByteSpan low_bits = in.GetBytes(LowBitBytes(header.parts));
  if (!in.ok()) return Malformed("low bits end early");
  const size_t n = chunk.changed_units;
  state.symbols.resize(2 * n + header.tail_bytes);
  WC_TRY(state.coder.Unpack(in, state.symbols));
  if (!in.done()) return Malformed("bytes behind the symbols");
  ByteReader tail(ByteSpan(state.symbols).subspan(2 * n));
  const RankLists ranks = WC_TRY(GetRanks(header, chunk, low_bits, tail, state));
  if (!tail.ok()) return Malformed("the tail does not fit the symbols");
  state.mask.resize(MaskWords(chunk.units));
  if (SelectUnits(header.table, chunk.base, ranks, state.mask, next) != n) {
    return Malformed("a rank is beyond its class");
  }
  return WithUnit(chunk.format.bytes,
                  [&]<typename U>() { return ApplySteps<U>(header, chunk, tail, state, next); });
}

}  // namespace

const MethodRow kClassGapsMethod = {Method::kClassGaps, true, EstimateBits, Encode, Decode};

}  // namespace weightcast::delta
