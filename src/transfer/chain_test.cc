#include "transfer/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/mutex.h"
#include "base/task_pool.h"
#include "layout/cells.h"
#include "layout/gather.h"
#include "store/wrappers.h"
#include "transfer/testing.h"

namespace weightcast::transfer {
namespace {

using catalog::ReplayStart;
using catalog::VersionKind;
using tensor::DType;
using tensor::TensorSpec;

// What a replay gave: the cells it touched, laid over the state it began with.
struct Replayed {
  delta::State state;
  std::vector<tensor::Partial> gained;
  int64_t cells = 0;
};

// What a replay says that it has proven must be so.
void ExpectTrueOf(const tensor::Matrix& matrix, const ReplayCell& cell, const ReplayedCell& made) {
  if (made.chunk == nullptr) return;
  EXPECT_EQ(made.chunk->base_digest, tensor::DigestBox(matrix, cell.box, made.base));
  EXPECT_EQ(made.chunk->next_digest, tensor::DigestBox(matrix, cell.box, made.next));
  std::vector<uint32_t> differ;
  const auto unit = static_cast<size_t>(matrix.unit_bytes);
  for (size_t i = 0; i * unit < made.next.size(); ++i) {
    if (!std::ranges::equal(made.base.subspan(i * unit, unit), made.next.subspan(i * unit, unit))) {
      differ.push_back(static_cast<uint32_t>(i));
    }
  }
  EXPECT_EQ(std::vector(made.changed.begin(), made.changed.end()), differ);
}

class ChainTest : public testing::Test {
 protected:
  Result<Chain> Load(const TestRun& run, const catalog::ReplayPlan& plan) {
    return Chain::Load(run.inventory(), plan,
                       [&](const catalog::Version& version) -> Result<Fetcher*> {
                         asked_.push_back(version.number);
                         return &fetcher_;
                       });
  }

  // `start`: the state that the chain begins with; not read if it starts full.
  Result<Replayed> Replay(const TestRun& run, const Chain& chain, const delta::State& start,
                          int64_t batch_bytes,
                          const std::function<bool(int32_t, int64_t)>& wanted = {},
                          int threads = 1) {
    const std::vector<ReplayBatch> batches = chain.Batches(batch_bytes, 1, wanted);
    std::vector<Chain::Scratch> scratch(static_cast<size_t>(threads));
    std::vector<std::vector<tensor::Partial>> gained(
        static_cast<size_t>(threads), std::vector<tensor::Partial>(run.inventory().size()));
    Replayed replayed{start, gained[0]};
    Mutex mu;
    WC_TRY(ParallelFor(batches.size(), threads, [&](size_t item, int worker) -> Status {
      const auto w = static_cast<size_t>(worker);
      return chain.Replay(
          batches[item], scratch[w],
          [&](const ReplayCell& cell) {
            return cell.run.Of(start[static_cast<size_t>(cell.tensor)]);
          },
          [&](const ReplayCell& cell, const ReplayedCell& made) {
            const auto t = static_cast<size_t>(cell.tensor);
            const tensor::Matrix matrix = run.inventory()[t].matrix();
            MutexLock lock(mu);
            EXPECT_EQ(made.base.empty(), chain.starts_full());
            if (!made.base.empty()) {
              EXPECT_EQ(Bytes(made.base.begin(), made.base.end()),
                        delta::PackBox(matrix, cell.box, start[t]));
            }
            ExpectTrueOf(matrix, cell, made);
            layout::ScatterBox(matrix, cell.box, made.next, tensor::Box::All(matrix),
                               replayed.state[t]);
            ++replayed.cells;
            return Ok();
          },
          &gained[w]);
    }));
    for (const auto& part : gained) {
      for (size_t t = 0; t < part.size(); ++t) replayed.gained[t] += part[t];
    }
    return replayed;
  }

  // Replays the plan, and expects the target's bytes and digests.
  void ExpectReplays(const TestRun& run, ReplayStart start_kind, size_t start, size_t target,
                     int64_t batch_bytes, int threads = 1) {
    const Result<Chain> chain = Load(run, run.Plan(start_kind, start, target));
    ASSERT_TRUE(chain.ok()) << chain.error().message;
    const bool full = start_kind == ReplayStart::kFull;
    ASSERT_EQ(chain->starts_full(), full);
    delta::State from = run.states()[start];
    if (full) {
      for (Bytes& bytes : from) std::ranges::fill(bytes, 0xcc);
    }
    const Result<Replayed> replayed = Replay(run, *chain, from, batch_bytes, {}, threads);
    ASSERT_TRUE(replayed.ok()) << replayed.error().message;
    const auto begin = run.Digests(start);
    const auto end = run.Digests(target);
    for (size_t t = 0; t < run.inventory().size(); ++t) {
      const TensorSpec& spec = run.inventory()[t];
      EXPECT_TRUE(replayed->state[t] == run.states()[target][t]) << spec.name;
      const auto digest = full ? replayed->gained[t].digest : begin[t] + replayed->gained[t].digest;
      EXPECT_EQ(digest, end[t]) << spec.name;
      EXPECT_EQ(replayed->gained[t].units, full ? spec.units() : 0) << spec.name;
    }
  }

