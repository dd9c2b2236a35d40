#include "delta/profile.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "delta/cost.h"

namespace weightcast::delta {
namespace {

// Units sampled for the histogram of octaves, and changed units sampled for that of values: enough
// for a percent of precision where it matters, and 2 % of the time of the scan.
constexpr size_t kUnitRuns = 512;  // of units that lie side by side: each costs one cache miss
constexpr size_t kUnitsARun = 32;
constexpr size_t kValueSamples = 2048;

// What another class costs beside its marks: threshold, count, shift.
constexpr uint64_t kClassBits = 40;

// Octaves that are told apart when classes are chosen; rarely are more than 40 occupied.
constexpr size_t kBinsMax = 64;

// Neighbouring octaves with the number of units and of changed units in them.
struct Bin {
  uint32_t first_octave = 0;
  uint64_t units = 0;
  uint64_t changed = 0;
};

template <typename U>
std::vector<Bin> CountOctaves(const UnitFormat& format, ByteSpan base, ByteSpan old_units) {
  const size_t units = base.size() / sizeof(U);
  std::array<uint32_t, kOctavesMax> sampled{};
  std::array<uint32_t, kOctavesMax> hits{};
  const auto octave = [&](ByteSpan of, size_t i) {
    return OctaveOf(format, LoadLe<U>(of.data() + i * sizeof(U)));
  };
  const size_t stride = std::max(units / kUnitRuns, kUnitsARun);
  uint64_t samples = 0;
  for (size_t run = 0; run < units; run += stride) {
    const size_t end = std::min(run + kUnitsARun, units);
    for (size_t i = run; i < end; ++i) ++sampled[octave(base, i)];
    samples += end - run;
  }
  const size_t changed = old_units.size() / sizeof(U);
  for (size_t i = 0; i < changed; ++i) ++hits[octave(old_units, i)];
  std::vector<Bin> bins;
  for (uint32_t o = 0; o < format.octaves; ++o) {
    if (sampled[o] == 0 && hits[o] == 0) continue;
    bins.push_back({o, std::max<uint64_t>(sampled[o] * units / samples, hits[o]), hits[o]});
  }
  while (bins.size() > kBinsMax) {
    for (size_t b = 0; b < bins.size() / 2; ++b) {
      const Bin& low = bins[2 * b];
      const Bin& high = bins[2 * b + 1];
      bins[b] = {low.first_octave, low.units + high.units, low.changed + high.changed};
    }
    if (bins.size() % 2 != 0) bins[bins.size() / 2] = bins.back();
    bins.resize((bins.size() + 1) / 2);
  }
  return bins;
}

// Of every number of classes over the first bins: the least bits, and where the last class starts.
struct Cuts {
  template <typename T>
  using Table = std::array<std::array<T, kBinsMax + 1>, kClassesMax + 1>;  // [classes][bins]
  Table<uint64_t> bits;
  Table<uint8_t> start{};

