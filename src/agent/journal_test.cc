#include "agent/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "layout/cells.h"
#include "os/sim.h"
#include "tensor/testing.h"

namespace weightcast::agent {
namespace {

using tensor::DType;
using tensor::TensorSpec;
using testing::HasSubstr;

std::shared_ptr<const tensor::Inventory> Model(std::vector<TensorSpec> specs) {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make(std::move(specs)).value());
}

JournalIdentity Identity(const tensor::Inventory& inventory) {
  JournalIdentity identity;
  identity.from_generation = 4;
  identity.to_generation = 5;
  identity.from_version.value.fill(1);
  identity.to_version.value.fill(2);
  identity.from_root.value.fill(3);
  identity.to_root.value.fill(4);
  identity.layout = inventory.signature();
  return identity;
}

// Positions in [0, units) at the given spacing.
Bytes ChangeEvery(Bytes bytes, size_t unit, size_t every) {
  for (size_t at = 0; at < bytes.size(); at += unit * every) ++bytes[at];
  return bytes;
}

Status Add(JournalWriter& writer, const tensor::Inventory& inventory, size_t tensor, int64_t cell,
           const Bytes& base, const Bytes& next) {
  const tensor::Matrix matrix = inventory[tensor].matrix();
  Comparison comparison;
  Bytes body;
  const CellChange change =
      comparison.Compare(matrix, layout::CellGrid::For(matrix).CellBox(cell), base, next);
  return writer.Add(static_cast<int32_t>(tensor), cell, base, next, change, &body);
}

class JournalTest : public testing::Test {
 protected:
  // One cell each: tensor i goes from base[i] to next[i].
  Result<int64_t> Write(std::shared_ptr<const tensor::Inventory> inventory,
                        const std::vector<Bytes>& base, const std::vector<Bytes>& next,
                        int64_t bytes_max = kMiB) {
    auto writer = WC_TRY(JournalWriter::Create(machine_.world().fs, "/j", Identity(*inventory),
                                               inventory, bytes_max));
    for (size_t t = base.size(); t-- > 0;) {  // any order will do
      WC_TRY(Add(*writer, *inventory, t, 0, base[t], next[t]));
    }
    WC_TRY(writer->Finish(true));
    return writer->bytes();
  }
  Result<Journal> Open(std::shared_ptr<const tensor::Inventory> inventory) {
    return Journal::Open(machine_.world().fs, "/j", std::move(inventory));
  }
  Bytes File() { return machine_.world().fs.ReadAll("/j", kMiB).value(); }

