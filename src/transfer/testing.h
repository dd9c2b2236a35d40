// For tests of this floor and of those above it: a clock that sleeping moves, and runs whose
// versions several ranks publish into a store in memory.
#pragma once

#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "delta/testing.h"
#include "layout/cells.h"
#include "os/world.h"
#include "store/memory_store.h"
#include "tensor/testing.h"

namespace weightcast::transfer {

// Time passes by sleeping only, so that back-off costs nothing.
class FakeClock final : public os::Clock {
 public:
  SteadyTime Now() override { return SteadyTime(Duration(now_.load())); }
  int64_t UnixMillis() override { return 0; }
  void SleepFor(Duration d) override {
    now_ += d.count();
    ++sleeps;
  }
  std::atomic<int> sleeps{0};

 private:
  std::atomic<int64_t> now_{0};
};

class SeededRandom final : public os::Random {
 public:
  void Fill(MutableByteSpan out) override {
    for (uint8_t& byte : out) byte = static_cast<uint8_t>(rng_());
  }

 private:
  std::mt19937 rng_{7};
};

struct TestWorld {
  FakeClock clock;
  SeededRandom random;
  os::World world{os::RealWorld().fs, clock, random, "boot"};
};

// How the ranks of a trainer share one tensor.
enum class Share : uint8_t { kOneOwner, kRows, kColumns, kInterleavedColumns };
inline constexpr int kShares = 4;

// The part of a matrix that a rank owns; empty if none.
inline tensor::Box ShareOf(const tensor::Matrix& m, Share share, int64_t rank, int64_t ranks) {
  tensor::Box box = tensor::Box::All(m);
  switch (share) {
    case Share::kOneOwner:
      if (rank != m.rows % ranks) box.rows = 0;
      break;
    case Share::kRows:
      box.row = m.rows * rank / ranks;
      box.rows = m.rows * (rank + 1) / ranks - box.row;
      break;
    case Share::kColumns:
      box.col = m.cols * rank / ranks;
      box.cols = m.cols * (rank + 1) / ranks - box.col;
      break;
    case Share::kInterleavedColumns:
      box.col = rank;
      box.cols = rank < m.cols ? (m.cols - rank + ranks - 1) / ranks : 0;
      box.col_step = box.cols > 1 ? ranks : 1;
      break;
  }
  return box;
}

struct TestPublish {
  catalog::VersionKind kind = catalog::VersionKind::kDelta;
  int ranks = 2;
  std::function<Share(size_t tensor)> share = [](size_t) { return Share::kRows; };
  std::set<int> raw_ranks = {};  // had no baseline
  // For faults: what a part says of itself, and which chunks it has.
  std::function<void(delta::PartIdentity*, catalog::ObjectRole)> forge = {};
  std::function<void(std::vector<delta::Piece>*, int rank, catalog::ObjectRole)> edit = {};
};

class TestRun {
 public:
  TestRun(std::vector<tensor::TensorSpec> specs, store::MemoryStore* store,
          std::vector<int32_t> carried = {})
      : inventory_(tensor::Inventory::Make(std::move(specs)).value()),
        store_(*store),
        carried_(carried.begin(), carried.end()) {}

  const tensor::Inventory& inventory() const { return inventory_; }
  const std::vector<catalog::Version>& versions() const { return versions_; }
  const std::vector<delta::State>& states() const { return states_; }

  // A state of random bytes.
  delta::State RandomState(uint64_t seed) const {
    delta::State state;
    for (const tensor::TensorSpec& spec : inventory_.tensors()) {
      state.push_back(
          tensor::Pattern(seed + 1000 * state.size(), static_cast<size_t>(spec.bytes())));
    }
    return state;
  }
  // The last state with about one byte in `one_in` changed, of the tensors that are trained.
  delta::State Changed(uint64_t seed, uint64_t one_in) const {
    delta::State state = states_.back();
    std::mt19937_64 rng(seed);
    for (size_t t = 0; t < state.size(); ++t) {
      if (carried_.contains(static_cast<int32_t>(t))) continue;
      for (size_t i = rng() % one_in; i < state[t].size(); i += 1 + rng() % (2 * one_in)) {
        state[t][i] = static_cast<uint8_t>(state[t][i] + 1 + rng() % 3);
      }
    }
    return state;
  }
  std::vector<tensor::TensorDigest> Digests(size_t version) const {
    std::vector<tensor::TensorDigest> digests;
    for (size_t t = 0; t < inventory_.size(); ++t) {
      digests.push_back(tensor::DigestRun(0, states_[version][t]));
    }
    return digests;
  }

  // v0 of a seed checkpoint, or of a fork: no objects.
  void AddSeed(delta::State state) {
    AddVersion(catalog::VersionKind::kSeed);
    states_.push_back(std::move(state));
  }

