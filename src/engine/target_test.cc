#include "engine/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "layout/cells.h"
#include "layout/gather.h"
#include "os/sim.h"

namespace weightcast::engine {
namespace {

using tensor::DType;
using tensor::Inventory;
using tensor::Matrix;
using tensor::TensorSpec;

std::shared_ptr<const Inventory> Model(std::vector<TensorSpec> specs) {
  return std::make_shared<const Inventory>(Inventory::Make(std::move(specs)).value());
}

Bytes RandomBytes(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(static_cast<size_t>(size));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// `bytes` with about one unit in `one_in` changed.
Bytes Changed(Bytes bytes, int unit_bytes, uint64_t one_in, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(unit_bytes)) {
    if (random() % one_in == 0) bytes[at] ^= static_cast<uint8_t>(1 + random() % 255);
  }
  return bytes;
}

// How a worker holds a 2-d tensor: a box of it, in memory with these strides (units).
struct Layout {
  const char* name;
  DType dtype;
  tensor::Shape shape;
  tensor::Box box;
  int64_t row_stride;
  int64_t col_stride;
};

const Layout kLayouts[] = {
    {"Whole", DType::kBf16, {40, 30}, {0, 40, 1, 0, 30, 1}, 30, 1},
    {"RowsOfAFusedParameter", DType::kBf16, {40, 30}, {10, 20, 1, 0, 30, 1}, 30, 1},
    {"ColumnsOfARowParallelOne", DType::kBf16, {40, 30}, {0, 40, 1, 15, 15, 1}, 15, 1},
    {"PaddedRows", DType::kF32, {40, 30}, {0, 40, 1, 0, 30, 1}, 32, 1},
    {"Transposed", DType::kF32, {40, 30}, {0, 40, 1, 0, 30, 1}, 1, 40},
    {"Interleaved", DType::kF64, {40, 30}, {3, 7, 1, 4, 5, 1}, 20, 2},
    {"Vector", DType::kF32, {700}, {100, 300, 1, 0, 1, 1}, 2, 1},
    {"OneByte", DType::kU8, {64, 64}, {0, 64, 1, 32, 32, 1}, 32, 1},
    {"Scalar", DType::kF64, {}, {0, 1, 1, 0, 1, 1}, 1, 1},
    {"SeveralCells", DType::kU8, {3, 1 << 20}, {1, 2, 1, 0, 1 << 20, 1}, 1 << 20, 1},
    {"ColumnBands", DType::kU8, {2, 3 << 20}, {0, 2, 1, 1 << 20, 1 << 20, 1}, 1 << 20, 1},
};

class TargetTest : public testing::TestWithParam<Layout> {
 protected:
  TargetTest()
      : inventory_(Model({{"t", GetParam().dtype, GetParam().shape}})),
        matrix_((*inventory_)[0].matrix()),
        base_(RandomBytes(matrix_.bytes(), 1)),
        next_(Changed(base_, matrix_.unit_bytes, 9, 2)) {
    const Layout& how = GetParam();
    const auto first =
        static_cast<size_t>((how.box.row * matrix_.cols + how.box.col) * matrix_.unit_bytes);
    next_[first] = static_cast<uint8_t>(base_[first] ^ 1);  // at least one that is held
    const int64_t units = (how.box.rows - 1) * how.row_stride + (how.box.cols - 1) * how.col_stride;
    memory_ = Bytes(static_cast<size_t>((units + 1) * matrix_.unit_bytes), 0xee);
    Lay(base_, &memory_);
  }

  // Writes the box of `canonical` to where the layout says, unit by unit.
  void Lay(const Bytes& canonical, Bytes* memory) const {
    const Layout& how = GetParam();
    const auto size = static_cast<size_t>(matrix_.unit_bytes);
    for (int64_t i = 0; i < how.box.rows; ++i) {
      for (int64_t j = 0; j < how.box.cols; ++j) {
        const int64_t from = (how.box.row + i) * matrix_.cols + how.box.col + j;
        const int64_t to = i * how.row_stride + j * how.col_stride;
        std::memcpy(memory->data() + static_cast<size_t>(to) * size,
                    canonical.data() + static_cast<size_t>(from) * size, size);
      }
    }
  }

