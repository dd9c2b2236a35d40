#include "delta/codec_baselines.h"

#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "delta/unit_format.h"

namespace weightcast::delta {
namespace {

constexpr UnitFormat kBf16 = {.bytes = 2, .is_float = true, .mantissa_bits = 7, .octaves = 256};

// Bits to mark `set` of `all` places.
double MarkBitsOf(double set, double all) {
  const double rest = all - set;
  return (set > 0 ? set * std::log2(all / set) : 0) + (rest > 0 ? rest * std::log2(all / rest) : 0);
}

// Bits of an order-0 code for sorted symbols.
template <typename Iterator>
double SymbolBits(Iterator begin, Iterator end) {
  const auto all = static_cast<double>(end - begin);
  double bits = 0;
  while (begin != end) {
    const Iterator run = std::upper_bound(begin, end, *begin);
    const auto count = static_cast<double>(run - begin);
    bits += count * std::log2(all / count);
    begin = run;
  }
  return bits;
}

int64_t ZstdBytes(ByteSpan content) {
  Bytes out(ZSTD_compressBound(content.size()));
  const size_t n = ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 1);
  WC_CHECK(!ZSTD_isError(n));
  return static_cast<int64_t>(n);
}

template <typename T>
ByteSpan BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

// Changed elements as positions, new values and XOR words; and the dense XOR.
struct Sparse {
  std::vector<uint32_t> positions;
  std::vector<uint16_t> values;
  std::vector<uint16_t> words;
  std::vector<uint16_t> dense;

  Sparse(std::span<const uint16_t> base, std::span<const uint16_t> next) : dense(base.size()) {
    for (size_t i = 0; i < base.size(); ++i) {
      dense[i] = base[i] ^ next[i];
      if (dense[i] == 0) continue;
      positions.push_back(static_cast<uint32_t>(i));
      values.push_back(next[i]);
      words.push_back(dense[i]);
    }
  }
};

int64_t PlaneBytes(const std::vector<uint16_t>& words) {
  Bytes planes(2 * words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    planes[i] = static_cast<uint8_t>(words[i]);
    planes[words.size() + i] = static_cast<uint8_t>(words[i] >> 8);
  }
  return ZstdBytes(planes);
}

// Gaps between changed elements in 16 bits, where that fits, else in 32, and the XOR words behind.
int64_t GapBytes(const Sparse& sparse) {
  std::vector<uint32_t> gaps;
  uint32_t passed = 0;
  for (const uint32_t position : sparse.positions) {
    gaps.push_back(position - passed);
    passed = position + 1;
  }
  Bytes both;
  ByteWriter writer(&both);
  const bool fits = std::ranges::max(gaps) <= 0xffff;
  for (const uint32_t gap : gaps) fits ? writer.Put(static_cast<uint16_t>(gap)) : writer.Put(gap);
  writer.PutBytes(BytesOf(sparse.words));
  return ZstdBytes(both);
}

int64_t BitmapBytes(const Sparse& sparse) {
  Bytes both((sparse.dense.size() + 7) / 8);
  for (const uint32_t i : sparse.positions) both[i / 8] |= static_cast<uint8_t>(1 << i % 8);
  ByteWriter(&both).PutBytes(BytesOf(sparse.words));
  return ZstdBytes(both);
}

int64_t IndexValueBytes(const Sparse& sparse) {
  Bytes both;
  ByteWriter writer(&both);
  writer.PutBytes(BytesOf(sparse.positions));
  writer.PutBytes(BytesOf(sparse.values));
  return ZstdBytes(both);
}

}  // namespace

Bounds BoundsOf(std::span<const uint16_t> base, std::span<const uint16_t> next) {
  std::vector<double> units(kBf16.octaves);
  std::vector<std::pair<uint32_t, uint16_t>> changes;  // octave of the base, step code
  for (size_t i = 0; i < base.size(); ++i) {
    const uint32_t octave = OctaveOf(kBf16, base[i]);
    ++units[octave];
    if (base[i] != next[i]) changes.emplace_back(octave, StepCode(kBf16, base[i], next[i]));
  }
  std::ranges::sort(changes);
  const auto count = static_cast<double>(changes.size());
  double conditional = 0;
  std::vector<uint16_t> codes;
  for (auto begin = changes.begin(); begin != changes.end();) {
    const uint32_t octave = begin->first;
    const auto end =
        std::find_if(begin, changes.end(), [&](const auto& c) { return c.first != octave; });
    conditional += MarkBitsOf(static_cast<double>(end - begin), units[octave]);
    const size_t at = codes.size();
    for (; begin != end; ++begin) codes.push_back(begin->second);
    conditional += SymbolBits(codes.begin() + static_cast<std::ptrdiff_t>(at), codes.end());
  }
  std::ranges::sort(codes);
  const double memoryless =
      MarkBitsOf(count, static_cast<double>(base.size())) + SymbolBits(codes.begin(), codes.end());
  return {memoryless / count / 8, conditional / count / 8};
}

std::map<std::string, int64_t> BaselineBytes(std::span<const uint16_t> base,
                                             std::span<const uint16_t> next) {
  const Sparse sparse(base, next);
  const auto changed = static_cast<int64_t>(sparse.positions.size());
  const ByteSpan dense(reinterpret_cast<const uint8_t*>(next.data()), next.size_bytes());
  return {{"xor+zstd1", ZstdBytes(BytesOf(sparse.dense))},
          {"xor_planes+zstd1", PlaneBytes(sparse.dense)},
          {"bitmap+xor+zstd1", BitmapBytes(sparse)},
          {"gaps16+xor+zstd1", GapBytes(sparse)},
          {"int32+bf16", changed * 6},
          {"int32+bf16+zstd1", IndexValueBytes(sparse)},
          {"full+zstd1", ZstdBytes(dense)}};
}

}  // namespace weightcast::delta
