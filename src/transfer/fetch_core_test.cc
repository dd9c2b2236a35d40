#include "transfer/fetch_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace weightcast::transfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Outcome : uint8_t { kFine, kUnavailable, kNotFound, kCorrupt, kRefused };

FetchCore::Arrived Arrive(int64_t read, Outcome outcome) {
  switch (outcome) {
    case Outcome::kFine:
      return {read, Ok(), false};
    case Outcome::kUnavailable:
      return {read, Error{Code::kUnavailable, "reset"}, false};
    case Outcome::kNotFound:
      return {read, Error{Code::kNotFound, "no such object"}, false};
    case Outcome::kCorrupt:
      return {read, Error{Code::kDataLoss, "wrong SHA-256"}, true};
    case Outcome::kRefused:
      return {read, Error{Code::kInvalidArgument, "bad key"}, false};
  }
  return {};
}

struct Answer {
  Outcome outcome = Outcome::kFine;
  Duration after = milliseconds(1);
};
struct SeenRead {
  FetchRead read;
  SteadyTime at;
};

// Drives a core with a simulated clock and holds it to what must always be true.
class Simulation {
 public:
  // The answer to the n-th read (from 0) of a piece from a source.
  using Script = std::function<Answer(const FetchRead& read, int nth)>;

  Simulation(int32_t pieces, int32_t sources, FetchOptions options, Script script,
             uint64_t seed = 1, std::vector<SourceHealth> health = {})
      : options_(options),
        script_(std::move(script)),
        core_(pieces, Names(sources), options, seed, std::move(health)),
        asked_(static_cast<size_t>(pieces), std::vector<int>(static_cast<size_t>(sources))),
        fine_(static_cast<size_t>(pieces)),
        in_flight_(static_cast<size_t>(pieces)),
        done_(static_cast<size_t>(pieces)) {}

  void Run() {
    Perform(core_.Step(FetchCore::Start{}, now_));
    for (int steps = 0; !core_.finished(); ++steps) {
      ASSERT_LT(steps, 100000);
      if (!arrivals_.empty() && arrivals_.begin()->first <= wake_) {
        const auto [at, next] = *arrivals_.begin();
        arrivals_.erase(arrivals_.begin());
        now_ = at;
        --in_flight_[static_cast<size_t>(next.read.piece)];
        if (next.outcome == Outcome::kFine) fine_[static_cast<size_t>(next.read.piece)] = true;
        Perform(core_.Step(Arrive(next.read.id, next.outcome), now_));
      } else {
        now_ = wake_;
        Perform(core_.Step(FetchCore::TimerFired{}, now_));
      }
    }
    for (size_t p = 0; !failure && p < done_.size(); ++p) EXPECT_TRUE(done_[p]);
    // Late arrivals change nothing.
    for (const auto& [at, next] : arrivals_) {
      const auto late = core_.Step(Arrive(next.read.id, next.outcome), at);
      EXPECT_TRUE(late.reads.empty() && !late.done && !late.fail && !late.wait_until);
    }
  }

  std::vector<int32_t> SourcesAsked() const {
    std::vector<int32_t> result;
    for (const SeenRead& seen : reads) result.push_back(seen.read.source);
    return result;
  }
  Duration elapsed() const { return now_ - kStart; }
  bool AnyFine(int32_t piece) const { return fine_[static_cast<size_t>(piece)]; }
  const FetchCore& core() const { return core_; }

  std::vector<SeenRead> reads;
  std::optional<FetchCore::Failure> failure;
  static constexpr SteadyTime kStart{seconds(1000)};

 private:
  struct Arrival {
    FetchRead read;
    Outcome outcome = Outcome::kFine;
  };