  agent::Journal JournalOf(const Bytes& base, const Bytes& next) {
    agent::JournalIdentity identity{.from_generation = 1, .to_generation = 2};
    identity.layout = inventory_->signature();
    const auto writer = agent::JournalWriter::Create(machine_.world().fs, "/j", identity,
                                                     inventory_, int64_t{1} << 30)
                            .value();
    const layout::CellGrid grid = layout::CellGrid::For(matrix_);
    agent::Comparison comparison;
    Bytes body;
    for (int64_t cell = 0; cell < grid.cells(); ++cell) {
      const layout::CellRun run = layout::RunOf(matrix_, cell);
      const agent::CellChange change =
          comparison.Compare(matrix_, grid.CellBox(cell), run.Of(base), run.Of(next));
      WC_CHECK(writer->Add(0, cell, run.Of(base), run.Of(next), change, &body).ok());
    }
    WC_CHECK(writer->Finish(false).ok());
    return agent::Journal::Open(machine_.world().fs, "/j", inventory_).value();
  }

  Target MakeTarget() {
    const Layout& how = GetParam();
    return Target::Make(inventory_, {{.tensor = 0,
                                      .box = how.box,
                                      .address = memory_.data(),
                                      .row_stride = how.row_stride,
                                      .col_stride = how.col_stride}})
        .value();
  }

  tensor::Partial PartialOf(const Bytes& canonical) const {
    const tensor::Box& box = GetParam().box;
    Bytes packed(static_cast<size_t>(box.units() * matrix_.unit_bytes));
    layout::GatherBox(matrix_, box, canonical, packed);
    return {tensor::DigestBox(matrix_, box, packed), box.units()};
  }

