#include "trainer/publisher.h"

#include <gmock/gmock.h>

#include "os/crash_script.h"
#include "os/sim.h"
#include "store/directory_store.h"
#include "store/memory_store.h"
#include "store/wrappers.h"
#include "trainer/testing.h"
#include "transfer/chain.h"

namespace weightcast::trainer {
namespace {

using catalog::VersionKind;
using catalog::VersionState;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What a reader gets that replays from the seed (or from a full version, without it).
Result<Weights> ReadVersion(os::World& world, catalog::Catalog& catalog, store::Store& store,
                            const catalog::Run& run, const std::string& version,
                            const Weights& seed, bool with_seed = true) {
  const tensor::Inventory& inventory = *run.inventory;
  const catalog::Version target = WC_TRY(catalog.FindVersion(run.uid, version));
  catalog::ReplayRequest request{.target = target.uid, .have = {}, .holder = "test"};
  if (with_seed) request.seed = tensor::ComputeRoot(inventory, DigestsOf(seed));
  const catalog::ReplayPlan plan = WC_TRY(catalog.PlanReplay(request));
  transfer::StoreSource source(store);
  transfer::Fetcher fetcher(world, {&source});
  const transfer::Chain chain = WC_TRY(transfer::Chain::Load(
      inventory, plan,
      [&](const catalog::Version&) -> Result<transfer::Fetcher*> { return &fetcher; }));
  Weights out = seed;
  if (chain.starts_full()) {
    for (Bytes& bytes : out) std::ranges::fill(bytes, uint8_t{0xEE});
  }
  transfer::Chain::Scratch scratch;
  std::vector<tensor::Partial> gained(inventory.size());
  for (const transfer::ReplayBatch& batch : chain.Batches(kMiB, 1)) {
    WC_TRY(chain.Replay(
        batch, scratch,
        [&](const transfer::ReplayCell& cell) {
          return cell.run.Of(out[static_cast<size_t>(cell.tensor)]);
        },
        [&](const transfer::ReplayCell& cell, const transfer::ReplayedCell& made) -> Status {
          const auto t = static_cast<size_t>(cell.tensor);
          const tensor::Matrix m = inventory[t].matrix();
          layout::ScatterBox(m, cell.box, made.next, layout::Box::All(m), out[t]);
          return Ok();
        },
        &gained));
  }
  return out;
}

// A machine, a catalog and a store, with v0 registered from a seed.
class PublisherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WC_CHECK(WriteCheckpoint(world().fs, "/seed", *inventory_, weights_[0]).ok());
    seed_ = tensor::HfDirectory::Open(world().fs, "/seed").value();
    const RegisteredSeed seed =
        RegisterSeed(
            world(), *catalog_, store_, *seed_,
            {.run_name = "policy", .carried = {"carried.tower"}, .threads = 1, .progress = {}})
            .value();
    run_ = seed.run;
    EXPECT_EQ(seed.version.root, RootOf(weights_[0]));
  }

  os::World& world() { return machine_.world(); }
  Root RootOf(const Weights& weights) {
    return tensor::ComputeRoot(*inventory_, DigestsOf(weights));
  }
  SmallJob Job(int32_t ranks, const std::string& token) {
    SmallJob job(world(), *catalog_, store_, run_, ranks, "/baselines");
    job.seed = &*seed_;
    EXPECT_TRUE(job.Open(token).ok());
    return job;
  }
  const Weights& WeightsAt(size_t step) {
    while (weights_.size() <= step) {
      weights_.push_back(Moved(*inventory_, weights_.back(), weights_.size()));
    }
    return weights_[step];
  }

  Weights Read(const std::string& version, bool with_seed = true) {
    const auto read =
        ReadVersion(world(), *catalog_, store_, run_, version, weights_[0], with_seed);
    EXPECT_TRUE(read.ok()) << read.error().message;
    return read.ok() ? *read : Weights();
  }

