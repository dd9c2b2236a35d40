#include "base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace weightcast {
namespace {

using ::testing::HasSubstr;

Result<int> Half(int n) {
  if (n % 2 != 0) return Error{Code::kInvalidArgument, std::to_string(n) + " is odd"};
  return n / 2;
}

Result<int> Quarter(int n) {
  const int half = WC_TRY(Half(n));
  return WC_TRY(Half(half).With("the half of " + std::to_string(n)));
}

Status Both(int a, int b) {
  WC_TRY(Half(a));
  WC_TRY(Half(b).With("second"));
  return Ok();
}

TEST(StatusTest, TryYieldsTheValueOrReturnsTheError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).error().message, "7 is odd");
  EXPECT_EQ(Quarter(6).error().message, "the half of 6: 3 is odd");
  EXPECT_EQ(Quarter(6).error().code, Code::kInvalidArgument);
}

TEST(StatusTest, TryWorksInAStatusFunctionAndNamesTheThing) {
  EXPECT_TRUE(Both(2, 4).ok());
  EXPECT_EQ(Both(2, 5).error().message, "second: 5 is odd");
}

TEST(StatusTest, TryMovesWhatCannotBeCopied) {
  auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  auto take = [&]() -> Result<int> {
    std::unique_ptr<int> owned = WC_TRY(make().With("never seen"));
    return *owned;
  };
  EXPECT_EQ(*take(), 5);
}

TEST(StatusTest, WithKeepsTheCodeAndLeavesSuccessAlone) {
  const Error error = Error{Code::kConflict, "held"}.With("image 3").With("host a");
  EXPECT_EQ(error.message, "host a: image 3: held");
  EXPECT_EQ(error.code, Code::kConflict);
  EXPECT_TRUE(Ok().With("anything").ok());
}

TEST(StatusTest, EveryCodeHasItsNameAndExitCode) {
  struct Case {
    Code code;
    std::string_view name;
    int exit_code;
  };
  // docs/cli.md, "Exit codes".
  constexpr Case kCases[] = {
      {Code::kInternal, "internal", 1},
      {Code::kInvalidArgument, "invalid-argument", 2},
      {Code::kDataLoss, "data-loss", 3},
      {Code::kInvalidData, "invalid-data", 3},
      {Code::kConflict, "conflict", 4},
      {Code::kAlreadyExists, "already-exists", 4},
      {Code::kNotFound, "not-found", 4},
      {Code::kAborted, "aborted", 4},
      {Code::kUnavailable, "unavailable", 5},
      {Code::kDeadlineExceeded, "deadline-exceeded", 5},
      {Code::kResourceExhausted, "resource-exhausted", 5},
  };
  for (const Case& c : kCases) {
    EXPECT_EQ(CodeName(c.code), c.name);
    EXPECT_EQ(ExitCode(c.code), c.exit_code) << c.name;
  }
}

TEST(StatusDeathTest, AFailedCheckSaysWhereAndWhat) {
  EXPECT_DEATH(WC_CHECK(1 + 1 == 3), HasSubstr("status_test.cc"));
  EXPECT_DEATH(WC_CHECK(1 + 1 == 3), HasSubstr("1 + 1 == 3 does not hold"));
}

}  // namespace
}  // namespace weightcast
