#include "layout/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weightcast::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<PipelineChunk> Chunks(std::string_view text) {
  Result<std::vector<PipelineChunk>> chunks = ParsePipelineLayout(text);
  EXPECT_TRUE(chunks.ok()) << chunks.error().message;
  return chunks.ok() ? *chunks : std::vector<PipelineChunk>{};
}

TEST(PipelineLayout, LettersWithAStageOfOneKindAfterTheOther) {
  EXPECT_THAT(Chunks("Ett|t*3|tmL"),
              ElementsAre(PipelineChunk{0, 2, 0}, PipelineChunk{2, 3, 0}, PipelineChunk{5, 1, 1}));
}

TEST(PipelineLayout, AStageMayHaveNoDecoderLayer) {
  EXPECT_THAT(Chunks("E|tt||t|L"),
              ElementsAre(PipelineChunk{0, 0, 0}, PipelineChunk{0, 2, 0}, PipelineChunk{2, 0, 0},
                          PipelineChunk{2, 1, 0}, PipelineChunk{3, 0, 0}));
}

TEST(PipelineLayout, GroupsRepeatOverTheEndsOfStages) {
  const std::vector<PipelineChunk> chunks = Chunks("Et*3|(tt|)*29,m|L");  // DeepSeek-V3's
  ASSERT_EQ(chunks.size(), 32u);
  EXPECT_EQ(chunks[0], (PipelineChunk{0, 3, 0}));
  EXPECT_EQ(chunks[1], (PipelineChunk{3, 2, 0}));
  EXPECT_EQ(chunks[29], (PipelineChunk{59, 2, 0}));
  EXPECT_EQ(chunks[30], (PipelineChunk{61, 0, 1}));
  EXPECT_EQ(chunks[31], (PipelineChunk{61, 0, 0}));
}

struct Equal {
  const char* name;
  const char* text;
  const char* written_out;
};

TEST(PipelineLayout, SpellingsOfTheSame) {
  const Equal cases[] = {
      {"RepeatInsideAGroup", "E(t*2|)*2L", "Ett|tt|L"},
      {"GroupBeginsWithAnEnd", "Ett(|t)*2L", "Ett|t|tL"},
      {"EndRepeated", "Et|*3tL", "Et|||tL"},
      {"NoTimes", "Et|m*0tL", "Et|tL"},
      {"CommasAnywhere", ",E,t*1,2,|,L", "Et*12|L"},
      {"Json", R"([["embedding","decoder"],[],["decoder","mtp","loss"]])", "Et||tmL"},
      {"Python", "[['embedding', 'decoder'], [], ['decoder', 'mtp', 'loss']]", "Et||tmL"},
      {"Enumeration", "[[<LayerType.embedding: 1>, <LayerType.decoder: 4>], [<LayerType.loss: 2>]]",
       "Et|L"},
      {"Spaces", "[ [ 'embedding' ] , [ 'decoder' , 'loss' ] ] ", "E|tL"},
  };
  for (const Equal& c : cases) EXPECT_EQ(Chunks(c.text), Chunks(c.written_out)) << c.name;
}

struct Refused {
  const char* name;
  const char* text;
  const char* says;
};

TEST(PipelineLayout, WhatIsNoneIsRefusedWithItsPlace) {
  const Refused cases[] = {
      {"Empty", "", "no stage"},
      {"OnlyCommas", ",,", "no stage"},
      {"UnknownLetter", "Etx|L", "at 2: expected one of E t m L | ( ), found \"x|L\""},
      {"Space", "Et |L", "at 2: expected one of"},
      {"NestedGroups", "E((t)*2|)*2L", "at 2: expected no group inside a group"},
      {"OpenGroup", "E(tt", "found the end"},
      {"GroupWithoutTimes", "E(tt)L", "at 5: expected '*' after a group, found \"L\""},
      {"CloseAlone", "Et)L", "at 2: expected one of"},
      {"TimesMissing", "Et*|L", "at 3: expected how often"},
      {"TimesTwice", "Et*2*3|L", "at 4: expected one of"},
      {"TimesNegative", "Et*-1|L", "at 3: expected how often"},
      {"TimesHuge", "Et*99999999999999999999|L", "at 3: expected how often"},
      {"TooMany", "Et*1048576|L", "more than 1048576 modules"},
      {"TooManyByGroups", "E(t*1024|)*1024L", "more than 1048576 modules"},
      {"NoEmbedding", "tt|L", "expected one embedding (E), first of the first stage, found 0"},
      {"EmbeddingLater", "t|EtL", "found 1, module 2"},
      {"EmbeddingInTheSecondStage", "|EtL", "found 1, module 1"},
      {"TwoEmbeddings", "EE|L", "found 2"},
      {"NoLoss", "Ett|", "expected one loss (L), last of the last stage, found 0"},
      {"LossEarlier", "EL|t", "found 1, module 1"},
      {"LayerBehindPrediction", "Etm|tL", "module 4: a decoder layer (t) behind"},
      {"LayerBehindPredictionInAStage", "E|mtL", "module 3: a decoder layer (t) behind"},
      {"PredictionInTwoStages", "Et|m|mL", "module 5: prediction modules (m) in more than one"},
      {"NoList", "[", "at 1: expected '[', found the end"},
      {"FlatList", "['embedding', 'loss']", "at 1: expected '['"},
      {"DeepList", "[[['embedding', 'loss']]]", "at 2: expected a word in quotes"},
      {"UnknownWord", "[['embedding', 'encoder', 'loss']]", "expected embedding, decoder, mtp"},
      {"LongerWord", "[['embeddings', 'loss']]", "expected the word's end"},
      {"OtherQuote", "[['embedding\", 'loss']]", "expected the word's end"},
      {"OpenMember", "[[<LayerType.embedding>]]", "expected ': '"},
      {"ByteBehind", "[['embedding', 'loss']]x", "expected the end, found \"x\""},
      {"EmptyList", "[]", "no stage"},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    const auto chunks = ParsePipelineLayout(c.text);
    ASSERT_FALSE(chunks.ok());
    EXPECT_EQ(chunks.error().code, Code::kInvalidData);
    EXPECT_THAT(chunks.error().message, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace weightcast::layout
