// What a chain refuses: damage anywhere, parts that are not what the catalog names, chunks that do
// not fit together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layout/cells.h"
#include "store/wrappers.h"
#include "transfer/chain.h"
#include "transfer/testing.h"

namespace weightcast::transfer {
namespace {

using catalog::ObjectRole;
using catalog::ReplayStart;
using catalog::VersionKind;
using tensor::DType;
using testing::AllOf;
using testing::HasSubstr;

// Answers with one bit wrong, or as if the object ended early.
class DamagedSource final : public Source {
 public:
  explicit DamagedSource(store::Store& inner) : inner_(inner) {}
  std::string kind() const override { return "peer"; }
  std::string name() const override { return "peer 3"; }
  Status Read(std::string_view key, int64_t offset, MutableByteSpan out) override {
    WC_TRY(inner_.Get(key, offset, out));
    if (key != damaged_key || at < offset || at >= offset + static_cast<int64_t>(out.size())) {
      return Ok();
    }
    ++hits;
    if (cut) return Error{Code::kDataLoss, "ends at byte " + std::to_string(at)};
    out[static_cast<size_t>(at - offset)] ^= static_cast<uint8_t>(1 << (at % 8));
    return Ok();
  }

  std::string damaged_key;
  int64_t at = -1;
  bool cut = false;
  int hits = 0;

 private:
  store::Store& inner_;
};

// Three versions (seed, full, delta), two ranks, a carried tensor, a part without chunks.
class ChainFaultTest : public testing::Test {
 protected:
  ChainFaultTest() {
    run_.AddSeed(run_.RandomState(1));
    run_.Publish(run_.Changed(2, 9), {.kind = VersionKind::kFull});
    run_.Publish(run_.Changed(3, 9), {.ranks = 2, .share = [](size_t) { return Share::kColumns; }});
    run_.Publish(run_.states()[2], {.ranks = 1});
  }

  // All of a replay. `state`: what it begins with (if empty, what it should), then the result.
  Status Replay(Fetcher* fetcher, const TestRun& run, const catalog::ReplayPlan& plan,
                delta::State* state) {
    const Chain chain =
        WC_TRY(Chain::Load(run.inventory(), plan,
                           [&](const catalog::Version&) -> Result<Fetcher*> { return fetcher; }));
    if (state->empty()) *state = run.states()[static_cast<size_t>(plan.start_version.number)];
    if (chain.starts_full()) {
      for (Bytes& bytes : *state) std::ranges::fill(bytes, 0xcc);
    }
    Chain::Scratch scratch;
    std::vector<tensor::Partial> gained(run.inventory().size());
    for (const ReplayBatch& batch : chain.Batches(200, 1)) {
      WC_TRY(chain.Replay(
          batch, scratch,
          [&](const ReplayCell& cell) {
            return cell.run.Of((*state)[static_cast<size_t>(cell.tensor)]);
          },
          [&](const ReplayCell& cell, const ReplayedCell& made) {
            std::ranges::copy(made.next, (*state)[static_cast<size_t>(cell.tensor)].begin());
            return Ok();
          },
          &gained));
    }
    return Ok();
  }
  Status Replay(const TestRun& run, const catalog::ReplayPlan& plan) {
    StoreSource source(memory_);
    Fetcher fetcher(world_.world, {&source}, {.parallel = 1});
    delta::State state;
    return Replay(&fetcher, run, plan, &state);
  }
  // The error of a replay that must fail.
  Error Refusal(const TestRun& run, const catalog::ReplayPlan& plan) {
    const Status status = Replay(run, plan);
    EXPECT_FALSE(status.ok());
    return status.ok() ? Error{} : status.error();
  }

  std::vector<catalog::ObjectRef> ObjectsOf(const catalog::ReplayPlan& plan) const {
    std::vector<catalog::ObjectRef> refs;
    for (const catalog::ObjectRef& ref : plan.start_version.objects) {
      if (ref.role != ObjectRole::kDelta) refs.push_back(ref);
    }
    for (const catalog::Version& step : plan.steps) {
      for (const catalog::ObjectRef& ref : step.objects) {
        if (ref.role == ObjectRole::kDelta) refs.push_back(ref);
      }
    }
    return refs;
  }

