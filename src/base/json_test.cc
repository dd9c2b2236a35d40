#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast {
namespace {

using ::testing::HasSubstr;

TEST(ParseJsonTest, KeepsTheOrderOfFields) {
  const Json json = *ParseJson(R"({"b": 1, "a": [true, null, "x"], "c": {}})");
  EXPECT_EQ(json.dump(), R"({"b":1,"a":[true,null,"x"],"c":{}})");
}

TEST(ParseJsonTest, TakesEveryIntegerThatFits64Bits) {
  EXPECT_EQ(ParseJson("9223372036854775807")->get<int64_t>(), INT64_MAX);
  EXPECT_EQ(ParseJson("-9223372036854775808")->get<int64_t>(), INT64_MIN);
  EXPECT_EQ(ParseJson("18446744073709551615")->get<uint64_t>(), UINT64_MAX);
}

TEST(ParseJsonTest, TheSameKeyMayStandInTwoObjects) {
  EXPECT_TRUE(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})").ok());
}

struct BadCase {
  std::string_view name;
  std::string text;
  std::string_view says;
};

TEST(ParseJsonTest, RefusesWhatIsNotOneStrictDocument) {
  const BadCase kCases[] = {
      {"empty", "", "byte 1"},
      {"blank", "  ", "end of input"},
      {"truncated object", R"({"a": 1)", "byte 8"},
      {"truncated string", R"("abc)", "missing closing quote"},
      {"trailing bytes", "{} x", "byte 4"},
      {"two documents", "1 2", "byte 3"},
      {"NUL behind", std::string("{}\0", 3), "byte 3"},
      {"comment", "/* */ 1", "byte 1"},
      {"trailing comma", "[1,]", "byte 4"},
      {"single quotes", "{'a': 1}", "byte 2"},
      {"NaN", "NaN", "byte 1"},
      {"leading zero", "01", "byte 2"},
      {"hexadecimal", "0x10", "byte 2"},
      {"number out of range", "1e999", "number overflow"},
      {"control character in a string", "\"a\nb\"", "control character"},
      {"lone surrogate", R"("\ud800")", "surrogate"},
      {"invalid UTF-8", "\"\xff\"", "UTF-8"},
      {"overlong UTF-8", "\"\xc0\xaf\"", "UTF-8"},
      {"UTF-8 cut short", "\"\xe2\x82\"", "UTF-8"},
      {"duplicate key", R"({"a": 1, "a": 2})", R"(duplicate key "a")"},
      {"duplicate key by escape", R"({"a": 1, "\u0061": 2})", R"(duplicate key "a")"},
      {"duplicate key below", R"([{"x": {"k": 1, "j": 2, "k": 1}}])", R"(duplicate key "k")"},
  };
  for (const BadCase& c : kCases) {
    const Result<Json> json = ParseJson(c.text);
    ASSERT_FALSE(json.ok()) << c.name;
    EXPECT_EQ(json.error().code, Code::kInvalidData) << c.name;
    EXPECT_THAT(json.error().message, HasSubstr(c.says)) << c.name;
  }
}

TEST(ParseJsonTest, RefusesEveryTruncationOfADocument) {
  const std::string text =
      R"({"tensor": {"shape": [1, 2], "dtype": "BF16", "on": true}, "n": -1.5})";
  ASSERT_TRUE(ParseJson(text).ok());
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(ParseJson(text.substr(0, n)).ok()) << n;
}

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(ParseJsonTest, BoundsDepth) {
  EXPECT_TRUE(ParseJson(Nested(3), {.depth_max = 3}).ok());
  EXPECT_THAT(ParseJson(Nested(4), {.depth_max = 3}).error().message, HasSubstr("deeper than 3"));
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).ok());
  EXPECT_FALSE(ParseJson(R"({"a":{"a":{"a":{}}}})", {.depth_max = 3}).ok());
  EXPECT_TRUE(ParseJson("[[],[],[],[]]", {.depth_max = 2}).ok()) << "depth is not count";
}

TEST(ParseJsonTest, BoundsSizeBeforeItParses) {
  EXPECT_TRUE(ParseJson("[1]", {.bytes_max = 3}).ok());
  EXPECT_THAT(ParseJson("[1] ", {.bytes_max = 3}).error().message, HasSubstr("4 bytes, at most 3"));
}

TEST(JsonFieldTest, GivesTypedFields) {
  const Json json = *ParseJson(R"({"s": "x", "i": -3, "b": true, "o": {"k": 1}, "a": [1]})");
  EXPECT_EQ(*JsonString(json, "s"), "x");
  EXPECT_EQ(*JsonInt(json, "i"), -3);
  EXPECT_TRUE(*JsonBool(json, "b"));
  EXPECT_EQ((*JsonObject(json, "o"))->size(), 1u);
  EXPECT_EQ((*JsonArray(json, "a"))->size(), 1u);
}

TEST(JsonFieldTest, NamesTheFieldWhatWasExpectedAndWhatWasFound) {
  const Json json = *ParseJson(R"({"s": 1, "i": 1.5, "big": 9223372036854775808, "n": null})");
  EXPECT_EQ(JsonString(json, "s").error().message, R"(field "s": expected a string, found number)");
  EXPECT_THAT(JsonInt(json, "i").error().message, HasSubstr("expected an integer"));
  EXPECT_THAT(JsonInt(json, "big").error().message, HasSubstr("9223372036854775808"));
  EXPECT_THAT(JsonBool(json, "n").error().message, HasSubstr("expected true or false, found null"));
  EXPECT_THAT(JsonObject(json, "s").error().message, HasSubstr("expected an object"));
  EXPECT_THAT(JsonArray(json, "s").error().message, HasSubstr("expected an array"));
  EXPECT_EQ(JsonInt(json, "gone").error().message, R"(field "gone" is missing)");
  EXPECT_THAT(JsonInt(Json::array(), "k").error().message, HasSubstr("found array"));
}

}  // namespace
}  // namespace weightcast
