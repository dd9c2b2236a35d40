#include "tensor/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

constexpr int64_t kBlockBytes = 8192;
constexpr DigestKernel kKernels[] = {DigestKernel::kPortable, DigestKernel::kAvx2,
                                     DigestKernel::kAvx512};

// What this CPU runs; the portable one is always there.
std::vector<DigestKernel> RunnableKernels() {
  std::vector<DigestKernel> kernels;
  for (const DigestKernel kernel : kKernels) {
    if (ForceDigestKernel(kernel)) kernels.push_back(kernel);
  }
  return kernels;
}

// Straight from the definition: every byte alone, nothing shared with the code but DigestRun of
// one byte, which the goldens pin down.
TensorDigest ByteByByte(int64_t offset, ByteSpan bytes) {
  TensorDigest sum;
  for (size_t i = 0; i < bytes.size(); ++i) {
    sum = sum + DigestRun(offset + static_cast<int64_t>(i), bytes.subspan(i, 1));
  }
  return sum;
}

class DigestKernelTest : public ::testing::TestWithParam<DigestKernel> {
 protected:
  void SetUp() override {
    if (!ForceDigestKernel(GetParam())) GTEST_SKIP() << "this CPU lacks the kernel";
  }
  void TearDown() override { RunnableKernels(); }  // leaves the best one
};

TEST_P(DigestKernelTest, EqualsTheGoldens) {
  const Json golden = ReadGolden("digest_v1.json");
  ASSERT_GT(golden.at("cases").size(), 50U);
  for (const Json& c : golden.at("cases")) {
    const auto size = c.at("size").get<size_t>();
    const Bytes bytes = c.contains("fill") ? Bytes(size, c.at("fill").get<uint8_t>())
                                           : Pattern(c.at("seed").get<uint64_t>(), size);
    EXPECT_EQ(DigestRun(c.at("offset").get<int64_t>(), bytes).hex(),
              c.at("digest").get<std::string>())
        << c.at("name");
  }
}

TEST_P(DigestKernelTest, SumsFromAnyCutIntoTwoRuns) {
  const Bytes bytes = Pattern(3, 2 * kBlockBytes + 77);
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, kBlockBytes - 30, int64_t{6} * kBlockBytes}) {
    const TensorDigest whole = DigestRun(offset, bytes);
    for (size_t cut = 0; cut <= bytes.size(); cut += cut < 100 ? 1 : 97) {
      const TensorDigest left = DigestRun(offset, ByteSpan(bytes).first(cut));
      const TensorDigest right =
          DigestRun(offset + static_cast<int64_t>(cut), ByteSpan(bytes).subspan(cut));
      ASSERT_EQ(left + right, whole) << "offset " << offset << " cut " << cut;
    }
  }
}

std::string KernelName(const ::testing::TestParamInfo<DigestKernel>& kernel) {
  constexpr const char* kNames[] = {"Portable", "Avx2", "Avx512"};
  return kNames[static_cast<int>(kernel.param)];
}
INSTANTIATE_TEST_SUITE_P(All, DigestKernelTest, ::testing::ValuesIn(kKernels), KernelName);

TEST(DigestTest, KernelsAgreeOnEveryShortLengthAtEveryOffset) {
  const Bytes bytes = Pattern(1, 300);
  // Around the start of a block, its end, and every alignment in between.
  for (const int64_t start : {int64_t{0}, int64_t{1000}, kBlockBytes - 40}) {
    for (int64_t offset = start; offset < start + 8; ++offset) {
      for (size_t size = 0; size <= bytes.size(); ++size) {
        ASSERT_TRUE(ForceDigestKernel(DigestKernel::kPortable));
        const TensorDigest expected = DigestRun(offset, ByteSpan(bytes).first(size));
        if (size <= 40) {
          ASSERT_EQ(expected, ByteByByte(offset, ByteSpan(bytes).first(size)));
        }
        for (const DigestKernel kernel : RunnableKernels()) {
          ForceDigestKernel(kernel);
          ASSERT_EQ(DigestRun(offset, ByteSpan(bytes).first(size)), expected)
              << "kernel " << static_cast<int>(kernel) << " offset " << offset << " size " << size;
        }
      }
    }
  }
}

TEST(DigestTest, KernelsAgreeOnRandomRunsOfExtremeWords) {
  const std::vector<DigestKernel> kernels = RunnableKernels();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    Bytes bytes = Pattern(seed, random() % 40000);
    // Ones all over make the largest sums there are.
    if (seed % 3 == 0) std::ranges::fill(bytes, 0xff);
    const auto offset = static_cast<int64_t>(random() % (int64_t{1} << 40));
    ASSERT_TRUE(ForceDigestKernel(DigestKernel::kPortable));
    const TensorDigest expected = DigestRun(offset, bytes);
    for (const DigestKernel kernel : kernels) {
      ForceDigestKernel(kernel);
      ASSERT_EQ(DigestRun(offset, bytes), expected) << "seed " << seed;
    }
  }
}