  int64_t now_ = 1'000'000;
  os::SimMachine machine_;
  std::shared_ptr<const tensor::Inventory> inventory_ = SmallInventory();
  std::vector<Weights> weights_{RandomWeights(*inventory_, 1)};
  store::MemoryStore store_{machine_.world().clock};
  std::unique_ptr<catalog::Catalog> catalog_ = catalog::NewMemoryCatalog([this] { return now_; });
  std::optional<tensor::HfDirectory> seed_;
  catalog::Run run_;
};

#define EXPECT_READY(version, weights)                  \
  do {                                                  \
    const auto& ready_ = (version);                     \
    ASSERT_TRUE(ready_.ok()) << ready_.error().message; \
    EXPECT_EQ(ready_->state, VersionState::kReady);     \
    EXPECT_EQ(ready_->root, RootOf(weights));           \
  } while (false)

// P3: every publish finds the shards newly allocated, elsewhere in memory.
TEST_F(PublisherTest, DeltasAndFullVersionsGiveExactlyTheTrainersWeights) {
  SmallJob job = Job(3, "job");
  for (size_t n = 1; n <= 5; ++n) {
    const bool full = n == 3;
    const auto version = job.Publish(static_cast<int64_t>(n), WeightsAt(n), full);
    EXPECT_READY(version, WeightsAt(n));
    EXPECT_EQ(version->kind, full ? VersionKind::kFull : VersionKind::kDelta);
    EXPECT_EQ(Read(std::to_string(n)), WeightsAt(n));
  }
  EXPECT_EQ(Read("3", /*with_seed=*/false), WeightsAt(3));
  EXPECT_EQ(Read("5", /*with_seed=*/false), WeightsAt(5));
}

// M4: more ranks than rows, so that some shards have no element and some ranks own nothing.
TEST_F(PublisherTest, M4_ShardsWithoutElementsArePublished) {
  SmallJob job = Job(30, "job");
  const std::vector<int32_t> participants = Participants(job.plan());
  ASSERT_LT(participants.size(), 30U);
  Result<catalog::Version> version = Error{Code::kInternal, "nobody published"};
  for (const int32_t rank : participants) {
    const auto report = job.PublishOne(rank, 1, WeightsAt(1), /*full=*/true);
    ASSERT_TRUE(report.ok()) << report.error().message;
    version = report->version;
  }
  EXPECT_READY(version, WeightsAt(1));
  EXPECT_EQ(Read("1", /*with_seed=*/false), WeightsAt(1));
}

TEST_F(PublisherTest, AVersionWithoutAnyChangeIsPublished) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(0)), WeightsAt(0));
  EXPECT_EQ(Read("1"), WeightsAt(0));
  EXPECT_EQ(catalog_->FindVersion(run_.uid, "1")->stats.changed_elements, 0);
}

TEST_F(PublisherTest, ARunGoesOnExactlyWhenTheLayoutChanges) {
  EXPECT_READY(Job(1, "one").Publish(1, WeightsAt(1)), WeightsAt(1));
  EXPECT_READY(Job(3, "three").Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_READY(Job(2, "two").Publish(3, WeightsAt(3), /*full=*/true), WeightsAt(3));
  EXPECT_READY(Job(3, "three again").Publish(4, WeightsAt(4)), WeightsAt(4));
  EXPECT_EQ(Read("4"), WeightsAt(4));
}

TEST_F(PublisherTest, ALostBaselineIsRebuilt) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  ASSERT_TRUE(world().fs.RemoveTree(job.BaselineOf(0)).ok());
  ASSERT_TRUE(world().fs.RemoveTree(job.BaselineOf(1)).ok());
  const auto first = job.PublishOne(0, 2, WeightsAt(2));
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_TRUE(first->baseline_rebuilt);
  EXPECT_FALSE(first->raw);
  EXPECT_READY(job.Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_EQ(Read("2"), WeightsAt(2));
}

// X1: the first delta must start from the exact bytes that engines loaded.
TEST_F(PublisherTest, X1_ARottenBaselineIsFoundAndRebuilt) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  ASSERT_TRUE(job.PublishOne(0, 1, WeightsAt(1)).ok());  // sees READY: its baseline advances
  {
    const auto bytes =
        world().fs.OpenFile(job.BaselineOf(0) + "/bytes", os::Open::kReadWrite).value();
    ASSERT_TRUE(bytes->Write(20, Bytes{0x5a, 0xa5}).ok());
  }
  const auto report = job.PublishOne(0, 2, WeightsAt(2));
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->baseline_rebuilt);
  EXPECT_READY(job.Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_EQ(Read("2"), WeightsAt(2));
}