  void Publish(delta::State next, const TestPublish& how) {
    catalog::Version& version = AddVersion(how.kind);
    const bool full = how.kind == catalog::VersionKind::kFull;
    for (int rank = 0; rank < how.ranks; ++rank) {
      if (!version.base.empty()) Write(&version, how, rank, catalog::ObjectRole::kDelta, next);
      if (full) Write(&version, how, rank, catalog::ObjectRole::kFull, next);
    }
    if (full && !carried_.empty()) {
      if (carried_object_.key.empty()) {
        Write(&version, how, 0, catalog::ObjectRole::kCarried, next);
        carried_object_ = version.objects.back();
      } else {
        version.objects.push_back(carried_object_);
      }
    }
    states_.push_back(std::move(next));
  }

  // From version `start` (as image, seed or full version) to version `target`.
  catalog::ReplayPlan Plan(catalog::ReplayStart start_kind, size_t start, size_t target) const {
    catalog::ReplayPlan plan;
    plan.start = start_kind;
    plan.start_version = versions_[start];
    plan.steps.assign(versions_.begin() + static_cast<ptrdiff_t>(start) + 1,
                      versions_.begin() + static_cast<ptrdiff_t>(target) + 1);
    return plan;
  }

 private:
  template <typename Id>
  static Id Fill(size_t value) {
    Id id;
    id.value.fill(static_cast<uint8_t>(value));
    return id;
  }

  catalog::Version& AddVersion(catalog::VersionKind kind) {
    catalog::Version version;
    version.uid = Fill<VersionUid>(0x10 + versions_.size());
    version.run = Fill<RunUid>(1);
    version.epoch.value = 3;
    version.number = static_cast<int64_t>(versions_.size());
    version.kind = kind;
    version.state = catalog::VersionState::kReady;
    if (!versions_.empty()) version.base = versions_.back().uid;
    version.base_run = version.base.empty() ? RunUid{} : version.run;
    version.store_url = store_.url();
    version.plan = Fill<PlanHash>(2);
    return versions_.emplace_back(std::move(version));
  }

  std::vector<delta::Piece> Pieces(const TestPublish& how, int rank,
                                   catalog::ObjectRole role) const {
    layout::RankPlan plan;
    const bool carried = role == catalog::ObjectRole::kCarried;
    for (size_t t = 0; t < inventory_.size(); ++t) {
      const auto tensor = static_cast<int32_t>(t);
      if (carried_.contains(tensor) != carried) continue;
      const tensor::Matrix matrix = inventory_[t].matrix();
      layout::Slice slice;
      slice.tensor = tensor;
      slice.box =
          carried ? tensor::Box::All(matrix) : ShareOf(matrix, how.share(t), rank, how.ranks);
      if (slice.box.units() > 0) plan.slices.push_back(slice);
    }
    std::vector<delta::Piece> pieces;
    const bool raw = role != catalog::ObjectRole::kDelta || how.raw_ranks.contains(rank);
    for (const layout::Chunk& chunk : layout::CutIntoChunks(inventory_, plan).chunks) {
      pieces.push_back({chunk.tensor, chunk.box, raw});
    }
    if (how.edit) how.edit(&pieces, rank, role);
    return pieces;
  }

  void Write(catalog::Version* version, const TestPublish& how, int rank, catalog::ObjectRole role,
             const delta::State& next) {
    const bool is_delta = role == catalog::ObjectRole::kDelta;
    delta::PartIdentity identity;
    identity.kind = is_delta ? delta::PartKind::kDelta : delta::PartKind::kFull;
    identity.run = version->run;
    identity.version = version->uid;
    if (is_delta) identity.base = version->base;
    identity.epoch = version->epoch;
    identity.rank.value = rank;
    identity.plan = version->plan;
    identity.layout = inventory_.signature();
    if (how.forge) how.forge(&identity, role);
    const delta::BuiltPart part =
        delta::BuildPart(identity, inventory_, states_.empty() ? next : states_.back(), next,
                         Pieces(how, rank, role));
    constexpr const char* kRoles[] = {"delta", "full", "carried"};
    const std::string key = "v" + std::to_string(version->number) + "/" +
                            kRoles[static_cast<int>(role)] + "-" + std::to_string(rank);
    WC_CHECK(store_.Put(key, part.object).ok());
    version->objects.push_back(
        {role, key, part.seal.object_bytes, part.seal.footer_bytes, part.seal.footer_sha256});
  }

  tensor::Inventory inventory_;
  store::MemoryStore& store_;
  std::set<int32_t> carried_;
  catalog::ObjectRef carried_object_;
  std::vector<catalog::Version> versions_;
  std::vector<delta::State> states_;  // by version
};

}  // namespace weightcast::transfer