  TestWorld world_;
  store::MemoryStore memory_{world_.clock};
  store::CountingStore counting_{memory_};
  StoreSource source_{counting_};
  Fetcher fetcher_{world_.world, {&source_}, {.parallel = 1}};
  std::vector<int64_t> asked_;
};

// Several cells by rows, by columns, a ragged last one; and all that is small or odd.
std::vector<TensorSpec> OddModel() {
  return {{"a.wide", DType::kU8, {2, (int64_t{1} << 20) + 5}},
          {"b.tall", DType::kBf16, {1030, 2048}},
          {"c.vector", DType::kF32, {5000}},
          {"d.scalar", DType::kF64, {}},
          {"e.empty", DType::kBf16, {0, 7}},
          {"f.bytes", DType::kF4, {6, 8}},
          {"g.bool", DType::kBool, {3, 5, 7}}};
}

TEST_F(ChainTest, ReplaysFromImageSeedAndFullVersionAlike) {
  TestRun run(OddModel(), &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 100), {.ranks = 3, .share = [](size_t) { return Share::kColumns; }});
  run.Publish(run.Changed(3, 100), {.kind = VersionKind::kFull});
  run.Publish(run.Changed(4, 100000), {.ranks = 1});
  run.Publish(run.Changed(5, 3),
              {.ranks = 4, .share = [](size_t t) { return Share(t % kShares); }});
  ExpectReplays(run, ReplayStart::kSeed, 0, 4, 64 * kKiB);
  ExpectReplays(run, ReplayStart::kImage, 1, 4, 8 * kMiB);
  ExpectReplays(run, ReplayStart::kFull, 2, 4, 1);
  ExpectReplays(run, ReplayStart::kFull, 2, 2, 8 * kMiB);
  ExpectReplays(run, ReplayStart::kImage, 2, 3, 8 * kMiB, 4);
  ExpectReplays(run, ReplayStart::kFull, 2, 4, 100 * kKiB, 4);
}

TEST_F(ChainTest, NoStepsOrNoChangesReplayNothing) {
  TestRun run(OddModel(), &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.states()[0], {.ranks = 3});
  for (const size_t target : {size_t{0}, size_t{1}}) {
    const Result<Chain> chain = Load(run, run.Plan(ReplayStart::kImage, 0, target));
    ASSERT_TRUE(chain.ok()) << chain.error().message;
    EXPECT_TRUE(chain->Batches(kMiB, 1).empty());
  }
}

TEST_F(ChainTest, AForksFirstVersionBringsNoObjectsAndNeedsNoStore) {
  TestRun run({{"w", DType::kBf16, {40, 50}}}, &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 10), {});
  run.AddSeed(run.states()[1]);
  run.Publish(run.Changed(3, 10), {});
  ExpectReplays(run, ReplayStart::kImage, 0, 3, kMiB);
  EXPECT_THAT(asked_, testing::ElementsAre(1, 3)) << "once for each version with objects";
}

TEST_F(ChainTest, CarriedTensorsComeWithAFullStartThoughAnOlderVersionWroteThem) {
  TestRun run(OddModel(), &memory_, {1, 3});
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 100), {.kind = VersionKind::kFull});
  run.Publish(run.Changed(3, 100), {.kind = VersionKind::kFull, .ranks = 3});
  run.Publish(run.Changed(4, 100), {});
  ExpectReplays(run, ReplayStart::kFull, 1, 3, kMiB);
  ExpectReplays(run, ReplayStart::kFull, 2, 3, kMiB);
  ExpectReplays(run, ReplayStart::kSeed, 0, 3, kMiB);
}

TEST_F(ChainTest, AFirstVersionMayBeFullWithoutABase) {
  TestRun run({{"w", DType::kBf16, {40, 50}}}, &memory_);
  run.Publish(run.RandomState(1), {.kind = VersionKind::kFull});
  run.Publish(run.Changed(2, 10), {});
  ExpectReplays(run, ReplayStart::kFull, 0, 1, kMiB);
}