TEST_F(PublisherTest, WithoutSeedAndFullVersionALostBaselineGoesRaw) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  ASSERT_TRUE(world().fs.RemoveTree(job.BaselineOf(0)).ok());
  job.seed = nullptr;
  const auto report = job.PublishOne(0, 2, WeightsAt(2));
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->raw);
  EXPECT_READY(job.Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_EQ(Read("2"), WeightsAt(2));
  EXPECT_READY(job.Publish(3, WeightsAt(3)), WeightsAt(3));
  EXPECT_EQ(Read("3"), WeightsAt(3));
}

TEST_F(PublisherTest, AWrongBaselineIsCaughtByTheBasePartialsAndTheRetrySucceeds) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  ASSERT_TRUE(job.PublishOne(0, 1, WeightsAt(1)).ok());
  {
    // Consistent in itself, but not what was published: other bytes, with the hash of those bytes.
    const RankId rank{0};
    const layout::ChunkList chunks = SmallChunks(job.plan(), rank);
    const std::string identity = run_.uid.hex() + job.plan().Hash().hex() + "0";
    Baseline baseline = Baseline::Open(world(), job.BaselineOf(0), identity, chunks).value();
    std::map<int32_t, tensor::Partial> sums;
    for (const layout::Chunk& chunk : chunks.chunks) {
      const tensor::Matrix m = (*inventory_)[static_cast<size_t>(chunk.tensor)].matrix();
      Bytes other(static_cast<size_t>(chunk.box.units() * m.unit_bytes), uint8_t{7});
      baseline.Write(chunk.at, other);
      sums[chunk.tensor] += {tensor::DigestBox(m, chunk.box, other), chunk.box.units()};
    }
    const std::vector<std::pair<int32_t, tensor::Partial>> sorted(sums.begin(), sums.end());
    ASSERT_TRUE(baseline.SetVersion(baseline.version(), PartialsHash(sorted)).ok());
  }
  ASSERT_TRUE(job.PublishOne(0, 2, WeightsAt(2)).ok());
  const auto last = job.PublishOne(1, 2, WeightsAt(2));
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.error().code, Code::kDataLoss);
  EXPECT_THAT(last.error().message, HasSubstr("model.rows"));
  EXPECT_FALSE(catalog_->FindVersion(run_.uid, "2").ok());

  EXPECT_READY(job.Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_EQ(Read("2"), WeightsAt(2));
}

// V3 and acceptance 4: two attempts at one number never mix.
TEST_F(PublisherTest, V3_AfterAPartialAnnounceTheNewEpochsWeightsAreTheVersion) {
  SmallJob old_job = Job(2, "first life");
  const auto part = old_job.PublishOne(0, 1, WeightsAt(1));
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->version.state, VersionState::kStaging);

  const Weights other = Moved(*inventory_, WeightsAt(0), 77);
  SmallJob new_job = Job(2, "second life");
  EXPECT_EQ(catalog_->GetVersion(part->version.uid)->state, VersionState::kFailed);
  EXPECT_READY(new_job.Publish(1, other), other);
  EXPECT_EQ(Read("1"), other);

  const auto zombie = old_job.PublishOne(1, 1, WeightsAt(1));
  ASSERT_FALSE(zombie.ok());
  EXPECT_EQ(zombie.error().code, Code::kConflict);
}