  os::SimMachine machine_;
};

struct FormCase {
  const char* name;
  DType dtype;
  int64_t units;
  size_t every;  // 0: nothing changes
  size_t entries;
  JournalForm form;
};

class JournalFormTest : public JournalTest, public testing::WithParamInterface<FormCase> {};

TEST_P(JournalFormTest, RedoAndUndoRestoreBitsFromAnyMixture) {
  const FormCase& c = GetParam();
  const auto inventory = Model({{"t", c.dtype, {c.units}}});
  const auto unit = static_cast<size_t>(tensor::UnitBytes(c.dtype));
  const Bytes base = tensor::Pattern(1, static_cast<size_t>(c.units) * unit);
  const Bytes next = c.every == 0 ? base : ChangeEvery(base, unit, c.every);
  const Result<int64_t> written = Write(inventory, {base}, {next});
  ASSERT_TRUE(written.ok()) << written.error().message;
  const Result<Journal> journal = Open(inventory);
  ASSERT_TRUE(journal.ok()) << journal.error().message;
  EXPECT_EQ(journal->identity(), Identity(*inventory));
  EXPECT_EQ(journal->bytes(), *written);
  ASSERT_EQ(journal->entries().size(), c.entries);
  if (c.entries == 0) return;

  const JournalEntry& entry = journal->entries()[0];
  EXPECT_EQ(entry.form, c.form);
  EXPECT_EQ(entry.old_digest, tensor::DigestRun(0, base));
  EXPECT_EQ(entry.new_digest, tensor::DigestRun(0, next));
  const int64_t most = JournalCellBytesMax(c.units, static_cast<int>(unit), entry.changed);
  EXPECT_LE(*written, kJournalFrameBytes + most);
  std::mt19937 rng(7);
  Bytes mixture = base;
  for (size_t i = 0; i < mixture.size(); i += unit) {
    if (rng() % 2 == 0) std::copy_n(next.begin() + static_cast<ptrdiff_t>(i), unit, &mixture[i]);
  }
  for (const Bytes& start : {base, next, mixture}) {
    Bytes cell = start;
    ASSERT_TRUE(journal->Write(entry, false, cell).ok());
    EXPECT_TRUE(cell == next);
    ASSERT_TRUE(journal->Write(entry, true, cell).ok());
    EXPECT_TRUE(cell == base);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, JournalFormTest,
    testing::Values(FormCase{"NoChange", DType::kBf16, 100, 0, 0, JournalForm::kSparse},
                    FormCase{"OneUnit", DType::kF64, 1, 1, 1, JournalForm::kWhole},
                    FormCase{"FirstOnly", DType::kBf16, 5000, 5000, 1, JournalForm::kSparse},
                    FormCase{"Bytes", DType::kU8, 4097, 9, 1, JournalForm::kSparse},
                    FormCase{"Bf16", DType::kBf16, 5000, 100, 1, JournalForm::kSparse},
                    FormCase{"LongGaps", DType::kBf16, 60000, 20000, 1, JournalForm::kSparse},
                    FormCase{"F32", DType::kF32, 999, 2, 1, JournalForm::kSparse},
                    FormCase{"F64", DType::kF64, 999, 3, 1, JournalForm::kSparse},
                    FormCase{"AllChanged", DType::kBf16, 5000, 1, 1, JournalForm::kWhole}),
    [](const auto& row) { return std::string(row.param.name); });

TEST_F(JournalTest, ChangedBf16UnitAtOnePercentTakesLessThanFiveAndAHalfBytes) {
  const int64_t units = layout::kCellUnits;
  const auto inventory = Model({{"t", DType::kBf16, {units}}});
  const Bytes base = tensor::Pattern(1, static_cast<size_t>(units) * 2);
  Bytes next = base;
  std::mt19937 rng(1);
  int64_t changed = 0;
  for (size_t i = 0; i < next.size(); i += 2) {
    if (rng() % 100 != 0) continue;
    ++next[i];
    ++changed;
  }
  const int64_t bytes = Write(inventory, {base}, {next}).value();
  EXPECT_LT(static_cast<double>(bytes) / static_cast<double>(changed), 5.5);
}

TEST_F(JournalTest, EntriesOfAllCellsAreSortedWhateverTheOrderOfWriting) {
  const auto inventory = Model({{"a", DType::kU8, {10}}, {"b", DType::kU8, {2, 1 << 20}}});
  const auto writer =
      JournalWriter::Create(machine_.world().fs, "/j", Identity(*inventory), inventory, 8 * kMiB)
          .value();
  const Bytes zeros(1 << 20);
  const Bytes ones(1 << 20, 1);
  ASSERT_TRUE(Add(*writer, *inventory, 1, 1, zeros, ones).ok());
  ASSERT_TRUE(Add(*writer, *inventory, 1, 0, zeros, ones).ok());
  ASSERT_TRUE(Add(*writer, *inventory, 0, 0, Bytes(10), Bytes(10, 3)).ok());
  ASSERT_TRUE(writer->Finish(false).ok());
  const Result<Journal> journal = Open(inventory);
  ASSERT_TRUE(journal.ok()) << journal.error().message;
  std::vector<std::pair<int32_t, int64_t>> cells;
  for (const JournalEntry& entry : journal->entries()) cells.emplace_back(entry.tensor, entry.cell);
  EXPECT_THAT(cells, testing::ElementsAre(std::pair(0, 0), std::pair(1, 0), std::pair(1, 1)));
}

TEST_F(JournalTest, RefusesToGrowBeyondItsBudget) {
  const auto inventory = Model({{"t", DType::kBf16, {1000}}});
  const Bytes base(2000);
  const Bytes next = ChangeEvery(base, 2, 10);
  const int64_t bytes = Write(inventory, {base}, {next}).value();
  EXPECT_TRUE(Write(inventory, {base}, {next}, bytes).ok());
  const Result<int64_t> refused = Write(inventory, {base}, {next}, bytes - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
}

class JournalDamageTest : public JournalTest {
 protected:
  void SetUp() override {
    inventory_ = Model({{"a", DType::kBf16, {300}}, {"b", DType::kF32, {64}}});
    const std::vector<Bytes> base = {Bytes(600), Bytes(256)};
    ASSERT_TRUE(
        Write(inventory_, base, {ChangeEvery(base[0], 2, 7), ChangeEvery(base[1], 4, 1)}).ok());
    file_ = File();
    ASSERT_TRUE(Journal::Parse(file_, inventory_).ok());
  }

  std::shared_ptr<const tensor::Inventory> inventory_;
  Bytes file_;
};

TEST_F(JournalDamageTest, FindsEveryFlippedByte) {
  for (size_t i = 0; i < file_.size(); ++i) {
    Bytes damaged = file_;
    damaged[i] ^= 0x10;
    const Result<Journal> journal = Journal::Parse(damaged, inventory_);
    ASSERT_FALSE(journal.ok()) << "byte " << i;
    EXPECT_EQ(journal.error().code, Code::kDataLoss) << "byte " << i;
  }
}

TEST_F(JournalDamageTest, RejectsEveryTruncation) {
  for (size_t size = 0; size < file_.size(); ++size) {
    const Result<Journal> journal = Journal::Parse(ByteSpan(file_).first(size), inventory_);
    ASSERT_FALSE(journal.ok()) << size;
    EXPECT_EQ(journal.error().code, Code::kDataLoss) << size;
  }
}

TEST_F(JournalDamageTest, NamesTheCellWhoseBodyIsDamaged) {
  file_[170] ^= 1;
  const Result<Journal> journal = Journal::Parse(file_, inventory_);
  ASSERT_FALSE(journal.ok());
  EXPECT_THAT(journal.error().message, HasSubstr("cell 0"));
}

TEST_F(JournalDamageTest, RefusesAJournalOfAnotherLayout) {
  const auto other = Model({{"a", DType::kBf16, {300}}, {"b", DType::kI32, {64}}});
  const Result<Journal> journal = Journal::Parse(file_, other);
  ASSERT_FALSE(journal.ok());
  EXPECT_THAT(journal.error().message, HasSubstr("layout"));
}

TEST_F(JournalDamageTest, OpenNamesTheFileAndSaysNotFoundIfThereIsNone) {
  ASSERT_TRUE(machine_.world().fs.Remove("/j").ok());
  const Result<Journal> journal = Open(inventory_);
  ASSERT_FALSE(journal.ok());
  EXPECT_EQ(journal.error().code, Code::kNotFound);
  EXPECT_THAT(journal.error().message, HasSubstr("/j"));
}

}  // namespace
}  // namespace weightcast::agent