TEST_F(ChainTest, ChunksSentRawByARankWithoutABaselineReplaceWhatLiesThere) {
  TestRun run(OddModel(), &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 100), {.kind = VersionKind::kFull});
  run.Publish(run.Changed(3, 100),
              {.ranks = 3, .share = [](size_t) { return Share::kColumns; }, .raw_ranks = {1}});
  run.Publish(run.Changed(4, 100), {.ranks = 1, .raw_ranks = {0}});
  ExpectReplays(run, ReplayStart::kSeed, 0, 3, kMiB);
  ExpectReplays(run, ReplayStart::kFull, 1, 3, kMiB);
  ExpectReplays(run, ReplayStart::kImage, 2, 3, kMiB);
}

TEST_F(ChainTest, BatchesHoldEveryCellOnceInOrderAndKeepTheirBound) {
  TestRun run(OddModel(), &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 50), {});
  const Result<Chain> chain = Load(run, run.Plan(ReplayStart::kSeed, 0, 1));
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  for (const int64_t most : {int64_t{1}, 40 * kKiB, kGiB}) {
    std::pair<int32_t, int64_t> last(-1, -1);
    int64_t total = 0;
    for (const ReplayBatch& batch : chain->Batches(most, 1)) {
      int64_t bytes = 0;
      ASSERT_FALSE(batch.cells.empty());
      for (const ReplayCell& cell : batch.cells) {
        EXPECT_LT(last, std::pair(cell.tensor, cell.cell));
        last = {cell.tensor, cell.cell};
        for (const ChainChunk& chunk : cell.chunks) bytes += chunk.chunk->payload_bytes;
      }
      EXPECT_EQ(batch.payload_bytes, bytes);
      EXPECT_TRUE(bytes <= most || batch.cells.size() == 1);
      total += bytes;
    }
    EXPECT_LT(total, chain->wire_bytes());
  }
  EXPECT_EQ(chain->Batches(kGiB, 1).size(), 1U);
}

TEST_F(ChainTest, ABatchIsOneReadAnObject) {
  TestRun run(
      {{"a", DType::kBf16, {600, 2048}}, {"b", DType::kU8, {100}}, {"c", DType::kU8, {100}}},
      &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 50), {.ranks = 3, .share = [](size_t) { return Share::kColumns; }});
  run.Publish(run.Changed(3, 50), {.ranks = 2});
  const Result<Chain> chain = Load(run, run.Plan(ReplayStart::kSeed, 0, 2));
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  EXPECT_EQ(counting_.counts().of(store::StoreCall::kGet), 5) << "one a footer";
  const Result<Replayed> replayed = Replay(run, *chain, run.states()[0], kGiB);
  ASSERT_TRUE(replayed.ok()) << replayed.error().message;
  EXPECT_EQ(counting_.counts().of(store::StoreCall::kGet), 10);
  EXPECT_EQ(counting_.counts().got_bytes, chain->wire_bytes()) << "headers and all";
}

TEST_F(ChainTest, OnlyWantedCellsAreReplayed) {
  TestRun run(OddModel(), &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 50), {.kind = VersionKind::kFull});
  run.Publish(run.Changed(3, 50), {.ranks = 3});
  for (const ReplayStart start : {ReplayStart::kFull, ReplayStart::kImage}) {
    const Result<Chain> chain = Load(run, run.Plan(start, 1, 2));
    ASSERT_TRUE(chain.ok()) << chain.error().message;
    const auto wanted = [](int32_t tensor, int64_t cell) { return tensor == 2 || cell % 2 == 1; };
    const Result<Replayed> replayed = Replay(run, *chain, run.states()[1], kGiB, wanted);
    ASSERT_TRUE(replayed.ok()) << replayed.error().message;
    EXPECT_GT(replayed->cells, 1);
    for (size_t t = 0; t < run.inventory().size(); ++t) {
      const tensor::Matrix matrix = run.inventory()[t].matrix();
      const layout::CellGrid grid = layout::CellGrid::For(matrix);
      for (int64_t cell = 0; cell < grid.cells(); ++cell) {
        const size_t from = wanted(static_cast<int32_t>(t), cell) ? 2 : 1;
        const tensor::Box box = grid.CellBox(cell);
        EXPECT_TRUE(delta::PackBox(matrix, box, replayed->state[t]) ==
                    delta::PackBox(matrix, box, run.states()[from][t]))
            << run.inventory()[t].name << " cell " << cell;
      }
    }
  }
}