  os::SimMachine machine_;
  std::shared_ptr<const Inventory> inventory_;
  Matrix matrix_;
  Bytes base_;
  Bytes next_;
  Bytes memory_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, TargetTest, testing::ValuesIn(kLayouts),
                         [](const auto& row) { return row.param.name; });

constexpr int32_t kTensor[] = {0};

TEST_P(TargetTest, WritesJustTheUnitsThatAreHeldAndNothingBeside) {
  Target target = MakeTarget();
  const agent::Journal journal = JournalOf(base_, next_);
  EXPECT_TRUE(target.Compare(journal, false, kTensor, 2).value().empty());
  Bytes expected = memory_;
  Lay(next_, &expected);
  EXPECT_GT(target.Write(journal, false, kTensor, 2).value(), 0);
  EXPECT_EQ(memory_, expected);
  EXPECT_TRUE(target.Compare(journal, true, kTensor, 2).value().empty());
  Lay(base_, &expected);
  EXPECT_GT(target.Write(journal, true, kTensor, 1).value(), 0);
  EXPECT_EQ(memory_, expected) << "back";
}

TEST_P(TargetTest, DigestsWhatIsThereAndNotWhatWasSent) {
  const Target target = MakeTarget();
  const auto live = [&] { return target.DigestLive(kTensor, 2).value().front().partial; };
  EXPECT_EQ(live(), PartialOf(base_));
  EXPECT_EQ(target.DigestCanonical(0, base_), PartialOf(base_));
  Lay(next_, &memory_);
  EXPECT_EQ(live(), PartialOf(next_));
  memory_[memory_.size() / 2] ^= 1;
  const auto& [digest, units] = live();
  EXPECT_EQ(units, GetParam().box.units());
  if (GetParam().col_stride == 1 && GetParam().row_stride == GetParam().box.cols) {
    EXPECT_NE(digest, PartialOf(next_).digest) << "every byte counts where none is padding";
  }
}

TEST_P(TargetTest, FindsLiveUnitsThatAreNotTheBases) {
  const Target target = MakeTarget();
  const agent::Journal journal = JournalOf(base_, next_);
  Lay(next_, &memory_);  // every changed unit is a stranger now
  const auto found = target.Compare(journal, false, kTensor, 2).value();
  ASSERT_EQ(found.size(), 1U);
  const tensor::Box& box = GetParam().box;
  int64_t changed = 0;
  const auto size = static_cast<size_t>(matrix_.unit_bytes);
  for (int64_t row = box.row; row < box.row + box.rows; ++row) {
    for (int64_t col = box.col; col < box.col + box.cols; ++col) {
      const auto at = static_cast<size_t>(row * matrix_.cols + col) * size;
      changed += std::memcmp(&base_[at], &next_[at], size) != 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(found.front().units, changed);
}

TEST(TargetMakeTest, RefusesPlacesThatDoNotFit) {
  const auto inventory = Model({{"a", DType::kBf16, {4, 6}}, {"b", DType::kF32, {8}}});
  Bytes memory(1000);
  const Block whole{0, {0, 4, 1, 0, 6, 1}, memory.data(), 6, 1};
  const auto code = [&](std::vector<Block> blocks) {
    const auto made = Target::Make(inventory, std::move(blocks));
    return made.ok() ? "" : made.error().message;
  };
  EXPECT_EQ(code({whole}), "");
  Block block = whole;
  block.box.rows = 5;
  EXPECT_THAT(code({block}), testing::HasSubstr("is no place for units of BF16 [4, 6]"));
  block = whole;
  block.row_stride = 0;
  EXPECT_THAT(code({block}), testing::HasSubstr("strides 0"));
  block = whole;
  block.address = nullptr;
  EXPECT_NE(code({block}), "");
  block = whole;
  block.tensor = 2;
  EXPECT_THAT(code({block}), testing::HasSubstr("no tensor 2"));
  block = whole;
  block.box = {3, 1, 1, 5, 1, 1};
  EXPECT_THAT(code({whole, block}), testing::HasSubstr("a: placed twice"));
  block.box = {0, 4, 1, 0, 3, 1};
  Block rest = whole;
  rest.box = {0, 4, 1, 3, 3, 1};
  EXPECT_EQ(code({rest, block}), "") << "two halves side by side";
}

TEST(TargetMakeTest, SpansDependOnTheUnitsAloneAndAreSummedOverBlocks) {
  const auto inventory = Model({{"a", DType::kU8, {4, 6}}});
  Bytes memory(1000);
  const Block whole{0, {0, 4, 1, 0, 6, 1}, memory.data(), 6, 1};
  const Block top{0, {0, 1, 1, 0, 6, 1}, memory.data() + 500, 6, 1};
  const Block rest{0, {1, 3, 1, 0, 6, 1}, memory.data() + 700, 8, 1};
  const Target one = Target::Make(inventory, {whole}).value();
  const Target two = Target::Make(inventory, {rest, top}).value();
  const Target less = Target::Make(inventory, {rest}).value();
  EXPECT_EQ(one.SpanOf(0), two.SpanOf(0));
  EXPECT_NE(one.SpanOf(0), less.SpanOf(0));
  EXPECT_EQ(two.UnitsOf(0), 24);
  EXPECT_EQ(less.UnitsOf(0), 18);
  std::iota(memory.begin(), memory.end(), uint8_t{0});
  const Bytes canonical(memory.begin(), memory.begin() + 24);
  std::copy_n(canonical.begin(), 6, memory.begin() + 500);
  for (int64_t row = 1; row < 4; ++row) {
    std::copy_n(canonical.begin() + row * 6, 6, memory.begin() + 700 + (row - 1) * 8);
  }
  constexpr int32_t kOnly[] = {0};
  EXPECT_EQ(one.DigestLive(kOnly, 1).value()[0].partial,
            two.DigestLive(kOnly, 1).value()[0].partial);
}

}  // namespace
}  // namespace weightcast::engine
