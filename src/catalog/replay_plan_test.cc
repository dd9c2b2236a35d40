// Replay planning and retention on versions alone: against the definition, over all small lineages.
#include "catalog/replay_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;

VersionUid Uid(int number) {
  VersionUid uid;
  uid.value[0] = static_cast<uint8_t>(number + 1);
  return uid;
}
Root RootOf(int number) {
  Root root;
  root.value[0] = static_cast<uint8_t>(number + 1);
  return root;
}

Version Make(int number, VersionKind kind, VersionState state, int base, int64_t delta_bytes,
             int64_t full_bytes) {
  Version version;
  version.uid = Uid(number);
  version.number = number;
  version.kind = kind;
  version.state = state;
  version.root = RootOf(number);
  if (base >= 0) version.base = Uid(base);
  if (kind != VersionKind::kSeed && base >= 0) {
    version.objects.push_back({ObjectRole::kDelta, "d", delta_bytes, 1, {}});
  }
  if (kind == VersionKind::kFull) {
    version.objects.push_back({ObjectRole::kFull, "f", full_bytes - 1, 1, {}});
    version.objects.push_back({ObjectRole::kCarried, "c", 1, 1, {}});
  }
  return version;
}

// The definition, tried for every start: from `start` forward to the target over READY versions.
std::optional<int64_t> Cheapest(const std::vector<Version>& line, size_t target, int have,
                                int seed) {
  std::optional<int64_t> best;
  for (size_t start = 0; start <= target; ++start) {
    int64_t steps = 0;
    bool whole = true;
    for (size_t i = start + 1; i <= target; ++i) {
      whole = whole && line[i].state == VersionState::kReady && !line[i].base.empty();
      for (const ObjectRef& o : line[i].objects) {
        if (o.role == ObjectRole::kDelta) steps += o.bytes;
      }
    }
    if (!whole) continue;
    const auto offer = [&](int64_t bytes) { best = std::min(best.value_or(bytes), bytes); };
    const bool ready = line[start].state == VersionState::kReady;
    if (have == static_cast<int>(start)) offer(steps);
    if (seed == static_cast<int>(start) && ready) offer(steps);
    if (line[start].kind == VersionKind::kFull && ready) {
      int64_t full = 0;
      for (const ObjectRef& o : line[start].objects) {
        if (o.role != ObjectRole::kDelta) full += o.bytes;
      }
      offer(full + steps);
    }
  }
  return best;
}