  TestWorld world_;
  store::MemoryStore memory_{world_.clock};
  TestRun run_{{{"a", DType::kBf16, {6, 10}}, {"b", DType::kU8, {9}}, {"tower", DType::kF32, {5}}},
               &memory_,
               {2}};
};

TEST_F(ChainFaultTest, AnyFlippedOrCutByteIsFoundAndItsObjectAndSourceNamed) {
  const catalog::ReplayPlan plan = run_.Plan(ReplayStart::kFull, 1, 3);
  DamagedSource damaged(memory_);
  Fetcher fetcher(world_.world, {&damaged}, {.parallel = 1});
  int bytes = 0;
  for (const catalog::ObjectRef& ref : ObjectsOf(plan)) {
    damaged.damaged_key = ref.key;
    for (damaged.at = 0; damaged.at < ref.bytes; ++damaged.at) {
      for (const bool cut : {false, true}) {
        damaged.cut = cut;
        damaged.hits = 0;
        delta::State state;
        const Status status = Replay(&fetcher, run_, plan, &state);
        ASSERT_FALSE(status.ok()) << ref.key << " byte " << damaged.at;
        ASSERT_THAT(status.error().message, AllOf(HasSubstr(ref.key), HasSubstr("peer 3")));
        ASSERT_EQ(damaged.hits, 1) << "read once, then refused";
        ASSERT_EQ(status.error().code, Code::kDataLoss) << status.error().message;
        ++bytes;
      }
    }
  }
  EXPECT_GT(bytes, 2000);
}

TEST_F(ChainFaultTest, ADamagedPeerIsBypassedByteByByte) {
  const catalog::ReplayPlan plan = run_.Plan(ReplayStart::kFull, 1, 3);
  DamagedSource peer(memory_);
  StoreSource store(memory_);
  for (const catalog::ObjectRef& ref : ObjectsOf(plan)) {
    peer.damaged_key = ref.key;
    for (peer.at = 0; peer.at < ref.bytes; peer.at += 7) {
      Fetcher fetcher(world_.world, {&peer, &store}, {.parallel = 1});
      delta::State state;
      const Status status = Replay(&fetcher, run_, plan, &state);
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_TRUE(state == run_.states()[3]);
      const auto bytes = fetcher.bytes_by_kind();
      ASSERT_GT(bytes.at("store"), 0);
      ASSERT_GT(bytes.at("peer"), bytes.at("store"));
    }
  }
}

TEST_F(ChainFaultTest, AMissingObjectIsUnavailableByName) {
  const catalog::ReplayPlan plan = run_.Plan(ReplayStart::kSeed, 0, 2);
  ASSERT_TRUE(memory_.Delete("v2/delta-1").ok());
  const Error error = Refusal(run_, plan);
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("v2/delta-1"));
}

TEST_F(ChainFaultTest, AWrongBaseIsFoundBeforeItIsUsed) {
  catalog::ReplayPlan plan = run_.Plan(ReplayStart::kImage, 1, 2);
  StoreSource source(memory_);
  Fetcher fetcher(world_.world, {&source}, {.parallel = 1});
  delta::State state = run_.states()[1];
  state[0][3] ^= 1;  // one bit of the image's tensor "a"
  const Status status = Replay(&fetcher, run_, plan, &state);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kDataLoss);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("version 2"), HasSubstr("v2/delta-"),
                                            HasSubstr("a "), HasSubstr("base")));
}

// ---- parts that are not what the catalog names (X2 of the field reports, and more) ----

struct ForgedCase {
  const char* field;
  std::function<void(delta::PartIdentity*)> forge;
};
class ForgedPartTest : public ChainFaultTest, public testing::WithParamInterface<ForgedCase> {};

TEST_P(ForgedPartTest, IsRefusedByTheFieldThatDiffers) {
  for (const ObjectRole forged : {ObjectRole::kDelta, ObjectRole::kFull}) {
    const bool delta = forged == ObjectRole::kDelta;
    if (std::string(GetParam().field) == "base is" && !delta) continue;
    store::MemoryStore memory(world_.clock);
    StoreSource source(memory);
    Fetcher fetcher(world_.world, {&source}, {.parallel = 1});
    TestRun run({{"a", DType::kBf16, {6, 10}}}, &memory);
    run.AddSeed(run.RandomState(1));
    TestPublish how{.kind = VersionKind::kFull};
    how.forge = [&](delta::PartIdentity* identity, ObjectRole role) {
      if (role == forged && identity->rank.value == 1) GetParam().forge(identity);
    };
    run.Publish(run.Changed(2, 5), how);
    const catalog::ReplayPlan plan =
        delta ? run.Plan(ReplayStart::kSeed, 0, 1) : run.Plan(ReplayStart::kFull, 1, 1);
    delta::State state;
    const Status status = Replay(&fetcher, run, plan, &state);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr("version 1"), HasSubstr(delta ? "v1/delta-1" : "v1/full-1"),
                      HasSubstr(GetParam().field)));
    const bool layout = std::string(GetParam().field) == "layout signature";
    EXPECT_EQ(status.error().code, layout ? Code::kInvalidData : Code::kDataLoss);
  }
}
INSTANTIATE_TEST_SUITE_P(
    , ForgedPartTest,
    testing::Values(
        ForgedCase{"run is", [](auto* identity) { identity->run.value[0] ^= 1; }},
        ForgedCase{"version is", [](auto* identity) { identity->version.value[0] ^= 1; }},
        ForgedCase{"base is", [](auto* identity) { identity->base.value[0] ^= 1; }},
        ForgedCase{"epoch is 4, expected 3", [](auto* identity) { ++identity->epoch.value; }},
        ForgedCase{"plan is", [](auto* identity) { identity->plan.value[31] ^= 1; }},
        ForgedCase{"layout signature", [](auto* identity) { identity->layout.value[0] ^= 1; }}),
    [](const auto& test) {
      return std::string(test.param.field).substr(0, test.param.field[0] == 'l' ? 6 : 3);
    });