TEST(DigestTest, AnEmptyRunIsZero) {
  EXPECT_EQ(DigestRun(0, {}), TensorDigest{});
  EXPECT_EQ(DigestRun(12345, {}), TensorDigest{});
}

TEST(DigestTest, EverySingleBitFlipIsSeen) {
  Bytes bytes = Pattern(9, 64);
  const TensorDigest before = DigestRun(kBlockBytes - 32, bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(DigestRun(kBlockBytes - 32, bytes), before) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

// ---- Boxes. The tensor's bytes and a plain loop are the second way.

struct Toy {
  Matrix matrix;
  Bytes bytes;

  size_t UnitAt(int64_t row, int64_t col) const {
    return static_cast<size_t>((row * matrix.cols + col) * matrix.unit_bytes);
  }
  Bytes Pack(const Box& box) const {
    Bytes packed;
    for (int64_t r = 0; r < box.rows; ++r) {
      for (int64_t c = 0; c < box.cols; ++c) {
        const size_t at = UnitAt(box.row + r * box.row_step, box.col + c * box.col_step);
        packed.insert(packed.end(), bytes.begin() + static_cast<ptrdiff_t>(at),
                      bytes.begin() + static_cast<ptrdiff_t>(at) + matrix.unit_bytes);
      }
    }
    return packed;
  }
  TensorDigest Expected(const Box& box) const {
    TensorDigest sum;
    const auto unit = static_cast<size_t>(matrix.unit_bytes);
    for (int64_t r = 0; r < box.rows; ++r) {
      for (int64_t c = 0; c < box.cols; ++c) {
        const size_t at = UnitAt(box.row + r * box.row_step, box.col + c * box.col_step);
        sum = sum + DigestRun(static_cast<int64_t>(at), ByteSpan(bytes).subspan(at, unit));
      }
    }
    return sum;
  }
};

Toy MakeToy(uint64_t seed, int64_t rows, int64_t cols, int unit_bytes) {
  Toy toy{{rows, cols, unit_bytes}, {}};
  toy.bytes = Pattern(seed, static_cast<size_t>(toy.matrix.bytes()));
  return toy;
}

TEST(DigestBoxTest, EveryBoxOfASmallMatrix) {
  for (const int unit : {1, 2, 4, 8}) {
    const Toy toy = MakeToy(static_cast<uint64_t>(unit), 4, 5, unit);
    int boxes = 0;
    for (int64_t code = 0; code < 4 * 5 * 5 * 6 * 3 * 3; ++code) {
      int64_t rest = code;
      const auto next = [&rest](int64_t n) { return std::exchange(rest, rest / n) % n; };
      const Box box{next(4), next(5), next(3) + 1, next(5), next(6), next(3) + 1};
      if (!Inside(box, toy.matrix)) continue;
      ++boxes;
      ASSERT_EQ(DigestBox(toy.matrix, box, toy.Pack(box)), toy.Expected(box))
          << BoxText(box) << " unit " << unit;
    }
    EXPECT_GT(boxes, 1000);
  }
}

Box RandomBox(std::mt19937_64* random, const Matrix& matrix) {
  const auto draw = [random](int64_t below) {
    return static_cast<int64_t>((*random)() % static_cast<uint64_t>(below));
  };
  Box box;
  box.row_step = 1 + draw(3);
  box.col_step = 1 + draw(3);
  box.row = draw(matrix.rows);
  box.col = draw(matrix.cols);
  box.rows = draw((matrix.rows - 1 - box.row) / box.row_step + 2);
  box.cols = draw((matrix.cols - 1 - box.col) / box.col_step + 2);
  return box;
}

TEST(DigestBoxTest, RandomBoxesAcrossBlocks) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const int unit = 1 << random() % 4;
    const Toy toy = MakeToy(seed, 1 + static_cast<int64_t>(random() % 40),
                            1 + static_cast<int64_t>(random() % 900), unit);
    const Box box = RandomBox(&random, toy.matrix);
    ASSERT_EQ(DigestBox(toy.matrix, box, toy.Pack(box)), toy.Expected(box))
        << "seed " << seed << " " << BoxText(box);
  }
}

