#include "layout/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace weightcast::layout {
namespace {

using ::testing::HasSubstr;

Topology Of(int32_t layers, int32_t pp, int32_t vpp) {
  Topology t;
  t.world = pp;
  t.pp = pp;
  t.vpp = vpp;
  t.num_layers = layers;
  return t;
}

TEST(Layers, EvenStagesWithVirtualChunksInterleave) {
  const Topology t = Of(48, 2, 2);
  EXPECT_EQ(t.LayersOf(0, 0), (Topology::LayerRange{0, 12}));
  EXPECT_EQ(t.LayersOf(1, 0), (Topology::LayerRange{12, 12}));
  EXPECT_EQ(t.LayersOf(0, 1), (Topology::LayerRange{24, 12}));
  EXPECT_EQ(t.LayersOf(1, 1), (Topology::LayerRange{36, 12}));
}

TEST(Layers, GivenFirstAndLastStage) {
  Topology t = Of(48, 4, 1);
  t.layers_in_first_stage = 10;
  t.layers_in_last_stage = 14;
  ASSERT_TRUE(t.Check().ok());
  EXPECT_EQ(t.LayersOf(0, 0), (Topology::LayerRange{0, 10}));
  EXPECT_EQ(t.LayersOf(1, 0), (Topology::LayerRange{10, 12}));
  EXPECT_EQ(t.LayersOf(2, 0), (Topology::LayerRange{22, 12}));
  EXPECT_EQ(t.LayersOf(3, 0), (Topology::LayerRange{34, 14}));
}

TEST(Layers, EmbeddingAndLossThatCountAsLayersTakeTheirSlots) {
  Topology t = Of(14, 4, 2);
  t.account_for_embedding = true;
  t.account_for_loss = true;
  ASSERT_TRUE(t.Check().ok()) << t.Check().error().message;
  EXPECT_EQ(t.LayersOf(0, 0), (Topology::LayerRange{0, 1}));
  EXPECT_EQ(t.LayersOf(1, 0), (Topology::LayerRange{1, 2}));
  EXPECT_EQ(t.LayersOf(0, 1), (Topology::LayerRange{7, 2}));
  EXPECT_EQ(t.LayersOf(3, 1), (Topology::LayerRange{13, 1}));
}

Topology WithLayout(const char* text, int32_t layers, int32_t pp, int32_t vpp) {
  Topology t = Of(layers, pp, vpp);
  t.layout = ParsePipelineLayout(text).value();
  return t;
}

TEST(Layers, ACustomLayoutCountsChunksAcrossStages) {
  const Topology t = WithLayout("Ett|t*3||tmL", 6, 2, 2);
  ASSERT_TRUE(t.Check().ok()) << t.Check().error().message;
  EXPECT_EQ(t.LayersOf(0, 0), (Topology::LayerRange{0, 2}));
  EXPECT_EQ(t.LayersOf(1, 0), (Topology::LayerRange{2, 3}));
  EXPECT_EQ(t.LayersOf(0, 1), (Topology::LayerRange{5, 0}));
  EXPECT_EQ(t.LayersOf(1, 1), (Topology::LayerRange{5, 1}));
  EXPECT_EQ(t.MtpAt(), (Topology::Chunk{1, 1}));
  EXPECT_EQ(t.LastLayerAt(), (Topology::Chunk{1, 1}));
}

TEST(Layers, PredictionAndOutputMayFollowTheLastLayerInStagesOfTheirOwn) {
  const Topology t = WithLayout("Et*3|(tt|)*3m|L", 9, 3, 2);
  ASSERT_TRUE(t.Check().ok()) << t.Check().error().message;
  EXPECT_EQ(t.EmbeddingAt(), (Topology::Chunk{0, 0}));
  EXPECT_EQ(t.LastLayerAt(), (Topology::Chunk{0, 1}));
  EXPECT_EQ(t.MtpAt(), (Topology::Chunk{1, 1}));
  EXPECT_EQ(t.OutputAt(), (Topology::Chunk{2, 1}));
}

TEST(Layers, WithoutALayoutPredictionIsWhereTheOutputLayerIs) {
  Topology t = Of(7, 4, 2);
  t.account_for_loss = true;  // which leaves the last chunk without a layer
  ASSERT_TRUE(t.Check().ok()) << t.Check().error().message;
  EXPECT_EQ(t.MtpAt(), (Topology::Chunk{3, 1}));
  EXPECT_EQ(t.OutputAt(), (Topology::Chunk{3, 1}));
  EXPECT_EQ(t.LastLayerAt(), (Topology::Chunk{2, 1}));
}

// Every layout that passes Check() puts every layer into exactly one chunk, in the order
// (virtual chunk, stage): Megatron's interleaved schedule.
TEST(Layers, EveryAllowedLayoutHoldsEveryLayerOnce) {
  int allowed = 0;
  for (int32_t layers = 1; layers <= 16; ++layers) {
    for (int32_t pp = 1; pp <= 4; ++pp) {
      for (int32_t vpp = 1; vpp <= 4; ++vpp) {
        for (int32_t first = -1; first <= 4; ++first) {
          for (int32_t last = -1; last <= 4; ++last) {
            for (int flags = 0; flags < 4; ++flags) {
              Topology t = Of(layers, pp, vpp);
              t.layers_in_first_stage = first;
              t.layers_in_last_stage = last;
              t.account_for_embedding = (flags & 1) != 0;
              t.account_for_loss = (flags & 2) != 0;
              if (!t.Check().ok()) continue;
              ++allowed;
              int32_t next = 0;
              for (int32_t v = 0; v < vpp; ++v) {
                for (int32_t p = 0; p < pp; ++p) {
                  const Topology::LayerRange range = t.LayersOf(p, v);
                  ASSERT_EQ(range.first, next)
                      << layers << " layers, pp " << pp << ", vpp " << vpp << ", first " << first
                      << ", last " << last << ", flags " << flags << ": chunk " << v << " of " << p;
                  ASSERT_GE(range.count, 0);
                  next += range.count;
                }
              }
              ASSERT_EQ(next, layers);
              if (first >= 0) {
                int32_t held = 0;
                for (int32_t v = 0; v < vpp; ++v) held += t.LayersOf(0, v).count;
                ASSERT_EQ(held, first);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(allowed, 300);
}

TEST(Ranks, TensorFastestThenContextThenDataPipelineSlowest) {
  Topology t = Of(4, 2, 1);
  t.world = 16;
  t.tp = 2;
  t.cp = 2;
  t.ep = 2;
  t.etp = 1;
  ASSERT_TRUE(t.Check().ok());
  EXPECT_EQ(t.dp(), 2);
  EXPECT_EQ(t.At(0), (Coordinates{0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(t.At(1), (Coordinates{1, 1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(t.At(2), (Coordinates{2, 0, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(t.At(4), (Coordinates{4, 0, 0, 1, 0, 0, 0, 2}));
  EXPECT_EQ(t.At(13), (Coordinates{13, 1, 1, 1, 0, 1, 0, 2}));
}

TEST(Ranks, CoordinatesNameEachRankOnce) {
  for (int32_t tp : {1, 2, 4}) {
    for (int32_t cp : {1, 2}) {
      for (int32_t dp : {1, 3}) {
        for (int32_t pp : {1, 2, 3}) {
          Topology t = Of(6, pp, 1);
          t.tp = tp;
          t.cp = cp;
          t.world = tp * cp * dp * pp;
          ASSERT_TRUE(t.Check().ok());
          std::set<std::tuple<int, int, int, int>> seen;
          for (int32_t r = 0; r < t.world; ++r) {
            const Coordinates at = t.At(r);
            EXPECT_EQ(at.rank, r);
            EXPECT_TRUE(seen.emplace(at.tp, at.cp, at.dp, at.pp).second);
            EXPECT_LT(at.tp, tp);
            EXPECT_LT(at.cp, cp);
            EXPECT_LT(at.dp, dp);
            EXPECT_LT(at.pp, pp);
          }
        }
      }
    }
  }
}

struct BadCase {
  const char* name;
  void (*spoil)(Topology&);
  const char* says;
};

TEST(Ranks, NumbersThatDoNotFitAreRefusedByName) {
  const BadCase cases[] = {
      {"ZeroTp", [](Topology& t) { t.tp = 0; }, "tensor parallel size 0"},
      {"NegativeWorld", [](Topology& t) { t.world = -8; }, "world -8"},
      {"HugeWorld", [](Topology& t) { t.world = 2000000000; }, "world 2000000000"},
      {"TooManyChunks", [](Topology& t) { t.vpp = 1 << 20; }, "pipeline chunks"},
      {"NoLayers", [](Topology& t) { t.num_layers = 0; }, "num_layers 0"},
      {"WorldNotDivisible", [](Topology& t) { t.tp = 3; }, "world 8 is not divisible by"},
      {"ContextNotDivisible", [](Topology& t) { t.cp = 3; }, "context parallel size 3"},
      {"ExpertsNotDivisible", [](Topology& t) { t.ep = 3; }, "expert x expert tensor"},
      {"LayersNotDivisible", [](Topology& t) { t.num_layers = 7; }, "7 is not divisible"},
      {"ChunksNotDivisible", [](Topology& t) { t.vpp = 3; }, "virtual pipeline chunks 3"},
      {"ChunksWithoutStages", [](Topology& t) { t.pp = 1, t.vpp = 2; }, "more than one"},
      {"FirstAndAccount",
       [](Topology& t) { t.layers_in_first_stage = 2, t.account_for_loss = true; },
       "exclude each other"},
      {"FirstTooMany", [](Topology& t) { t.layers_in_first_stage = 2000000000; }, "do not add up"},
      {"BothTooMany",
       [](Topology& t) { t.layers_in_first_stage = t.layers_in_last_stage = 2147483647; },
       "do not add up"},
      {"FirstAndLastLeaveSome",
       [](Topology& t) { t.layers_in_first_stage = 2, t.layers_in_last_stage = 4; },
       "do not add up"},
      {"FirstOnOneStage", [](Topology& t) { t.pp = 1, t.layers_in_first_stage = 2; },
       "more than one pipeline stage"},
      {"MiddleNotDivisible",
       [](Topology& t) { t.pp = 4, t.num_layers = 9, t.layers_in_first_stage = 2; },
       "middle pipeline stages 3"},
      {"FirstNotCutIntoChunks", [](Topology& t) { t.vpp = 2, t.layers_in_first_stage = 3; },
       "num_layers_in_first_pipeline_stage 3"},
      {"LayoutAndFirst",
       [](Topology& t) {
         t.layout = ParsePipelineLayout("Et*4|t*4L").value(), t.layers_in_first_stage = 4;
       },
       "pipeline_model_parallel_layout excludes"},
      {"LayoutAndAccount",
       [](Topology& t) {
         t.layout = ParsePipelineLayout("Et*4|t*4L").value(), t.account_for_embedding = true;
       },
       "pipeline_model_parallel_layout excludes"},
      {"LayoutOfOtherStages",
       [](Topology& t) { t.layout = ParsePipelineLayout("Et*4|tt|ttL").value(); },
       "has 3 stages, expected pipeline parallel size 2 x virtual pipeline chunks 1"},
      {"LayoutOfOtherLayers",
       [](Topology& t) { t.layout = ParsePipelineLayout("Et*4|t*3L").value(); },
       "has 7 decoder layers (t), expected num_layers 8"},
      {"LayoutPredictsEarly",
       [](Topology& t) { t.vpp = 2, t.layout = ParsePipelineLayout("Et*8|m||L").value(); },
       "in virtual pipeline chunk 0, expected the last one"}};
  for (const BadCase& c : cases) {
    SCOPED_TRACE(c.name);
    Topology t = Of(8, 2, 1);
    t.world = 8;
    ASSERT_TRUE(t.Check().ok());
    c.spoil(t);
    const Status status = t.Check();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kInvalidData);
    EXPECT_THAT(status.error().message, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace weightcast::layout
