#include "layout/cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace weightcast::layout {
namespace {

using tensor::DType;
using tensor::Matrix;

tensor::Inventory One(tensor::Shape shape) {
  return tensor::Inventory::Make({{"w", DType::kBf16, std::move(shape)}}).value();
}

Slice Of(Box box, int64_t source, int64_t row_stride) {
  Slice s;
  s.box = box;
  s.source = source;
  s.row_stride = row_stride;
  return s;
}

TEST(Grid, SmallTensorsAreOneCell) {
  for (const Matrix m :
       {Matrix{1, 1, 2}, Matrix{7, 3, 4}, Matrix{kCellUnits, 1, 2}, Matrix{1, kCellUnits, 1}}) {
    const CellGrid grid = CellGrid::For(m);
    EXPECT_EQ(grid.cells(), 1);
    EXPECT_EQ(grid.CellBox(0), Box::All(m));
  }
}

TEST(Grid, EmptyTensorsHaveNoCell) {
  EXPECT_EQ(CellGrid::For({0, 4, 2}).cells(), 0);
  EXPECT_EQ(CellGrid::For({4, 0, 2}).cells(), 0);
}

TEST(Grid, RowsAreCutIntoBandsOfAboutAMebiunit) {
  const CellGrid grid = CellGrid::For({151936, 1024, 2});
  EXPECT_EQ(grid.rows_per_cell, 1024);
  EXPECT_EQ(grid.cells(), 149);
  EXPECT_EQ(grid.CellBox(148), (Box{148 * 1024, 384, 1, 0, 1024, 1}));
  EXPECT_EQ(CellGrid::For({10, 2880, 2}).rows_per_cell, 364);
}

TEST(Grid, RowsLongerThanACellAreCutIntoColumns) {
  const CellGrid grid = CellGrid::For({3, 2 * kCellUnits + 5, 1});
  EXPECT_EQ(grid.rows_per_cell, 1);
  EXPECT_EQ(grid.cells(), 9);
  EXPECT_EQ(grid.CellBox(5), (Box{1, 1, 1, 2 * kCellUnits, 5, 1}));
}

TEST(Grid, NoCellIsLargerThanTheBoundAndCellAtFindsEachBox) {
  for (const Matrix m : {Matrix{5, 3 * kCellUnits / 2, 1}, Matrix{3, kCellUnits - 1, 2},
                         Matrix{2 * kCellUnits + 1, 1, 4}, Matrix{1000, 4097, 2}}) {
    const CellGrid grid = CellGrid::For(m);
    int64_t units = 0;
    for (int64_t c = 0; c < grid.cells(); ++c) {
      const Box box = grid.CellBox(c);
      EXPECT_LE(box.units(), kCellUnits);
      EXPECT_EQ(grid.CellAt(box.row, box.col), c);
      EXPECT_EQ(grid.CellAt(box.row + box.rows - 1, box.col + box.cols - 1), c);
      units += box.units();
    }
    EXPECT_EQ(units, m.units());
  }
}

TEST(Chunks, AWholeTensorGivesItsCells) {
  const tensor::Inventory inventory = One({3000, 1024});
  RankPlan rank;
  rank.slices.push_back(Of({0, 3000, 1, 0, 1024, 1}, 0, 1024));
  const ChunkList list = CutIntoChunks(inventory, rank);
  ASSERT_EQ(list.chunks.size(), 3U);
  EXPECT_EQ(list.chunks[2].cell, 2);
  EXPECT_EQ(list.chunks[2].box, (Box{2048, 952, 1, 0, 1024, 1}));
  EXPECT_EQ(list.chunks[2].at, 2 * kCellUnits * 2);
  ASSERT_EQ(list.chunks[2].fragments.size(), 1U);
  EXPECT_EQ(list.chunks[2].fragments[0].source, 2048 * 1024);
  EXPECT_EQ(list.packed_bytes, 3000 * 1024 * 2);
  EXPECT_EQ(list.chunk_bytes_max, kCellUnits * 2);
}

TEST(Chunks, GroupsThatLieOneBelowTheOtherBecomeOneChunk) {
  // q heads of four KV groups, as a fused shard holds them.
  RankPlan rank;
  for (int64_t g = 0; g < 4; ++g)
    rank.slices.push_back(Of({g * 8, 8, 1, 0, 16, 1}, g * 16 * 16, 16));
  const ChunkList list = CutIntoChunks(One({64, 16}), rank);
  ASSERT_EQ(list.chunks.size(), 1U);
  EXPECT_EQ(list.chunks[0].box, (Box{0, 32, 1, 0, 16, 1}));
  EXPECT_EQ(list.chunks[0].fragments.size(), 4U);
}

TEST(Chunks, ColumnsSideBySideBecomeOneChunk) {
  RankPlan rank;
  rank.slices = {Of({0, 4, 1, 0, 4, 1}, 0, 4), Of({0, 4, 1, 4, 12, 1}, 0, 12)};
  const ChunkList list = CutIntoChunks(One({4, 16}), rank);
  ASSERT_EQ(list.chunks.size(), 1U);
  EXPECT_EQ(list.chunks[0].box, (Box{0, 4, 1, 0, 16, 1}));
}

TEST(Chunks, ATileOfFourBecomesOneChunk) {
  RankPlan rank;
  for (int64_t r : {0, 2}) {
    for (int64_t c : {0, 8}) rank.slices.push_back(Of({r, 2, 1, c, 8, 1}, 0, 8));
  }
  EXPECT_EQ(CutIntoChunks(One({4, 16}), rank).chunks.size(), 1U);
}

TEST(Chunks, AShareThatIsNoBoxStaysSeveral) {
  RankPlan rank;
  rank.slices = {Of({0, 2, 1, 0, 16, 1}, 0, 16), Of({3, 1, 1, 0, 16, 1}, 32, 16)};
  const ChunkList list = CutIntoChunks(One({4, 16}), rank);
  ASSERT_EQ(list.chunks.size(), 2U);
  EXPECT_EQ(list.chunks[1].box.row, 3);
}

// Whatever the slices, the chunks cover the same units, each inside one cell, and each unit still
// comes from the place in the shard that its slice named.
TEST(Chunks, KeepEveryUnitAndItsSource) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    // Long rows, so that the grid has several bands both ways.
    const int64_t rows = pick(1, 4), cols = kCellUnits + pick(-1, 9);
    std::map<std::pair<int64_t, int64_t>, int64_t> wanted;
    RankPlan rank;
    // Columns near the end of the first band and the start of the next, by row, owned at random.
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = kCellUnits - 4; c < cols; c += 2) {
        if (pick(0, 2) == 0) continue;
        Slice s = Of({r, 1, 1, c, std::min<int64_t>(2, cols - c), 1}, pick(0, 1000), 7);
        for (int64_t j = 0; j < s.box.cols; ++j) wanted[{r, c + j}] = s.source + j;
        rank.slices.push_back(s);
      }
    }
    const ChunkList list = CutIntoChunks(One({rows, cols}), rank);
    const CellGrid grid = CellGrid::For({rows, cols, 2});
    std::map<std::pair<int64_t, int64_t>, int64_t> found;
    int64_t at = 0;
    std::tuple<int64_t, int64_t, int64_t> last{-1, 0, 0};
    for (const Chunk& chunk : list.chunks) {
      EXPECT_EQ(chunk.at, at);
      at += chunk.box.units() * 2;
      EXPECT_LT(last, std::tuple(chunk.cell, chunk.box.row, chunk.box.col));
      last = {chunk.cell, chunk.box.row, chunk.box.col};
      int64_t units = 0;
      for (const Fragment& f : chunk.fragments) {
        units += f.box.units();
        for (int64_t i = 0; i < f.box.rows; ++i) {
          for (int64_t j = 0; j < f.box.cols; ++j) {
            const int64_t row = f.box.row + i * f.box.row_step,
                          col = f.box.col + j * f.box.col_step;
            EXPECT_EQ(grid.CellAt(row, col), chunk.cell);
            found[{row, col}] = f.source + i * f.row_stride + j * f.col_stride;
          }
        }
      }
      EXPECT_EQ(units, chunk.box.units());
    }
    EXPECT_EQ(list.packed_bytes, at);
    EXPECT_EQ(found, wanted);
  }
}

TEST(Chunks, StridedBoxesAreCutAtCellBorders) {
  RankPlan rank;
  Slice s = Of({0, 1, 1, 1, kCellUnits, 2}, 0, 0);  // odd columns of two cells
  rank.slices.push_back(s);
  const ChunkList list = CutIntoChunks(One({1, 2 * kCellUnits + 1}), rank);
  ASSERT_EQ(list.chunks.size(), 2U);
  EXPECT_EQ(list.chunks[0].box, (Box{0, 1, 1, 1, kCellUnits / 2, 2}));
  EXPECT_EQ(list.chunks[1].box, (Box{0, 1, 1, kCellUnits + 1, kCellUnits / 2, 2}));
  EXPECT_EQ(list.chunks[1].fragments[0].source, kCellUnits / 2);
}

}  // namespace
}  // namespace weightcast::layout