TEST(DigestBoxTest, ColumnSlicesAndInterleavedColumnsSumToTheWhole) {
  for (const int unit : {1, 2, 4, 8}) {
    const Toy toy = MakeToy(5, 37, 301, unit);
    const TensorDigest whole = DigestRun(0, toy.bytes);
    EXPECT_EQ(DigestBox(toy.matrix, Box::All(toy.matrix), toy.bytes), whole);
    Partial slices;
    for (const Box& box :
         {Box{0, 37, 1, 0, 100, 1}, Box{0, 37, 1, 100, 1, 1}, Box{0, 19, 2, 101, 100, 2},
          Box{1, 18, 2, 101, 100, 2}, Box{0, 37, 1, 102, 100, 2}}) {
      slices += {DigestBox(toy.matrix, box, toy.Pack(box)), box.units()};
    }
    EXPECT_EQ(slices, (Partial{whole, toy.matrix.units()})) << unit;
  }
}

TEST(DigestBoxTest, AnEmptyBoxIsZero) {
  EXPECT_EQ(DigestBox({0, 7, 2}, {0, 0, 1, 0, 7, 1}, {}), TensorDigest{});
  EXPECT_EQ(DigestBox({7, 0, 2}, {0, 7, 1, 0, 0, 1}, {}), TensorDigest{});
  EXPECT_EQ(DigestBox({3, 3, 2}, {1, 0, 1, 1, 2, 1}, {}), TensorDigest{});
}

TEST(DigestBoxDeathTest, RefusesABoxOutsideAndBytesThatDoNotFit) {
  const Bytes bytes(100);
  EXPECT_DEATH(DigestBox({2, 2, 2}, {1, 2, 1, 0, 1, 1}, ByteSpan(bytes).first(4)), "Inside");
  EXPECT_DEATH(DigestBox({2, 2, 2}, {0, 2, 1, 0, 1, 1}, ByteSpan(bytes).first(5)), "packed");
}

TEST(InsideTest, KnowsEveryEdge) {
  const Matrix matrix{4, 6, 2};
  const int64_t huge = INT64_MAX;
  struct Case {
    const char* name;
    Box box;
    bool inside;
  };
  for (const Case& c :
       {Case{"All", Box::All(matrix), true}, Case{"LastUnit", {3, 1, 1, 5, 1, 1}, true},
        Case{"RowPastEnd", {4, 1, 1, 0, 1, 1}, false},
        Case{"ColPastEnd", {0, 1, 1, 6, 1, 1}, false},
        Case{"TooManyRows", {0, 5, 1, 0, 6, 1}, false},
        Case{"TooManyCols", {0, 4, 1, 1, 6, 1}, false},
        Case{"StepToLastRow", {0, 2, 3, 0, 1, 1}, true},
        Case{"StepPastLastRow", {0, 2, 4, 0, 1, 1}, false},
        Case{"StepToLastCol", {0, 1, 1, 0, 2, 5}, true},
        Case{"StepPastLastCol", {0, 1, 1, 0, 2, 6}, false},
        Case{"ZeroRowStep", {0, 1, 0, 0, 1, 1}, false},
        Case{"ZeroColStep", {0, 1, 1, 0, 1, 0}, false},
        Case{"NegativeRow", {-1, 1, 1, 0, 1, 1}, false},
        Case{"NegativeCols", {0, 1, 1, 0, -1, 1}, false}, Case{"Empty", {0, 0, 1, 0, 0, 1}, true},
        Case{"HugeStep", {0, 2, huge, 0, 1, 1}, false},
        Case{"HugeStepOnce", {0, 1, huge, 0, 1, huge}, true},
        Case{"HugeRows", {0, huge, huge, 0, huge, huge}, false}}) {
    EXPECT_EQ(Inside(c.box, matrix), c.inside) << c.name;
  }
}

TEST(BoxTextTest, NamesStepsOnlyWhereThereAreAny) {
  EXPECT_EQ(BoxText({1, 2, 1, 3, 4, 1}), "rows 1 + 2, cols 3 + 4");
  EXPECT_EQ(BoxText({1, 2, 5, 3, 4, 6}), "rows 1 + 2 step 5, cols 3 + 4 step 6");
}

// ---- Changes.

