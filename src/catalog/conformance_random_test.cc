// Conformance: seeded sequences of calls against a simple model, and threads in a race.
#include <gmock/gmock.h>

#include <map>
#include <random>
#include <thread>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

constexpr int kRanks = 2;

// The publish protocol in its plainest form: lists that are searched.
class Model {
 public:
  struct Attempt {
    VersionUid uid;
    int64_t epoch = 0;
    int64_t number = 0;
    std::string token;
    bool full = false;
    VersionState state = VersionState::kStaging;
    int base = 0;                  // content
    int content = 0;               // unless it has failed
    std::map<int, int> announced;  // rank -> the base it claimed
  };

  // Each answers what the catalog must: a code's name, or "ok".
  std::string OpenEpoch(const std::string& token) {
    if (const auto it = tokens.find(token); it != tokens.end()) {
      return it->second == epoch ? "ok" : "conflict";
    }
    tokens[token] = ++epoch;
    for (Attempt& a : attempts) {
      if (a.state == VersionState::kStaging) a.state = VersionState::kFailed;
    }
    return "ok";
  }

  // `found` is the attempt that must answer, or null for a new one.
  std::string Begin(int64_t in_epoch, int64_t number, const std::string& token, bool full,
                    const Attempt** found) {
    *found = nullptr;
    if (in_epoch != epoch || epoch == 0) return "conflict";
    for (const Attempt& a : attempts) {
      if (a.state != VersionState::kStaging) continue;
      if (a.number != number || a.token != token) return "unavailable";
      *found = &a;
      return a.full == full ? "ok" : "conflict";
    }
    for (const Attempt& a : attempts) {
      if (a.state != VersionState::kReady || a.number != number) continue;
      *found = &a;
      return a.token == token && a.full == full ? "ok" : "conflict";
    }
    return number > latest().number ? "ok" : "conflict";
  }

  std::string Announce(Attempt& a, int rank, int64_t in_epoch, int base) {
    if (const auto it = a.announced.find(rank); it != a.announced.end()) {
      if (a.state == VersionState::kFailed) return "conflict";
      return it->second == base && in_epoch == a.epoch ? "ok" : "conflict";
    }
    if (a.state != VersionState::kStaging || in_epoch != a.epoch) return "conflict";
    a.announced[rank] = base;
    if (a.announced.size() < kRanks) return "ok";
    bool proven = true;
    for (const auto& [r, claimed] : a.announced) proven = proven && claimed == a.base;
    a.state = proven ? VersionState::kReady : VersionState::kFailed;
    return proven ? "ok" : "data-loss";
  }

  std::string Fail(Attempt& a) {
    if (a.state == VersionState::kReady) return "conflict";
    a.state = VersionState::kFailed;
    return "ok";
  }

  // The seed is content 0.
  Attempt latest() const {
    Attempt best;
    for (const Attempt& a : attempts) {
      if (a.state == VersionState::kReady && a.number > best.number) best = a;
    }
    return best;
  }

  int64_t epoch = 0;
  std::map<std::string, int64_t> tokens;
  std::vector<Attempt> attempts;
};

template <typename T>
std::string CodeOf(const Result<T>& result) {
  return result.ok() ? "ok" : std::string(CodeName(result.error().code));
}

