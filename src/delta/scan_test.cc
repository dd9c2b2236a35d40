#include "delta/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

namespace weightcast::delta {
namespace {

constexpr ScanKernel kKernels[] = {ScanKernel::kPortable, ScanKernel::kAvx2, ScanKernel::kAvx512};

struct Row {
  tensor::DType dtype;
  ScanKernel kernel;
};

// Each kernel against the definition, unit by unit.
class ScanTest : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (!ForceScanKernel(GetParam().kernel)) GTEST_SKIP() << "this CPU lacks the kernel";
  }
  void TearDown() override {
    ForceScanKernel(ScanKernel::kAvx512) || ForceScanKernel(ScanKernel::kAvx2) ||
        ForceScanKernel(ScanKernel::kPortable);
  }

  Bytes RandomUnits(size_t units) {
    Bytes bytes(units * format_.bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    // The magnitudes at both ends, and those next to them.
    for (const uint8_t fill : {uint8_t{0x00}, uint8_t{0xff}}) {
      for (size_t i = random_() % 9; i < units; i += 9 + random_() % 40) {
        std::fill_n(bytes.begin() + static_cast<int64_t>(i * format_.bytes), format_.bytes, fill);
        bytes[(i + 1) * format_.bytes - 1] ^= static_cast<uint8_t>(random_() % 2 << 7);
      }
    }
    return bytes;
  }
  ClassTable RandomTable(size_t classes) {
    ClassTable table{.format = format_, .classes = std::min<size_t>(classes, format_.octaves)};
    std::vector<uint32_t> octaves(format_.octaves - 1);
    std::iota(octaves.begin(), octaves.end(), 1);
    std::ranges::shuffle(octaves, random_);
    std::copy_n(octaves.begin(), table.classes - 1, table.first_octave.begin() + 1);
    std::sort(table.first_octave.begin(),
              table.first_octave.begin() + static_cast<int64_t>(table.classes));
    return table;
  }
  uint32_t OctaveAt(const Bytes& bytes, size_t i) const {
    return WithUnit(format_.bytes, [&]<typename U>() {
      return OctaveOf(format_, LoadLe<U>(bytes.data() + i * sizeof(U)));
    });
  }
  static uint32_t ClassOf(const ClassTable& table, uint32_t octave) {
    uint32_t c = 0;
    while (c + 1 < table.classes && table.first_octave[c + 1] <= octave) ++c;
    return c;
  }

  // Some units, and the ranks they have by definition.
  struct Marked {
    std::vector<uint64_t> mask;
    std::vector<uint32_t> ranks;                           // as RankUnits gives them
    std::array<std::vector<uint32_t>, kClassesMax> lists;  // class by class
  };
  Marked MarkRandomUnits(const ClassTable& table, const Bytes& base) {
    const size_t units = base.size() / format_.bytes;
    Marked marked;
    marked.mask.resize(MaskWords(units));
    std::array<uint32_t, kClassesMax> seen{};
    const uint64_t rarity = 1 + random_() % 30;
    for (size_t i = 0; i < units; ++i) {
      const uint32_t c = ClassOf(table, OctaveAt(base, i));
      const uint32_t rank = seen[c]++;
      if (random_() % rarity != 0) continue;
      marked.mask[i / 64] |= uint64_t{1} << i % 64;
      marked.ranks.push_back(c << 24 | rank);
      marked.lists[c].push_back(rank);
    }
    return marked;
  }

  // The mask that a selector finds block by block; it copies the base as well.
  std::vector<uint64_t> Select(const ClassTable& table, const Bytes& base,
                               std::array<std::vector<uint32_t>, kClassesMax> lists,
                               size_t block) const {
    std::array<const uint32_t*, kClassesMax> pointers{};
    for (size_t c = 0; c < kClassesMax; ++c) {
      lists[c].push_back(kNoRank);
      pointers[c] = lists[c].data();
    }
    UnitSelector selector(table, pointers);
    const size_t units = base.size() / format_.bytes;
    std::vector<uint64_t> mask(MaskWords(units), ~uint64_t{0});
    Bytes copy(base.size());
    size_t found = 0;
    for (size_t first = 0; first < units; first += block) {
      const size_t n = std::min(block, units - first);
      const size_t at = first * format_.bytes;
      found += selector.Next(ByteSpan(base).subspan(at, n * format_.bytes),
                             std::span(mask).subspan(first / 64, MaskWords(n)),
                             MutableByteSpan(copy).subspan(at, n * format_.bytes));
    }
    size_t marked = 0;
    for (const uint64_t word : mask) marked += static_cast<size_t>(std::popcount(word));
    EXPECT_EQ(found, marked);
    EXPECT_EQ(copy, base);
    return mask;
  }

  const UnitFormat format_ = FormatOf(GetParam().dtype);
  std::mt19937_64 random_{7};
};

TEST_P(ScanTest, DiffMarksExactlyTheUnitsThatDiffer) {
  for (size_t units = 1; units < 200; ++units) {
    const Bytes base = RandomUnits(units);
    Bytes next = base;
    std::vector<bool> want(units);
    for (size_t k = 0; k < 5; ++k) {
      const size_t byte = random_() % next.size();
      next[byte] = static_cast<uint8_t>(base[byte] ^ (1 << random_() % 8));
      want[byte / format_.bytes] = true;
    }
    std::vector<uint64_t> mask(MaskWords(units), ~uint64_t{0});
    const size_t changed = DiffUnits(format_.bytes, base, next, mask);
    ASSERT_EQ(changed, static_cast<size_t>(std::ranges::count(want, true)));
    for (size_t i = 0; i < 64 * mask.size(); ++i) {
      ASSERT_EQ((mask[i / 64] >> i % 64 & 1) != 0, i < units && want[i]) << units << " " << i;
    }
  }
}

TEST_P(ScanTest, RanksAreThoseOfTheDefinitionAndSelectIsTheInverse) {
  for (size_t units : {1u, 5u, 63u, 64u, 65u, 128u, 1000u, 4096u, 5001u}) {
    for (size_t classes = 1; classes <= kClassesMax; ++classes) {
      const Bytes base = RandomUnits(units);
      const ClassTable table = RandomTable(classes);
      const Marked want = MarkRandomUnits(table, base);
      std::vector<uint32_t> ranks(want.ranks.size());
      RankUnits(table, base, want.mask, ranks.data());
      ASSERT_EQ(ranks, want.ranks) << units << " units, " << classes << " classes";
      for (const size_t block : {size_t{64}, size_t{640}, units}) {
        ASSERT_EQ(Select(table, base, want.lists, block), want.mask);
      }
    }
  }
}

TEST_P(ScanTest, RanksBeyondTheirClassAreNotFound) {
  const Bytes base = RandomUnits(70);
  const ClassTable table = RandomTable(2);
  std::array<std::vector<uint32_t>, kClassesMax> lists;
  std::array<const uint32_t*, kClassesMax> pointers{};
  for (size_t c = 0; c < kClassesMax; ++c) {
    lists[c] = {70, 90, 127, 1000, kNoRank};  // some fall into the padding of the last group
    pointers[c] = lists[c].data();
  }
  UnitSelector selector(table, pointers);
  std::vector<uint64_t> mask(2);
  Bytes copy(base.size());
  EXPECT_EQ(selector.Next(base, mask, copy), 0u);
  EXPECT_EQ(mask, std::vector<uint64_t>(2));
}

std::vector<Row> Rows() {
  using tensor::DType;
  std::vector<Row> rows;
  for (const ScanKernel kernel : kKernels) {
    for (const DType dtype :
         {DType::kF8E4M3, DType::kF8E5M2, DType::kBf16, DType::kF16, DType::kF32, DType::kF64,
          DType::kU8, DType::kI16, DType::kI32, DType::kU64}) {
      rows.push_back({dtype, kernel});
    }
  }
  return rows;
}

std::string NameOf(const testing::TestParamInfo<Row>& row) {
  constexpr const char* kNames[] = {"Portable", "Avx2", "Avx512"};
  return std::string(kNames[static_cast<size_t>(row.param.kernel)]) +
         std::string(DTypeName(row.param.dtype));
}

INSTANTIATE_TEST_SUITE_P(All, ScanTest, testing::ValuesIn(Rows()), NameOf);

}  // namespace
}  // namespace weightcast::delta