TEST_F(PublisherTest, ARepeatedPublishAnswersReadyAndOtherContentIsAConflict) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  const auto again = job.PublishOne(1, 1, WeightsAt(1));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->already);
  EXPECT_EQ(again->version.state, VersionState::kReady);
  const auto other = job.PublishOne(1, 1, WeightsAt(2));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Code::kConflict);
}

TEST_F(PublisherTest, AFullVersionNeedsTheCarriedTensorsOnceAndSaysWhere) {
  SmallJob job = Job(2, "job");
  job.seed = nullptr;
  const auto without = job.PublishOne(0, 1, WeightsAt(1), /*full=*/true);
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().code, Code::kUnavailable);
  EXPECT_THAT(without.error().message, HasSubstr("--seed"));

  job.seed = &*seed_;
  EXPECT_READY(job.Publish(1, WeightsAt(1), true), WeightsAt(1));
  job.seed = nullptr;
  EXPECT_READY(job.Publish(2, WeightsAt(2), true), WeightsAt(2));
  EXPECT_EQ(Read("2", /*with_seed=*/false), WeightsAt(2));
}

TEST_F(PublisherTest, VersionJsonIsThereWhenPublishSaysReady) {
  SmallJob job = Job(2, "job");
  const auto version = job.Publish(1, WeightsAt(1));
  EXPECT_READY(version, WeightsAt(1));
  const auto text = store_.GetAll(catalog::VersionJsonKey(run_.uid, version->uid), kMiB);
  ASSERT_TRUE(text.ok());
  const auto document = catalog::ParseVersionJson(AsText(*text));
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(document->version.root, RootOf(WeightsAt(1)));
}

TEST_F(PublisherTest, AnyFailingPutIsRetriedWithoutHarm) {
  for (int64_t put = 0; put < 6; ++put) {
    for (const store::Fault fault : {store::Fault::kFailBefore, store::Fault::kFailAfter}) {
      SCOPED_TRACE("put " + std::to_string(put));
      store::FaultyStore faulty(
          store_, world().clock,
          {.faults = {{.call = store::StoreCall::kPut, .ordinal = put, .fault = fault}}});
      SmallJob job(world(), *catalog_, faulty, run_, 2, "/baselines");
      job.seed = &*seed_;
      ASSERT_TRUE(
          job.Open("job" + std::to_string(put) + std::to_string(static_cast<int>(fault))).ok());
      const size_t n = weights_.size();
      const Weights& next = WeightsAt(n);
      const auto number = static_cast<int64_t>(n);
      Result<catalog::Version> version = job.Publish(number, next);
      for (int attempt = 0; attempt < 4 && !version.ok(); ++attempt) {
        version = job.Publish(number, next);
      }
      EXPECT_READY(version, next);
    }
  }
  EXPECT_EQ(Read("latest"), weights_.back());
}

// Version 2 is published on a machine that may die; the catalog is elsewhere and lives.
class CrashingPublisher {
 public:
  os::CrashScript Script() {
    os::CrashScript script;
    script.prepare = [this](os::World& world) { Prepare(world); };
    script.act = [this](os::World& world) { return Publish(world, 2, next_).ok(); };
    script.verify = [this](os::World& world, bool done) { return Verify(world, done); };
    return script;
  }

 private:
  Result<catalog::Version> Publish(os::World& world, int64_t number, const Weights& weights) {
    const auto store = WC_TRY(store::DirectoryStore::Open(world, "/store"));
    const tensor::HfDirectory seed = WC_TRY(tensor::HfDirectory::Open(world.fs, "/seed"));
    SmallJob job(world, *catalog_, *store, run_, 2, "/baselines");
    job.seed = &seed;
    WC_TRY(job.Open("life"));
    const auto version = job.Publish(number, weights);
    rebuilt_ += job.rebuilt;
    return version;
  }