  static std::vector<std::string> Names(int32_t sources) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < sources; ++i) names.push_back("source " + std::to_string(i));
    return names;
  }

  void Perform(const FetchCore::Actions& actions) {
    if (actions.done) {
      EXPECT_FALSE(done_[static_cast<size_t>(*actions.done)]) << "a piece is done once";
      done_[static_cast<size_t>(*actions.done)] = true;
    }
    for (const FetchRead& read : actions.reads) {
      const auto piece = static_cast<size_t>(read.piece);
      EXPECT_FALSE(done_[piece]);
      EXPECT_LE(++in_flight_[piece], read.hedge ? 2 : 1);
      const int nth = asked_[piece][static_cast<size_t>(read.source)]++;
      EXPECT_LT(nth, options_.attempts_per_source);
      const Answer answer = script_(read, nth);
      reads.push_back({read, now_});
      arrivals_.emplace(now_ + answer.after, Arrival{read, answer.outcome});
    }
    int active = 0;
    for (size_t p = 0; p < done_.size(); ++p) active += !done_[p] && in_flight_[p] > 0;
    EXPECT_LE(active, options_.parallel);
    if (actions.fail) failure = actions.fail;
    EXPECT_EQ(actions.wait_until.has_value(), !core_.finished());
    if (!actions.wait_until) return;
    EXPECT_GT(*actions.wait_until, now_) << "a timer that is due at once would spin";
    wake_ = *actions.wait_until;
  }

  FetchOptions options_;
  Script script_;
  FetchCore core_;
  SteadyTime now_ = kStart;
  SteadyTime wake_ = kStart;
  std::multimap<SteadyTime, Arrival> arrivals_;
  std::vector<std::vector<int>> asked_;
  std::vector<bool> fine_;
  std::vector<int> in_flight_;
  std::vector<bool> done_;
};

FetchOptions Options(int parallel, int attempts = 4) {
  FetchOptions options;
  options.parallel = parallel;
  options.attempts_per_source = attempts;
  return options;
}
Answer Fine(const FetchRead&, int) { return {}; }

TEST(FetchCoreTest, NoPiecesAreDoneAtOnce) {
  FetchCore core(0, {"a"}, {}, 1);
  const auto actions = core.Step(FetchCore::Start{}, SteadyTime{});
  EXPECT_TRUE(core.finished());
  EXPECT_TRUE(actions.reads.empty() && !actions.fail && !actions.wait_until);
}

TEST(FetchCoreTest, WithoutASourceItSaysSo) {
  Simulation sim(2, 0, Options(4), Fine);
  sim.Run();
  ASSERT_TRUE(sim.failure);
  EXPECT_EQ(sim.failure->error.code, Code::kUnavailable);
  EXPECT_THAT(sim.failure->error.message, HasSubstr("no source"));
}

TEST(FetchCoreTest, AsksTheFirstSourceForEachPieceOnceInOrder) {
  Simulation sim(5, 3, Options(2), Fine);
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_THAT(sim.SourcesAsked(), ElementsAre(0, 0, 0, 0, 0));
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(sim.reads[i].read.piece, static_cast<int32_t>(i));
  EXPECT_EQ(sim.elapsed(), milliseconds(3)) << "two at a time";
}

TEST(FetchCoreTest, RetriesWithFullJitterThatDoublesUpToItsMost) {
  FetchOptions options = Options(1, 9);
  options.backoff_max = milliseconds(400);
  bool some_short = false;
  bool some_long = false;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Simulation sim(
        1, 1, options, [](const FetchRead&, int) { return Answer{Outcome::kUnavailable, {}}; },
        seed);
    sim.Run();
    ASSERT_TRUE(sim.failure);
    ASSERT_EQ(sim.reads.size(), 9U);
    Duration most = milliseconds(50);
    for (size_t i = 1; i < 9; ++i) {
      const Duration waited = sim.reads[i].at - sim.reads[i - 1].at;
      EXPECT_LE(waited, most) << "seed " << seed << " retry " << i;
      some_short |= waited < most / 10;
      some_long |= waited > most * 9 / 10;
      most = std::min<Duration>(most * 2, milliseconds(400));
    }
  }
  EXPECT_TRUE(some_short && some_long) << "spread over all of [0, most]";
}