  // One class more, from bin `first` up to `end`.
  void Extend(size_t first, size_t end, uint64_t class_bits) {
    for (size_t classes = 1; classes <= kClassesMax; ++classes) {
      const uint64_t all = bits[classes - 1][first] + class_bits;
      if (all >= bits[classes][end]) continue;
      bits[classes][end] = all;
      start[classes][end] = static_cast<uint8_t>(first);
    }
  }
};

// Cuts the bins into at most kClassesMax classes so that marking the changed units class by class
// costs the fewest bits: dynamic programming over where the last class starts.
void ChooseClasses(std::span<const Bin> bins, ChunkProfile* profile) {
  const size_t n = bins.size();
  Cuts cuts;
  for (auto& row : cuts.bits) row.fill(std::numeric_limits<uint64_t>::max() / 2);
  cuts.bits[0][0] = 0;
  for (size_t first = 0; first < n; ++first) {
    Bin merged;
    for (size_t end = first + 1; end <= n; ++end) {
      merged.units += bins[end - 1].units;
      merged.changed += bins[end - 1].changed;
      cuts.Extend(first, end, MarkBits(merged.changed, merged.units) + kClassBits);
    }
  }
  size_t classes = 1;
  for (size_t c = 2; c <= kClassesMax; ++c) {
    if (cuts.bits[c][n] < cuts.bits[classes][n]) classes = c;
  }
  profile->gap_bits = cuts.bits[classes][n];
  profile->classes.classes = classes;
  size_t end = n;
  for (size_t c = classes; c-- > 0;) {
    end = cuts.start[c + 1][end];
    profile->classes.first_octave[c] = c == 0 ? 0 : bins[end].first_octave;
  }
}

// Headers and tables of a stream; one that repays neither is stored.
uint64_t StreamBits(uint64_t entropy_bits, uint64_t bytes) {
  constexpr uint64_t kTableBits = 400;
  return std::min(entropy_bits + kTableBits, 8 * bytes);
}

// What Zstandard makes of mostly zero bytes of which `set` are not: a Huffman code takes a bit a
// byte, and a run of zeros that ends takes some 28.
uint64_t PackedBits(uint64_t entropy_bits, uint64_t set, uint64_t bytes) {
  return std::max(entropy_bits, std::min(bytes, 28 * set));
}

// Order-0 bits of the changed units' values, from a sample.
template <typename U>
void EstimateValues(const UnitFormat& format, size_t units, ByteSpan old_units, ByteSpan new_units,
                    ChunkProfile* profile) {
  std::array<uint32_t, 72> code_sizes{};  // small codes one by one, then by their number of bits
  std::array<std::array<uint32_t, 256>, sizeof(U)> planes{};
  const size_t count = old_units.size() / sizeof(U);
  const size_t stride = count / kValueSamples + 1;
  uint64_t samples = 0;
  uint64_t extra_bits = 0;
  for (size_t i = 0; i < count; i += stride, ++samples) {
    const auto old_unit = LoadLe<U>(old_units.data() + i * sizeof(U));
    const auto new_unit = LoadLe<U>(new_units.data() + i * sizeof(U));
    const uint64_t code = StepCode(format, old_unit, new_unit);
    const auto width = static_cast<unsigned>(std::bit_width(code));
    ++code_sizes[code < 8 ? code : 5 + width];
    extra_bits += code < 8 ? 0 : width - 1;
    for (size_t b = 0; b < sizeof(U); ++b) {
      ++planes[b][static_cast<uint8_t>((old_unit ^ new_unit) >> (8 * b))];
    }
  }
  const uint64_t code_bits = EntropyBits(code_sizes) * count / samples;
  profile->step_bits = StreamBits(code_bits, count) + extra_bits * count / samples;
  const uint64_t unchanged = (units - count) * samples / count;  // in sample scale
  for (auto& plane : planes) {
    profile->word_bits += StreamBits(EntropyBits(plane) * count / samples, count);
    const uint64_t set = (samples - plane[0]) * count / samples;
    plane[0] += static_cast<uint32_t>(unchanged);
    profile->plane_bits += PackedBits(EntropyBits(plane) * count / samples, set, units);
  }
}

}  // namespace

ChunkProfile ProfileChunk(const UnitFormat& format, ByteSpan base, ByteSpan old_units,
                          ByteSpan new_units) {
  ChunkProfile profile;
  profile.classes.format = format;
  const size_t units = base.size() / format.bytes;
  const size_t changed = old_units.size() / format.bytes;
  const uint64_t mark_bits = MarkBits(changed, units);
  profile.bitmap_bits = PackedBits(mark_bits, changed, units / 8);
  WithUnit(format.bytes, [&]<typename U>() {
    if (format.is_float) {
      ChooseClasses(CountOctaves<U>(format, base, old_units), &profile);
    } else {
      profile.gap_bits = mark_bits;
    }
    EstimateValues<U>(format, units, old_units, new_units, &profile);
  });
  return profile;
}

}  // namespace weightcast::delta
