#include "trainer/redo.h"

#include <gmock/gmock.h>

#include "base/hash.h"
#include "os/sim.h"
#include "trainer/testing.h"

namespace weightcast::trainer {
namespace {

// One rank's share of the small model, at a base and at a next state, and the redo between them.
class RedoTest : public testing::Test {
 protected:
  RedoTest() {
    file_ = machine_.world().fs.OpenFile("/bytes", os::Open::kCreate).value();
    WC_CHECK(file_->Write(0, base_).ok());
    mapping_ = file_->Map(/*writable=*/true).value();
    for (size_t i = 0; i < chunks_.chunks.size(); ++i) {
      const layout::Chunk& chunk = chunks_.chunks[i];
      const int unit = UnitBytes(chunk);
      const auto at = static_cast<size_t>(chunk.at);
      const auto units = static_cast<size_t>(chunk.box.units());
      const size_t step = i % 2 == 0 ? 5 : 1;  // sparse, whole
      std::vector<uint32_t> changed;
      for (size_t u = 0; u < units; u += step) {
        next_[at + u * static_cast<size_t>(unit)] ^= 1;
        changed.push_back(static_cast<uint32_t>(u));
      }
      const ByteSpan next = ByteSpan(next_).subspan(at, units * static_cast<size_t>(unit));
      EncodeRedo(i, unit, next, changed, &record_);
      ends_.push_back(redo_.size() + record_.size());
      redo_.insert(redo_.end(), record_.begin(), record_.end());
    }
  }

  int UnitBytes(const layout::Chunk& chunk) const {
    return (*inventory_)[static_cast<size_t>(chunk.tensor)].matrix().unit_bytes;
  }
  Status Apply(ByteSpan redo) { return ApplyRedo(redo, *inventory_, chunks_, *mapping_, 2); }
  Bytes Found() { return {mapping_->bytes().begin(), mapping_->bytes().end()}; }

  const std::shared_ptr<const tensor::Inventory> inventory_ = SmallInventory();
  const layout::ChunkList chunks_ = SmallChunks(*SmallPlan(*inventory_, 1), RankId{0});
  const Bytes base_ = Bytes(static_cast<size_t>(chunks_.packed_bytes), 0xA5);
  os::SimMachine machine_;
  std::unique_ptr<os::File> file_;
  std::unique_ptr<os::Mapping> mapping_;
  Bytes next_ = base_;
  Bytes record_;
  Bytes redo_;
  std::vector<size_t> ends_;
};

TEST_F(RedoTest, BringsTheBytesToTheNextStateAlsoTwiceAndFromAnyMixture) {
  ASSERT_GT(chunks_.chunks.size(), 3U);
  ASSERT_TRUE(Apply(redo_).ok());
  EXPECT_EQ(Found(), next_);
  ASSERT_TRUE(Apply(redo_).ok());
  EXPECT_EQ(Found(), next_);
  mapping_->Update(0, 40, [&](MutableByteSpan out) { CopyBytes(ByteSpan(base_).first(40), out); });
  ASSERT_TRUE(Apply(redo_).ok());
  EXPECT_EQ(Found(), next_);
}

TEST_F(RedoTest, NothingChangedIsNoRecord) {
  EncodeRedo(0, 2, base_, {}, &record_);
  EXPECT_TRUE(record_.empty());
  ASSERT_TRUE(Apply({}).ok());
  EXPECT_EQ(Found(), base_);
}

TEST_F(RedoTest, FindsEveryFlippedByteAndEveryTruncationInsideARecord) {
  for (size_t at = 0; at < redo_.size(); ++at) {
    Bytes bad = redo_;
    bad[at] ^= 0x10;
    const Status applied = Apply(bad);
    ASSERT_FALSE(applied.ok()) << at;
    EXPECT_EQ(applied.error().code, Code::kDataLoss) << at;
    const bool between = std::ranges::find(ends_, at) != ends_.end() || at == 0;
    EXPECT_EQ(Apply(ByteSpan(redo_).first(at)).ok(), between) << at;
  }
}

// Well-formed records that do not belong to the list.
TEST_F(RedoTest, RefusesRecordsThatFitNoChunk) {
  const auto refuses = [&](const char* what) {
    const Status applied = Apply(record_);
    ASSERT_FALSE(applied.ok()) << what;
    EXPECT_THAT(applied.error().message, testing::HasSubstr(what));
  };
  EncodeRedo(chunks_.chunks.size(), 2, Bytes(100), std::vector<uint32_t>{1}, &record_);
  refuses("no such chunk");
  EncodeRedo(0, 1, Bytes(1), std::vector<uint32_t>{0}, &record_);
  refuses("expected");
  EncodeRedo(0, UnitBytes(chunks_.chunks[0]), Bytes(1 << 20), std::vector<uint32_t>{1 << 16},
             &record_);
  refuses("does not fit");
}

}  // namespace
}  // namespace weightcast::trainer