TEST_F(ChainFaultTest, APartOfTheOtherKindIsRefused) {
  catalog::ReplayPlan full = run_.Plan(ReplayStart::kFull, 1, 1);
  for (catalog::ObjectRef& ref : full.start_version.objects) {
    if (ref.role == ObjectRole::kDelta) ref.role = ObjectRole::kFull;
  }
  EXPECT_THAT(Refusal(run_, full).message, HasSubstr("kind is delta, expected full"));
  catalog::ReplayPlan delta = run_.Plan(ReplayStart::kSeed, 0, 1);
  for (catalog::ObjectRef& ref : delta.steps[0].objects) {
    if (ref.role == ObjectRole::kFull) ref.role = ObjectRole::kDelta;
  }
  EXPECT_THAT(Refusal(run_, delta).message, HasSubstr("kind is full, expected delta"));
}

TEST_F(ChainFaultTest, AllFieldsThatDifferAreNamedAtOnce) {
  catalog::ReplayPlan plan = run_.Plan(ReplayStart::kSeed, 0, 1);
  plan.steps[0].epoch.value = 9;
  plan.steps[0].run.value[0] ^= 1;
  EXPECT_THAT(Refusal(run_, plan).message,
              AllOf(HasSubstr("run is"), HasSubstr("epoch is 3, expected 9")));
}

// ---- a catalog row that is wrong ----

TEST_F(ChainFaultTest, FooterSizesOfARowAreBoundedBeforeAnythingIsAllocated) {
  for (const int64_t footer : {int64_t{0}, int64_t{-1}, int64_t{23}, int64_t{1} << 40, INT64_MAX}) {
    for (const int64_t bytes : {int64_t{100}, int64_t{-1}, int64_t{1} << 41, INT64_MIN}) {
      catalog::ReplayPlan plan = run_.Plan(ReplayStart::kSeed, 0, 1);
      plan.steps[0].objects[0].footer_bytes = footer;
      plan.steps[0].objects[0].bytes = bytes;
      const Error error = Refusal(run_, plan);
      EXPECT_EQ(error.code, Code::kInvalidData) << footer << " of " << bytes;
      EXPECT_THAT(error.message, HasSubstr("v1/delta-0"));
    }
  }
}

TEST_F(ChainFaultTest, ARowWithAnotherSizeOrHashIsRefused) {
  const auto edits = std::to_array<std::function<void(catalog::ObjectRef*)>>(
      {[](auto* ref) { ++ref->bytes; }, [](auto* ref) { --ref->bytes; },
       [](auto* ref) { ++ref->footer_bytes; }, [](auto* ref) { --ref->footer_bytes; },
       [](auto* ref) { ref->footer_sha256.value[7] ^= 4; }, [](auto* ref) { ref->key += "x"; }});
  for (const auto& edit : edits) {
    catalog::ReplayPlan plan = run_.Plan(ReplayStart::kSeed, 0, 1);
    edit(&plan.steps[0].objects[0]);
    EXPECT_THAT(Refusal(run_, plan).message, HasSubstr("v1/delta-0"));
  }
}

TEST_F(ChainFaultTest, VersionsThatDoNotFollowEachOtherAreRefused) {
  catalog::ReplayPlan skipped = run_.Plan(ReplayStart::kSeed, 0, 2);
  skipped.steps.erase(skipped.steps.begin());
  const Error error = Refusal(run_, skipped);
  EXPECT_EQ(error.code, Code::kInvalidData);
  EXPECT_THAT(error.message, AllOf(HasSubstr("version 2"), HasSubstr("version 0")));

  catalog::ReplayPlan no_full = run_.Plan(ReplayStart::kFull, 2, 2);
  EXPECT_THAT(Refusal(run_, no_full).message, HasSubstr("no full version"));
}

// ---- chunks that do not fit together ----

struct MisfitCase {
  const char* name;
  ObjectRole role;
  std::function<void(std::vector<delta::Piece>*, int rank)> edit;
  const char* message;
};
class MisfitTest : public ChainFaultTest, public testing::WithParamInterface<MisfitCase> {};