// Every line of four versions: kinds, releases, images, seeds and three prices.
TEST(ChooseReplay, IsTheCheapestOfAllStarts) {
  constexpr size_t kLength = 4;
  int plans = 0;
  for (int shape = 0; shape < 3 * 2 * 2 * 2; ++shape) {
    for (int released = 0; released < 1 << (kLength - 1); ++released) {
      for (const int64_t full_bytes : {5, 15, 100}) {
        std::vector<Version> line;
        for (size_t i = 0; i < kLength; ++i) {
          const bool full = i == 0 ? shape % 3 == 1 : (shape / 3 >> (i - 1) & 1) != 0;
          const VersionKind kind = full                       ? VersionKind::kFull
                                   : i == 0 && shape % 3 == 0 ? VersionKind::kSeed
                                                              : VersionKind::kDelta;
          // Shape 2: the base of the first is not known.
          const int base = i > 0 ? static_cast<int>(i) - 1 : shape % 3 == 2 ? 50 : -1;
          line.push_back(
              Make(static_cast<int>(i), kind,
                   (released >> i & 1) != 0 ? VersionState::kReleased : VersionState::kReady, base,
                   10, full_bytes));
        }
        for (int have = -1; have <= static_cast<int>(kLength); ++have) {
          for (int seed = -1; seed < static_cast<int>(kLength); ++seed) {
            ReplayRequest request;
            request.target = Uid(kLength - 1);
            if (have >= 0) request.have = Uid(have);
            if (seed >= 0) request.seed = RootOf(seed);
            const auto expected = Cheapest(line, kLength - 1, have, seed);
            const Result<ReplayPlan> plan = ChooseReplay(line, request);
            ASSERT_EQ(plan.ok(), expected.has_value())
                << "shape " << shape << " released " << released << " have " << have << " seed "
                << seed;
            if (!plan.ok()) {
              EXPECT_EQ(plan.error().code, Code::kUnavailable);
              continue;
            }
            ++plans;
            EXPECT_EQ(plan->bytes, *expected);
            const Version& last = plan->steps.empty() ? plan->start_version : plan->steps.back();
            EXPECT_EQ(last.uid, request.target);
            VersionUid at = plan->start_version.uid;
            for (const Version& step : plan->steps) {
              EXPECT_EQ(step.base, at);
              EXPECT_EQ(step.state, VersionState::kReady);
              at = step.uid;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 1000);
}

TEST(ChooseReplay, SaysWhatWasReleasedAndWhatIsUnknown) {
  const auto seed = VersionKind::kSeed;
  const auto delta = VersionKind::kDelta;
  const auto ready = VersionState::kReady;
  const auto gone = VersionState::kReleased;
  const std::vector<Version> line = {Make(0, seed, ready, -1, 0, 0), Make(1, delta, gone, 0, 1, 0),
                                     Make(2, delta, ready, 1, 1, 0), Make(3, delta, gone, 2, 1, 0),
                                     Make(4, delta, ready, 3, 1, 0)};
  ReplayRequest request;
  request.target = Uid(4);
  request.seed = RootOf(0);
  EXPECT_THAT(ChooseReplay(line, request).error().message,
              AllOf(HasSubstr("an image at version 3"), HasSubstr("a full version"),
                    HasSubstr("released: version 3 (04000000), version 1 (02000000)")));
  const std::vector<Version> cut = {line[4]};
  EXPECT_THAT(ChooseReplay(cut, request).error().message,
              AllOf(HasSubstr("the base of version 4"), HasSubstr(Uid(3).hex()),
                    HasSubstr("not known here")));
}

TEST(ChooseReplay, RefusesACircle) {
  const std::vector<Version> circle = {Make(0, VersionKind::kDelta, VersionState::kReady, 1, 1, 0),
                                       Make(1, VersionKind::kDelta, VersionState::kReady, 0, 1, 0)};
  ReplayRequest request;
  request.target = Uid(1);
  EXPECT_EQ(ChooseReplay(circle, request).error().code, Code::kInvalidData);
  EXPECT_TRUE(LostWithout(circle, Uid(1)).empty());
}

// Every tree of five versions with every choice of full ones: what a release loses is what had a
// chain before and has none after.
TEST(LostWithout, IsWhatHadAChainBefore) {
  constexpr int kNodes = 5;
  const auto has_chain = [](const std::map<VersionUid, Version>& ready, VersionUid uid) {
    for (;;) {
      const auto it = ready.find(uid);
      if (it == ready.end()) return false;
      if (it->second.kind == VersionKind::kFull) return true;
      if (it->second.base.empty()) return it->second.kind == VersionKind::kSeed;
      uid = it->second.base;
    }
  };
  for (int tree = 0; tree < 1 * 2 * 3 * 4; ++tree) {
    for (int full = 0; full < 1 << kNodes; ++full) {
      std::vector<Version> versions;
      for (int i = 0; i < kNodes; ++i) {
        const int divisor[] = {1, 1, 1, 2, 6};
        const int base = i == 0 ? -1 : tree / divisor[i] % i;
        const VersionKind kind = (full >> i & 1) != 0 ? VersionKind::kFull
                                 : i == 0             ? VersionKind::kSeed
                                                      : VersionKind::kDelta;
        versions.push_back(Make(i, kind, VersionState::kReady, base, 1, 1));
      }
      for (int removed = 0; removed < kNodes; ++removed) {
        std::map<VersionUid, Version> before;
        for (const Version& v : versions) before[v.uid] = v;
        std::map<VersionUid, Version> after = before;
        after.erase(Uid(removed));
        std::set<VersionUid> expected;
        for (const auto& [uid, v] : after) {
          if (has_chain(before, uid) && !has_chain(after, uid)) expected.insert(uid);
        }
        std::set<VersionUid> lost;
        for (const Version* v : LostWithout(versions, Uid(removed))) lost.insert(v->uid);
        ASSERT_EQ(lost, expected) << "tree " << tree << " full " << full << " removed " << removed;
      }
    }
  }
}

}  // namespace
}  // namespace weightcast::catalog