TEST(DigestChangeTest, EqualsTheDifferenceOfFullDigestsOnRandomBoxes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const int unit = 1 << random() % 4;
    const Toy toy = MakeToy(seed, 1 + static_cast<int64_t>(random() % 60),
                            1 + static_cast<int64_t>(random() % 700), unit);
    const Box box = seed % 4 == 0 ? Box::All(toy.matrix) : RandomBox(&random, toy.matrix);
    const Bytes base = toy.Pack(box);
    Bytes next = base;
    std::vector<uint32_t> changed;
    const uint64_t one_in = 1 + random() % 50;
    for (int64_t i = 0; i < box.units(); ++i) {
      if (random() % one_in != 0) continue;
      changed.push_back(static_cast<uint32_t>(i));
      for (int b = 0; b < unit; ++b) {
        next[static_cast<size_t>(i * unit + b)] = static_cast<uint8_t>(random());
      }
    }
    ASSERT_EQ(DigestChange(toy.matrix, box, base, next, changed),
              DigestBox(toy.matrix, box, next) - DigestBox(toy.matrix, box, base))
        << "seed " << seed << " unit " << unit << " " << BoxText(box);
  }
}

TEST(DigestChangeTest, LargestStepsUpAndDownOfAWholeBlock) {
  for (const int unit : {1, 2, 4, 8}) {
    const Matrix matrix{1, 3 * kBlockBytes / unit, unit};
    const Bytes zeros(static_cast<size_t>(matrix.bytes()), 0x00);
    const Bytes ones(static_cast<size_t>(matrix.bytes()), 0xff);
    std::vector<uint32_t> all(static_cast<size_t>(matrix.units()));
    std::iota(all.begin(), all.end(), 0U);
    const TensorDigest digest = DigestRun(0, ones);
    EXPECT_EQ(DigestChange(matrix, Box::All(matrix), zeros, ones, all), digest) << unit;
    EXPECT_EQ(DigestChange(matrix, Box::All(matrix), ones, zeros, all), TensorDigest{} - digest);
  }
}

TEST(DigestChangeTest, NothingChangedIsZero) {
  const Bytes bytes = Pattern(1, 64);
  EXPECT_EQ(DigestChange({4, 8, 2}, Box::All({4, 8, 2}), bytes, bytes, {}), TensorDigest{});
}

// Field report D4.
TEST(DigestChangeTest, NanPayloadsAndSignedZerosAreBitsLikeAnyOther) {
  // BF16: -0.0 against 0.0, and two NaNs that differ in payload only.
  const Bytes base = {0x00, 0x00, 0xc1, 0x7f};
  const Bytes next = {0x00, 0x80, 0xc2, 0x7f};
  const Matrix matrix{2, 1, 2};
  const std::vector<uint32_t> changed = {0, 1};
  const TensorDigest change = DigestChange(matrix, Box::All(matrix), base, next, changed);
  EXPECT_NE(change, TensorDigest{});
  EXPECT_EQ(DigestRun(0, base) + change, DigestRun(0, next));
}

// ---- The number itself.

TEST(TensorDigestTest, AddsAndSubtractsModuloThePrime) {
  const TensorDigest zero;
  const TensorDigest one{1, 0};
  const TensorDigest largest{UINT64_MAX - 1, UINT64_MAX >> 1};
  EXPECT_EQ(largest + one, zero);
  EXPECT_EQ(zero - one, largest);
  EXPECT_EQ(largest + largest, largest - one);
  EXPECT_EQ(zero - zero, zero);
  EXPECT_EQ(one - largest, (TensorDigest{2, 0}));
}

TEST(TensorDigestTest, TextAndWireAreOppositeInOrder) {
  const TensorDigest digest{0x1122334455667788, 0x00aabbccddeeff01};
  EXPECT_EQ(digest.hex(), "00aabbccddeeff011122334455667788");
  uint8_t wire[16];
  digest.Store(wire);
  EXPECT_EQ(Hex(wire), "887766554433221101ffeeddccbbaa00");
  EXPECT_EQ(*TensorDigest::Load(wire), digest);
  EXPECT_EQ(*TensorDigest::ParseHex(digest.hex()), digest);
}

TEST(TensorDigestTest, RefusesWhatIsNotBelowThePrime) {
  EXPECT_TRUE(TensorDigest::ParseHex("7ffffffffffffffffffffffffffffffe").ok());
  for (const char* text : {"7fffffffffffffffffffffffffffffff", "80000000000000000000000000000000",
                           "ffffffffffffffffffffffffffffffff"}) {
    const auto digest = TensorDigest::ParseHex(text);
    ASSERT_FALSE(digest.ok()) << text;
    EXPECT_EQ(digest.error().code, Code::kInvalidData);
    EXPECT_THAT(digest.error().message, ::testing::HasSubstr(text));
  }
  EXPECT_FALSE(TensorDigest::ParseHex("7f").ok());
  EXPECT_FALSE(TensorDigest::ParseHex("zfffffffffffffffffffffffffffffff").ok());
}

}  // namespace
}  // namespace weightcast::tensor