TEST_P(MisfitTest, IsRefusedByTensorAndCell) {
  store::MemoryStore memory(world_.clock);
  StoreSource source(memory);
  Fetcher fetcher(world_.world, {&source}, {.parallel = 1});
  TestRun run({{"a", DType::kBf16, {6, 10}}, {"big", DType::kU8, {2, int64_t{1} << 20}}}, &memory);
  run.AddSeed(run.RandomState(1));
  TestPublish how{.kind = VersionKind::kFull};
  how.edit = [&](std::vector<delta::Piece>* pieces, int rank, ObjectRole role) {
    if (role == GetParam().role) GetParam().edit(pieces, rank);
  };
  run.Publish(run.Changed(2, 3), how);
  const bool delta = GetParam().role == ObjectRole::kDelta;
  delta::State state;
  const Status status = Replay(
      &fetcher, run,
      delta ? run.Plan(ReplayStart::kSeed, 0, 1) : run.Plan(ReplayStart::kFull, 1, 1), &state);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInvalidData);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("version 1"), HasSubstr(GetParam().message)));
}
// With rows shared, rank 0 has pieces a [0, 3) and big's first row, rank 1 the others.
INSTANTIATE_TEST_SUITE_P(, MisfitTest,
                         testing::Values(MisfitCase{"DeltaOverlaps", ObjectRole::kDelta,
                                                    [](auto* pieces, int rank) {
                                                      if (rank == 1) --pieces->at(0).box.row;
                                                    },
                                                    "a cell 0"},
                                         MisfitCase{"FullOverlaps", ObjectRole::kFull,
                                                    [](auto* pieces, int rank) {
                                                      if (rank == 1) --pieces->at(0).box.row;
                                                    },
                                                    "doubly covered by v1/full-0 and v1/full-1"},
                                         MisfitCase{"FullTwice", ObjectRole::kFull,
                                                    [](auto* pieces, int rank) {
                                                      if (rank == 1)
                                                        pieces->at(0).box = {0, 6, 1, 0, 10, 1};
                                                    },
                                                    "a cell 0"},
                                         MisfitCase{"FullHasAHole", ObjectRole::kFull,
                                                    [](auto* pieces, int rank) {
                                                      if (rank == 0) --pieces->at(0).box.cols;
                                                    },
                                                    "57 of 60 units"},
                                         MisfitCase{"FullLacksACell", ObjectRole::kFull,
                                                    [](auto* pieces, int rank) {
                                                      if (rank == 1) pieces->pop_back();
                                                    },
                                                    "big: 1 of 2 cells are missing"},
                                         MisfitCase{"FullIsEmpty", ObjectRole::kFull,
                                                    [](auto* pieces, int) { pieces->clear(); },
                                                    "a: 1 of 1 cells are missing"}),
                         [](const auto& test) { return test.param.name; });

TEST_F(ChainFaultTest, ACellThatOnlyALaterVersionHasIsMissingInAFullStart) {
  store::MemoryStore memory(world_.clock);
  StoreSource source(memory);
  Fetcher fetcher(world_.world, {&source}, {.parallel = 1});
  TestRun run({{"a", DType::kBf16, {6, 10}}, {"b", DType::kU8, {9}}}, &memory);
  TestPublish how{.kind = VersionKind::kFull, .ranks = 1};
  how.edit = [](std::vector<delta::Piece>* pieces, int, ObjectRole) { pieces->pop_back(); };
  run.Publish(run.RandomState(1), how);
  run.Publish(run.Changed(2, 3), {});
  delta::State state;
  const Status status = Replay(&fetcher, run, run.Plan(ReplayStart::kFull, 0, 1), &state);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInvalidData);
  EXPECT_THAT(status.error().message, HasSubstr("b cell 0"));
}

// ---- stores that fail now and then ----

TEST_F(ChainFaultTest, ReplaysOverAStoreThatFailsCutsAndDelays) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    store::FaultPlan faults;
    faults.seed = seed;
    faults.per_mille[static_cast<size_t>(store::Fault::kFailBefore)] = 100;
    faults.per_mille[static_cast<size_t>(store::Fault::kCut)] = 100;
    faults.per_mille[static_cast<size_t>(store::Fault::kDelay)] = 100;
    store::FaultyStore faulty(memory_, world_.clock, faults);
    StoreSource source(faulty);
    Fetcher fetcher(world_.world, {&source},
                    {.parallel = seed % 2 == 0 ? 1 : 4, .attempts_per_source = 20});
    delta::State state;
    const Status status = Replay(&fetcher, run_, run_.Plan(ReplayStart::kFull, 1, 3), &state);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.error().message;
    ASSERT_TRUE(state == run_.states()[3]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weightcast::transfer
