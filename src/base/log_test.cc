#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast {
namespace {

using ::testing::ElementsAre;

TEST(LogTest, ALineIsTheEventWithItsFieldsAndTheLevelIsALowerBound) {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  SetLogLevel(LogLevel::kInfo);
  Log(LogLevel::kDebug, "too small to tell");
  Log(LogLevel::kInfo, "part stored", {{"version", "41"}, {"bytes", "8123"}});
  Log(LogLevel::kError, "plain");
  SetLogSink({});
  SetLogLevel(LogLevel::kWarning);
  EXPECT_THAT(lines, ElementsAre("part stored version=41 bytes=8123", "plain"));
}

TEST(LogTest, WithoutASinkItGoesToStderr) {
  testing::internal::CaptureStderr();
  Log(LogLevel::kWarning, "braces {} stay", {{"a", "1"}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("braces {} stay a=1"));
}

}  // namespace
}  // namespace weightcast