TEST_P(CatalogConformance, RandomCallsAgreeWithAModel) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const Run run = MakeRun("policy" + std::to_string(seed));
    MakeSeed(run, 0);
    Model model;
    for (int step = 0; step < 80; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const int what = pick(10);
      if (what == 0) {
        // Sometimes the token of a dead job.
        const std::string token = "job" + std::to_string(pick(static_cast<int>(model.epoch) + 2));
        const Result<Epoch> epoch =
            db().OpenEpoch({run.uid, token, std::nullopt, ToyPlan(2), {0, 1}});
        ASSERT_EQ(CodeOf(epoch), model.OpenEpoch(token));
        ASSERT_TRUE(!epoch.ok() || epoch->value == model.epoch);
      } else if (what < 4) {
        BeginRequest request = Request(
            run, Epoch{model.epoch - (pick(8) == 0 ? 1 : 0)},
            std::max<int64_t>(1, model.latest().number + 1 + (pick(4) == 0 ? pick(3) - 1 : 0)));
        request.step_token = pick(6) == 0 ? "other" : "token";
        request.full = pick(6) == 0;
        const Model::Attempt* found = nullptr;
        const std::string expected = model.Begin(request.epoch.value, request.number,
                                                 request.step_token, request.full, &found);
        const Result<Version> version = db().BeginVersion(request);
        ASSERT_EQ(CodeOf(version), expected) << Text(version);
        ASSERT_TRUE(!version.ok() || found == nullptr || version->uid == found->uid);
        if (version.ok() && found == nullptr) {
          Model::Attempt a{version->uid,
                           model.epoch,
                           request.number,
                           request.step_token,
                           request.full,
                           VersionState::kStaging,
                           model.latest().content,
                           0,
                           {}};
          a.content = static_cast<int>(model.attempts.size()) + 1;
          model.attempts.push_back(a);
        }
      } else if (!model.attempts.empty()) {
        // Mostly the newest attempt, sometimes a zombie.
        const int count = static_cast<int>(model.attempts.size());
        Model::Attempt& a =
            model.attempts[static_cast<size_t>(pick(4) == 0 ? pick(count) : count - 1)];
        if (what == 9 && pick(3) == 0) {
          ASSERT_EQ(CodeOf(db().FailVersion(a.uid, "why")), model.Fail(a));
        } else {
          const int rank = pick(kRanks);
          const int base = pick(10) == 0 ? a.base + 100 : a.base;
          const Version version = Must(db().GetVersion(a.uid));
          Announcement announcement = ToyAnnouncement(version, rank, base, a.content);
          if (pick(10) == 0) announcement.epoch.value += 1;
          const std::string expected = model.Announce(a, rank, announcement.epoch.value, base);
          const Result<Version> after = db().Announce(announcement);
          ASSERT_EQ(CodeOf(after), expected) << Text(after);
        }
      }
      // All of it, after each step.
      std::map<VersionUid, Version> stored;
      for (const Version& v : Must(db().ListVersions(run.uid))) stored[v.uid] = v;
      ASSERT_EQ(stored.size(), model.attempts.size() + 1);
      for (const Model::Attempt& a : model.attempts) {
        const Version& v = stored.at(a.uid);
        ASSERT_EQ(StateName(v.state), StateName(a.state)) << v.failure;
        ASSERT_EQ(v.number, a.number);
        ASSERT_EQ(v.root, a.state == VersionState::kReady ? ToyRoot(a.content) : Root{});
      }
      ASSERT_EQ(Must(db().FindVersion(run.uid, "latest")).root, ToyRoot(model.latest().content));
    }
    EXPECT_GT(model.latest().number, 0) << "a sequence that publishes nothing tests little";
  }
}

// Threads of one process share a catalog (and its connection).
TEST_P(CatalogConformance, ThreadsRaceToOneReadyVersion) {
  constexpr int kThreads = 8;
  const Run run = MakeRun("policy");
  MakeSeed(run, 0);
  const Epoch epoch = MakeEpoch(run, "job", 4);
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Catalog& catalog = home_->handle(static_cast<size_t>(i) % home_->handles());
      const Result<Version> begun = catalog.BeginVersion(Request(run, epoch, 1));
      if (!begun.ok()) {
        failures[static_cast<size_t>(i)] = Text(begun);
        return;
      }
      // Two threads say the same for each rank.
      failures[static_cast<size_t>(i)] =
          Text(catalog.Announce(ToyAnnouncement(*begun, i % 4, 0, 1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "ok");
  const std::vector<Version> versions = Must(db().ListVersions(run.uid));
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].root, ToyRoot(1));
}

}  // namespace
}  // namespace weightcast::catalog