TEST(FetchCoreTest, TwoFetchersDoNotRetryInStep) {
  auto run = [](uint64_t seed) {
    Simulation sim(
        1, 1, Options(1), [](const FetchRead&, int) { return Answer{Outcome::kUnavailable, {}}; },
        seed);
    sim.Run();
    return sim.elapsed();
  };
  EXPECT_EQ(run(1), run(1)) << "a seed gives one schedule";
  EXPECT_NE(run(1), run(2));
}

TEST(FetchCoreTest, AnUnavailableSourceIsAskedSeveralTimesThenTheNext) {
  Simulation sim(1, 2, Options(1, 3), [](const FetchRead& read, int) {
    return Answer{read.source == 0 ? Outcome::kUnavailable : Outcome::kFine, milliseconds(1)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_THAT(sim.SourcesAsked(), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(sim.reads[3].at, sim.reads[2].at + milliseconds(1)) << "a fresh source needs no wait";
}

TEST(FetchCoreTest, PassesToTheNextSourceAtOnceAfterALastWord) {
  for (const Outcome outcome : {Outcome::kNotFound, Outcome::kCorrupt, Outcome::kRefused}) {
    Simulation sim(1, 2, Options(1), [&](const FetchRead& read, int) {
      return Answer{read.source == 0 ? outcome : Outcome::kFine, milliseconds(1)};
    });
    sim.Run();
    EXPECT_FALSE(sim.failure);
    EXPECT_THAT(sim.SourcesAsked(), ElementsAre(0, 1));
    EXPECT_EQ(sim.elapsed(), milliseconds(2));
  }
}

TEST(FetchCoreTest, AVerificationFailureIsALastWordWhateverItsCode) {
  FetchCore core(1, {"a", "b"}, {}, 1);
  core.Step(FetchCore::Start{}, SteadyTime{});
  const auto actions = core.Step(
      FetchCore::Arrived{0, Error{Code::kUnavailable, "odd code for a check"}, true}, SteadyTime{});
  ASSERT_EQ(actions.reads.size(), 1U);
  EXPECT_EQ(actions.reads[0].source, 1);
}

TEST(FetchCoreTest, WhenEverySourceFailsEachOnesAnswerIsListed) {
  Simulation sim(1, 3, Options(1, 2), [](const FetchRead& read, int) {
    constexpr Outcome kOutcomes[] = {Outcome::kNotFound, Outcome::kUnavailable, Outcome::kCorrupt};
    return Answer{kOutcomes[read.source], milliseconds(1)};
  });
  sim.Run();
  ASSERT_TRUE(sim.failure);
  EXPECT_EQ(sim.failure->piece, 0);
  EXPECT_EQ(sim.failure->error.message,
            "source 0: no such object (not-found); "
            "source 1: reset (unavailable), asked 2 times; "
            "source 2: wrong SHA-256 (data-loss)");
}

TEST(FetchCoreTest, TheCodeSaysWhatTheCallerMayDo) {
  struct Case {
    Outcome first, second;
    Code code;
  };
  for (const Case& c : {Case{Outcome::kNotFound, Outcome::kNotFound, Code::kNotFound},
                        Case{Outcome::kNotFound, Outcome::kCorrupt, Code::kDataLoss},
                        Case{Outcome::kCorrupt, Outcome::kNotFound, Code::kDataLoss},
                        Case{Outcome::kCorrupt, Outcome::kUnavailable, Code::kUnavailable},
                        Case{Outcome::kUnavailable, Outcome::kNotFound, Code::kUnavailable},
                        Case{Outcome::kRefused, Outcome::kNotFound, Code::kInvalidArgument}}) {
    Simulation sim(1, 2, Options(1, 2), [&](const FetchRead& read, int) {
      return Answer{read.source == 0 ? c.first : c.second, milliseconds(1)};
    });
    sim.Run();
    ASSERT_TRUE(sim.failure);
    EXPECT_EQ(CodeName(sim.failure->error.code), CodeName(c.code));
  }
}

TEST(FetchCoreTest, OnePieceThatNobodyHasEndsTheFetch) {
  Simulation sim(50, 1, Options(4), [](const FetchRead& read, int) {
    return Answer{read.piece == 7 ? Outcome::kNotFound : Outcome::kFine, milliseconds(1)};
  });
  sim.Run();
  ASSERT_TRUE(sim.failure);
  EXPECT_EQ(sim.failure->piece, 7);
  EXPECT_LE(sim.reads.size(), 12U) << "nothing is started after it";
}

TEST(FetchCoreTest, TheDeadlineNamesAMissingPieceAndWhatWasAnswered) {
  FetchOptions options = Options(2, 1000000);
  options.timeout = seconds(3);
  Simulation sim(3, 1, options, [](const FetchRead& read, int) {
    return Answer{read.piece == 1 ? Outcome::kUnavailable : Outcome::kFine, milliseconds(1)};
  });
  sim.Run();
  ASSERT_TRUE(sim.failure);
  EXPECT_EQ(sim.failure->error.code, Code::kDeadlineExceeded);
  EXPECT_EQ(sim.failure->piece, 1);
  EXPECT_THAT(sim.failure->error.message, HasSubstr("1 of 3 pieces missing after 3000 ms"));
  EXPECT_THAT(sim.failure->error.message, HasSubstr("reset"));
  EXPECT_GE(sim.elapsed(), seconds(3));
}

TEST(FetchCoreTest, AReadThatNeverEndsMeetsTheDeadline) {
  FetchOptions options = Options(2);
  options.timeout = seconds(3);
  Simulation sim(3, 1, options, [](const FetchRead&, int) {
    return Answer{Outcome::kFine, std::chrono::hours(1)};
  });
  sim.Run();
  ASSERT_TRUE(sim.failure);
  EXPECT_EQ(sim.failure->error.code, Code::kDeadlineExceeded);
  EXPECT_THAT(sim.failure->error.message, HasSubstr("source 0: no answer yet"));
  EXPECT_EQ(sim.elapsed(), seconds(3));
}

// ---- a source that fails for many pieces ----

TEST(FetchCoreTest, ADeadSourceIsSoonAskedLast) {
  Simulation sim(100, 2, Options(4, 3), [](const FetchRead& read, int) {
    return Answer{read.source == 0 ? Outcome::kUnavailable : Outcome::kFine, milliseconds(1)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  const auto asked = sim.SourcesAsked();
  EXPECT_LE(std::ranges::count(asked, 0), 8) << "not three times a piece";
}

TEST(FetchCoreTest, HealthGoesOverToTheNextFetchAndAgesOut) {
  Simulation first(8, 2, Options(4, 3), [](const FetchRead& read, int) {
    return Answer{read.source == 0 ? Outcome::kUnavailable : Outcome::kFine, milliseconds(1)};
  });
  first.Run();
  const std::vector<SourceHealth> health = first.core().health();
  EXPECT_EQ(health[1], SourceHealth{});

  Simulation second(1, 2, Options(4, 3), Fine, 1, health);
  second.Run();
  EXPECT_THAT(second.SourcesAsked(), ElementsAre(1));

  std::vector<SourceHealth> aged = health;
  aged[0].down_until = Simulation::kStart;
  Simulation third(1, 2, Options(4, 3), Fine, 1, aged);
  third.Run();
  EXPECT_THAT(third.SourcesAsked(), ElementsAre(0));
  EXPECT_EQ(third.core().health()[0], SourceHealth{}) << "one success forgives";
}

TEST(FetchCoreTest, ADownSourceIsStillAskedIfItIsTheLastOne) {
  const SourceHealth down{9, Simulation::kStart + std::chrono::hours(1)};
  Simulation sim(1, 2, Options(1),
                 [](const FetchRead& read, int) {
                   return Answer{read.source == 1 ? Outcome::kNotFound : Outcome::kFine,
                                 milliseconds(1)};
                 },
                 1, {down, {}});
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_THAT(sim.SourcesAsked(), ElementsAre(1, 0));
}

TEST(FetchCoreTest, NotHavingAnObjectIsNoFault) {
  Simulation sim(20, 2, Options(4, 2), [](const FetchRead& read, int) {
    const bool missing = read.source == 0 && read.piece < 10;
    return Answer{missing ? Outcome::kNotFound : Outcome::kFine, milliseconds(1)};
  });
  sim.Run();
  const auto asked = sim.SourcesAsked();
  EXPECT_EQ(std::ranges::count(asked, 0), 20) << "a peer may hold some objects and not others";
}

// ---- hedging ----

FetchOptions Hedging(int parallel) {
  FetchOptions options = Options(parallel);
  options.hedge_factor = 4;
  options.hedge_after_min = milliseconds(40);
  return options;
}

TEST(FetchCoreTest, ASlowReadIsAskedForElsewhereAndTheFirstAnswerWins) {
  Simulation sim(10, 2, Hedging(4), [](const FetchRead& read, int) {
    const bool slow = read.piece == 9 && read.source == 0;
    return Answer{Outcome::kFine, slow ? seconds(60) : milliseconds(20)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  ASSERT_EQ(sim.reads.size(), 11U);
  EXPECT_EQ(sim.reads[10].read, (FetchRead{10, 9, 1, true}));
  EXPECT_EQ(sim.reads[10].at, sim.reads[9].at + milliseconds(80)) << "4 times the median";
  EXPECT_EQ(sim.elapsed(), milliseconds(40 + 80 + 20));
}

TEST(FetchCoreTest, ASoleSourceIsAskedASecondTime) {
  Simulation sim(4, 1, Hedging(2), [](const FetchRead& read, int nth) {
    const bool slow = read.piece == 3 && nth == 0;
    return Answer{Outcome::kFine, slow ? seconds(60) : milliseconds(20)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_EQ(sim.reads.size(), 5U);
  EXPECT_LT(sim.elapsed(), seconds(1));
}

struct NoHedgeCase {
  const char* name;
  FetchOptions options;
  int32_t pieces;
  int32_t slow_from;
};
TEST(FetchCoreTest, DoesNotHedge) {
  FetchOptions off = Hedging(4);
  off.hedge_factor = 0;
  FetchOptions quick = Hedging(4);
  quick.hedge_after_min = seconds(2);
  for (const NoHedgeCase& c :
       {NoHedgeCase{"switched off", off, 10, 9}, NoHedgeCase{"on one thread", Hedging(1), 10, 9},
        NoHedgeCase{"before half is done", Hedging(8), 8, 2},
        NoHedgeCase{"one piece", Hedging(4), 1, 0},
        NoHedgeCase{"below the least wait", quick, 10, 9}}) {
    Simulation sim(c.pieces, 2, c.options, [&](const FetchRead& read, int) {
      return Answer{Outcome::kFine, read.piece >= c.slow_from ? seconds(1) : milliseconds(20)};
    });
    sim.Run();
    EXPECT_EQ(sim.reads.size(), static_cast<size_t>(c.pieces)) << c.name;
  }
}

TEST(FetchCoreTest, AHungSourceDoesNotHoldUpTheRest) {
  // Of 40 pieces source 0 hangs on every one from the 20th on; two reads at a time.
  Simulation sim(40, 2, Hedging(2), [](const FetchRead& read, int) {
    const bool hangs = read.source == 0 && read.piece >= 20;
    return Answer{Outcome::kFine, hangs ? std::chrono::hours(1) : Duration(milliseconds(20))};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_LT(sim.elapsed(), seconds(2)) << "losers of races are asked last after a while";
}

TEST(FetchCoreTest, AFailedHedgeLeavesTheFirstReadItsChance) {
  Simulation sim(4, 2, Hedging(2), [](const FetchRead& read, int) {
    if (read.hedge) return Answer{Outcome::kCorrupt, milliseconds(1)};
    return Answer{Outcome::kFine, read.piece == 3 ? milliseconds(500) : milliseconds(20)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_EQ(sim.reads.size(), 5U);
  EXPECT_GE(sim.elapsed(), milliseconds(500));
}

TEST(FetchCoreTest, AFailedFirstReadLeavesTheHedgeItsChance) {
  Simulation sim(4, 2, Hedging(2), [](const FetchRead& read, int) {
    if (read.hedge) return Answer{Outcome::kFine, seconds(5)};
    if (read.piece == 3) return Answer{Outcome::kNotFound, milliseconds(500)};
    return Answer{Outcome::kFine, milliseconds(20)};
  });
  sim.Run();
  EXPECT_FALSE(sim.failure);
  EXPECT_EQ(sim.reads.size(), 5U);
}

// ---- all small schedules, then seeds ----

// A piece can be had if some source gives it before its last word. The sequences of answers of
// different (piece, source) do not touch each other, so that order, jitter and health cannot
// matter.
bool CanBeHad(const std::vector<std::vector<Outcome>>& by_source) {
  for (const auto& answers : by_source) {
    for (const Outcome outcome : answers) {
      if (outcome == Outcome::kFine) return true;
      if (outcome != Outcome::kUnavailable) break;
    }
  }
  return false;
}

TEST(FetchCoreTest, EverySmallScheduleEndsRight) {
  // 2 pieces, 2 sources, 2 attempts, 4 outcomes, one or two at a time; the second piece's answers
  // come quickly or slowly.
  constexpr Outcome kOutcomes[] = {Outcome::kFine, Outcome::kUnavailable, Outcome::kNotFound,
                                   Outcome::kCorrupt};
  for (uint32_t code = 0; code < 1U << 16; ++code) {
    auto outcome = [&](int32_t piece, int32_t source, int nth) {
      return kOutcomes[(code >> (2 * (piece * 4 + source * 2 + nth))) & 3];
    };
    bool expected = true;
    for (int32_t p = 0; p < 2; ++p) {
      expected &=
          CanBeHad({{outcome(p, 0, 0), outcome(p, 0, 1)}, {outcome(p, 1, 0), outcome(p, 1, 1)}});
    }
    const bool slow = code % 3 == 0;
    Simulation sim(
        2, 2, Options(1 + static_cast<int>(code % 2), 2),
        [&](const FetchRead& read, int nth) {
          const bool late = slow && read.piece == 1;
          return Answer{outcome(read.piece, read.source, nth),
                        late ? milliseconds(150) : milliseconds(1)};
        },
        code);
    sim.Run();
    ASSERT_EQ(!sim.failure, expected) << "code " << code;
    ASSERT_FALSE(HasFailure()) << "code " << code;
  }
}

TEST(FetchCoreTest, RandomSchedulesEndRight) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 rng(seed);
    auto upto = [&](uint64_t n) { return static_cast<int>(rng() % (n + 1)); };
    FetchOptions options = Hedging(1 + upto(4));
    options.attempts_per_source = 1 + upto(3);
    options.hedge_after_min = milliseconds(upto(50));
    const int32_t pieces = upto(12);
    const uint64_t bad_in = 1 + rng() % 8;
    Simulation sim(
        pieces, 1 + upto(3), options,
        [&](const FetchRead&, int) {
          const auto outcome = rng() % bad_in == 0 ? static_cast<Outcome>(upto(4)) : Outcome::kFine;
          return Answer{outcome, milliseconds(rng() % 5 == 0 ? upto(4000) : upto(30))};
        },
        seed);
    sim.Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    if (!sim.failure) continue;
    EXPECT_FALSE(sim.AnyFine(sim.failure->piece)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weightcast::transfer