TEST_F(ChainTest, EachVersionComesFromItsOwnStore) {
  TestRun run({{"w", DType::kBf16, {40, 50}}}, &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 10), {});
  run.Publish(run.Changed(3, 10), {});
  store::MemoryStore other(world_.clock, "other");
  for (const catalog::ObjectRef& ref : run.versions()[2].objects) {
    ASSERT_TRUE(other.Put(ref.key, memory_.GetAll(ref.key, kMiB).value()).ok());
    ASSERT_TRUE(memory_.Delete(ref.key).ok());
  }
  StoreSource other_source(other);
  Fetcher other_fetcher(world_.world, {&other_source}, {.parallel = 4});
  const Result<Chain> chain = Chain::Load(run.inventory(), run.Plan(ReplayStart::kSeed, 0, 2),
                                          [&](const catalog::Version& v) -> Result<Fetcher*> {
                                            return v.number == 2 ? &other_fetcher : &fetcher_;
                                          });
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  const Result<Replayed> replayed = Replay(run, *chain, run.states()[0], kGiB);
  ASSERT_TRUE(replayed.ok()) << replayed.error().message;
  EXPECT_TRUE(replayed->state == run.states()[2]);
}

TEST_F(ChainTest, ErrorsOfReaderSinkAndFetcherForEndIt) {
  TestRun run({{"w", DType::kBf16, {40, 50}}}, &memory_);
  run.AddSeed(run.RandomState(1));
  run.Publish(run.Changed(2, 10), {});
  const catalog::ReplayPlan plan = run.Plan(ReplayStart::kSeed, 0, 1);
  const Error error{Code::kResourceExhausted, "full"};
  EXPECT_EQ(Chain::Load(run.inventory(), plan,
                        [&](const catalog::Version&) -> Result<Fetcher*> { return error; })
                .error()
                .code,
            error.code);
  const Result<Chain> chain = Load(run, plan);
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  const ReplayBatch batch = chain->Batches(kMiB, 1).at(0);
  Chain::Scratch scratch;
  std::vector<tensor::Partial> gained(1);
  const auto fine_base = [&](const ReplayCell&) { return ByteSpan(run.states()[0][0]); };
  const auto no_base = [&](const ReplayCell&) -> Result<ByteSpan> { return error; };
  const auto fine_sink = [](const ReplayCell&, const ReplayedCell&) { return Ok(); };
  const auto no_sink = [&](const ReplayCell&, const ReplayedCell&) -> Status { return error; };
  EXPECT_TRUE(chain->Replay(batch, scratch, fine_base, fine_sink, &gained).ok());
  EXPECT_FALSE(chain->Replay(batch, scratch, no_base, fine_sink, &gained).ok());
  EXPECT_FALSE(chain->Replay(batch, scratch, fine_base, no_sink, &gained).ok());
}

TEST_F(ChainTest, RandomRunsReplayFromAnywhereToAnywhere) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 rng(seed);
    auto upto = [&](uint64_t n) { return rng() % (n + 1); };
    std::vector<TensorSpec> specs;
    for (uint64_t t = 0; t <= upto(5); ++t) {
      tensor::Shape shape;
      for (uint64_t d = upto(3); d > 0; --d) shape.push_back(static_cast<int64_t>(upto(40)));
      specs.push_back({"t" + std::to_string(t), DType(upto(16)), std::move(shape)});
    }
    if (seed % 5 == 0)
      specs.push_back({"u", DType::kBf16, {1025 + static_cast<int64_t>(upto(50)), 1024}});
    store::MemoryStore memory(world_.clock);
    StoreSource source(memory);
    TestRun run(specs, &memory);
    run.AddSeed(run.RandomState(seed));
    std::vector<size_t> starts = {0};
    for (uint64_t v = 1; v <= 1 + upto(4); ++v) {
      TestPublish how{.ranks = static_cast<int>(1 + upto(3)), .share = [shift = upto(3)](size_t t) {
                        return Share((t + shift) % kShares);
                      }};
      if (upto(2) == 0) how.kind = VersionKind::kFull;
      if (upto(3) == 0) how.raw_ranks = {0, 2};
      run.Publish(run.Changed(rng(), 1 + upto(200)), how);
    }
    Fetcher fetcher(world_.world, {&source}, {.parallel = static_cast<int>(1 + upto(3))});
    for (size_t start = 0; start < run.versions().size(); ++start) {
      const bool full = run.versions()[start].kind == VersionKind::kFull;
      const auto kind = full && upto(2) > 0 ? ReplayStart::kFull : ReplayStart::kImage;
      const size_t target = start + upto(run.versions().size() - 1 - start);
      const Result<Chain> chain =
          Chain::Load(run.inventory(), run.Plan(kind, start, target),
                      [&](const catalog::Version&) -> Result<Fetcher*> { return &fetcher; });
      ASSERT_TRUE(chain.ok()) << chain.error().message;
      delta::State from = run.states()[start];
      const Result<Replayed> replayed =
          Replay(run, *chain, from, static_cast<int64_t>(1 + upto(5000)), {},
                 1 + static_cast<int>(upto(2)));
      ASSERT_TRUE(replayed.ok()) << replayed.error().message;
      ASSERT_TRUE(replayed->state == run.states()[target]);
    }
  }
}

}  // namespace
}  // namespace weightcast::transfer