  void Prepare(os::World& world) {
    catalog_ = catalog::NewMemoryCatalog([] { return int64_t{1'000'000}; });
    WC_CHECK(WriteCheckpoint(world.fs, "/seed", *inventory_, base_).ok());
    const auto store = store::DirectoryStore::Open(world, "/store").value();
    const tensor::HfDirectory seed = tensor::HfDirectory::Open(world.fs, "/seed").value();
    run_ = RegisterSeed(
               world, *catalog_, *store, seed,
               {.run_name = "policy", .carried = {"carried.tower"}, .threads = 1, .progress = {}})
               .value()
               .run;
    WC_CHECK(Publish(world, 1, first_).ok());
    rebuilt_ = 0;
    boot_ = world.boot_id;
  }

  std::string Verify(os::World& world, bool done) {
    if (done && !catalog_->FindVersion(run_.uid, "2").ok()) return "published, but not READY";
    const Result<catalog::Version> version = Publish(world, 2, next_);
    if (!version.ok()) return "the retry fails: " + version.error().message;
    if (version->root != RootOf(next_)) return "another root";
    const auto store = store::DirectoryStore::Open(world, "/store").value();
    const auto read = ReadVersion(world, *catalog_, *store, run_, "2", base_);
    if (!read.ok()) return "READY, but it cannot be read: " + read.error().message;
    if (*read != next_) return "READY, but other weights are read";
    const auto json = store->GetAll(catalog::VersionJsonKey(version->run, version->uid), kMiB);
    if (!json.ok()) return json.error().message;
    const auto document = catalog::ParseVersionJson(AsText(*json));
    if (!document.ok()) return document.error().message;
    const Result<catalog::Version> third = Publish(world, 3, after_);
    if (!third.ok()) return "the next version fails: " + third.error().message;
    if (third->root != RootOf(after_)) return "the next root is wrong";
    // Only a restart of the host costs a baseline.
    if (world.boot_id == boot_ && rebuilt_ > 0) return "a baseline was lost";
    return "";
  }

  Root RootOf(const Weights& weights) {
    return tensor::ComputeRoot(*inventory_, DigestsOf(weights));
  }

  const std::shared_ptr<const tensor::Inventory> inventory_ = SmallInventory();
  const Weights base_ = RandomWeights(*inventory_, 1);
  const Weights first_ = Moved(*inventory_, base_, 2);
  const Weights next_ = Moved(*inventory_, first_, 3);
  const Weights after_ = Moved(*inventory_, next_, 4);
  std::unique_ptr<catalog::Catalog> catalog_;
  catalog::Run run_;
  std::string boot_;
  int rebuilt_ = 0;
};

TEST(PublisherCrashTest, AnyDeathLeavesARetryThatPublishesExactly) {
  CrashingPublisher publisher;
  EXPECT_EQ(os::RunCrashScript(publisher.Script(), {.seeds = 2}), "");
}

// Directories are synced by the store, whose own test proves each of them needed: here most were
// durable before.
TEST(PublisherCrashTest, EverySyncAndRenameIsNeeded) {
  CrashingPublisher publisher;
  EXPECT_THAT(os::NeedlessCalls(publisher.Script(), {"Sync", "Rename"}, {.seeds = 4}), IsEmpty());
}

TEST_F(PublisherTest, AFullOrReadOnlyDiskIsAnErrorAndHarmsNothing) {
  SmallJob job = Job(2, "job");
  EXPECT_READY(job.Publish(1, WeightsAt(1)), WeightsAt(1));
  for (int64_t free = 0;; free += 256) {
    machine_.SetFreeBytes(free);
    const auto report = job.PublishOne(0, 2, WeightsAt(2));
    machine_.SetFreeBytes(-1);
    if (report.ok()) break;
    ASSERT_EQ(report.error().code, Code::kResourceExhausted) << report.error().message;
    ASSERT_LT(free, kMiB);
  }
  machine_.SetReadOnly(true);
  const auto refused = job.PublishOne(1, 2, WeightsAt(2));
  machine_.SetReadOnly(false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ExitCode(refused.error().code), 5) << refused.error().message;
  EXPECT_READY(job.Publish(2, WeightsAt(2)), WeightsAt(2));
  EXPECT_EQ(Read("2"), WeightsAt(2));
}

}  // namespace
}  // namespace weightcast::trainer
