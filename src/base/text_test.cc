#include "base/text.h"

#include <gtest/gtest.h>

namespace weightcast {
namespace {

TEST(JoinNamesTest, ListsUpToTheLimitAndCountsTheRest) {
  EXPECT_EQ(JoinNames({}), "");
  EXPECT_EQ(JoinNames({"a"}), "a");
  EXPECT_EQ(JoinNames({"a", "b", "c"}, 3), "a, b, c");
  EXPECT_EQ(JoinNames({"a", "b", "c"}, 2), "a, b ... and 1 more");
}

TEST(QuotedTest, EscapesWhatWouldMislead) {
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("model.é"), "\"model.é\"");
  EXPECT_EQ(Quoted("a\"b\\c\nd"), R"("a\x22b\x5cc\x0ad")");
  EXPECT_EQ(Quoted(std::string_view("\0", 1)), R"("\x00")");
}

TEST(ValidUtf8Test, AcceptsEveryScalarValue) {
  const auto encode = [](uint32_t c) {
    const auto tail = [&](unsigned shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
    if (c < 0x80) return std::string{static_cast<char>(c)};
    if (c < 0x800) return std::string{static_cast<char>(0xc0 | c >> 6), tail(0)};
    if (c < 0x10000) return std::string{static_cast<char>(0xe0 | c >> 12), tail(6), tail(0)};
    return std::string{static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
  };
  for (uint32_t c = 0; c <= 0x110000; ++c) {
    const bool scalar = c < 0x110000 && (c < 0xd800 || c > 0xdfff);
    ASSERT_EQ(ValidUtf8(encode(c)), scalar) << std::hex << c;
    if (c >= 0x80 && scalar) {
      const std::string cut = encode(c).substr(0, encode(c).size() - 1);
      ASSERT_FALSE(ValidUtf8(cut)) << std::hex << c;
      ASSERT_FALSE(ValidUtf8(cut + "a")) << std::hex << c;
    }
  }
}

TEST(ValidUtf8Test, RefusesOverlongFormsAndLoneBytes) {
  for (const std::string_view bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf", "\xf5\x80\x80\x80", "\xfe", "\xff", "ok\xe2\x82\xac\x80"}) {
    EXPECT_FALSE(ValidUtf8(bad));
  }
  EXPECT_TRUE(ValidUtf8(""));
}

TEST(MatchesGlobTest, AStarStandsForAnyCharacters) {
  struct Case {
    std::string_view pattern;
    std::string_view text;
    bool matches;
  };
  constexpr Case kCases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "anything", true},
      {"a", "a", true},
      {"a", "ab", false},
      {"a*", "a", true},
      {"a*", "ba", false},
      {"*a", "banana", true},
      {"*an*", "banana", true},
      {"b*n*a", "banana", true},
      {"b*x*a", "banana", false},
      {"**", "a", true},
      {"visual.*.weight", "visual.blocks.0.weight", true},
      {"visual.*.weight", "visual.weight", false},
      {"a.b", "axb", false},
      {"[ab]", "a", false},
      {"a*b*c", "abcbc", true},
      {"*aab", "aaaaaaab", true},
  };
  for (const Case& c : kCases) {
    EXPECT_EQ(MatchesGlob(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
  }
}

}  // namespace
}  // namespace weightcast
