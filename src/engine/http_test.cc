// The client against a server that answers as told.
#include "engine/http.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "engine/http_testing.h"

namespace weightcast::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TestServer Always(const std::string& reply) {
  return TestServer([reply](const std::string&, const std::string&) { return reply; });
}

TEST(Http, SendsTheBodyAndGivesTheReply) {
  TestServer server = Always(TestServer::Reply(200, "{\"a\": 1}"));
  const auto posted = Call({.url = server.url() + "/x?y=z", .body = "{}"});
  ASSERT_EQ(Text(posted), "ok");
  EXPECT_EQ(*posted, "{\"a\": 1}");
  EXPECT_EQ(Text(Call({.url = server.url() + "/empty"})), "ok");
  EXPECT_EQ(Text(Call({.method = "GET", .url = server.url() + "/got"})), "ok");
  EXPECT_THAT(server.requests(), ElementsAre("POST /x?y=z {}", "POST /empty", "GET /got"));
}

TEST(Http, NobodyThereIsUnavailable) {
  std::string url;
  {
    url = Always("").url();
  }
  EXPECT_THAT(Text(Call({.url = url})), AllOf(StartsWith("unavailable"), HasSubstr(url)));
  EXPECT_THAT(Text(Call({.url = "http://no.such.host.invalid/x"})), StartsWith("unavailable"));
  TestServer closes = Always("");
  EXPECT_THAT(Text(Call({.url = closes.url()})), StartsWith("unavailable"));
  TestServer cut = Always("HTTP/1.1 200 X\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(Text(Call({.url = cut.url()})), StartsWith("unavailable"));
}

TEST(Http, EveryCallEndsByItsTimeout) {
  TestServer slow([](const std::string&, const std::string&) {
    std::this_thread::sleep_for(milliseconds(300));
    return TestServer::Reply(200, "");
  });
  EXPECT_THAT(Text(Call({.url = slow.url(), .timeout = milliseconds(50)})),
              AllOf(StartsWith("deadline-exceeded"), HasSubstr(slow.url())));
  EXPECT_THAT(Text(Call({.url = slow.url(), .timeout = Duration(0)})),
              StartsWith("deadline-exceeded"));
}

TEST(Http, RepliesAreBounded) {
  TestServer server = Always(TestServer::Reply(200, std::string(1000, 'x')));
  EXPECT_EQ(Text(Call({.url = server.url(), .reply_bytes_max = 1000})), "ok");
  EXPECT_THAT(Text(Call({.url = server.url(), .reply_bytes_max = 999})),
              AllOf(StartsWith("invalid-data"), HasSubstr("larger than 999")));
}

TEST(Http, WhatIsNoHttpIsRefused) {
  TestServer server = Always("hello, hello, hello\r\n\r\n");
  EXPECT_THAT(Text(Call({.url = server.url()})), StartsWith("invalid-data"));
  EXPECT_THAT(Text(Call({.url = "file:///etc/hostname"})), StartsWith("invalid-argument"));
  EXPECT_THAT(Text(Call({.url = "127.0.0.1:80"})), StartsWith("invalid-argument"));
  EXPECT_THAT(Text(Call({.url = "http://["})), StartsWith("invalid-argument"));
}

TEST(Http, TheEnvironmentsProxyIsNotAsked) {
  ASSERT_EQ(::setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
  TestServer server = Always(TestServer::Reply(200, ""));
  EXPECT_EQ(Text(Call({.url = server.url()})), "ok");
  ASSERT_EQ(::unsetenv("http_proxy"), 0);
}

TEST(Http, RedirectsAreNotFollowed) {
  TestServer other = Always(TestServer::Reply(200, ""));
  TestServer server =
      Always("HTTP/1.1 307 X\r\nContent-Length: 0\r\nLocation: " + other.url() + "\r\n\r\n");
  EXPECT_THAT(Text(Call({.url = server.url()})), HasSubstr("HTTP 307"));
  EXPECT_THAT(other.requests(), ElementsAre());
}

TEST(Http, TheServersOwnMessageIsInOurs) {
  struct Case {
    int status;
    const char* body;
    const char* expected;
  };
  const Case cases[] = {
      {500, R"({"error":{"message":"out of luck"}})", "internal: URL: HTTP 500: out of luck"},
      {400, R"({"error":"short"})", "internal: URL: HTTP 400: short"},
      {422, R"({"detail":[{"msg":"x"}]})", R"(internal: URL: HTTP 422: [{"msg":"x"}])"},
      {404, "not\nfound", "internal: URL: HTTP 404: not found"},
      {500, "\xff", "internal: URL: HTTP 500: a reply that is no text"},
      {503, "", "unavailable: URL: HTTP 503: "},
      {500,
       R"({"error":{"message":"Worker failed with error 'weightcast data-loss: tensor a: bad'"}})",
       "data-loss: URL: HTTP 500: tensor a: bad'"},
      {503, R"({"error":{"message":"weightcast conflict: asleep"}})",
       "conflict: URL: HTTP 503: asleep"},
  };
  for (const Case& c : cases) {
    TestServer server = Always(TestServer::Reply(c.status, c.body));
    std::string text = Text(Call({.url = server.url()}));
    text.replace(text.find(server.url()), server.url().size(), "URL");
    EXPECT_EQ(text, c.expected);
  }
}

TEST(Http, OurErrorsAreFoundInTextsOfOthers) {
  const auto text = [](std::string_view t) { return Text(Status(ErrorOfText(t))); };
  EXPECT_EQ(text(""), "internal: ");
  EXPECT_EQ(text("weightcast failed: weightcast deadline-exceeded: slow"),
            "deadline-exceeded: slow");
  EXPECT_EQ(text("weightcast no-such-code: x"), "internal: weightcast no-such-code: x");
  EXPECT_EQ(text("E: weightcast resource-exhausted: disk"), "resource-exhausted: disk");
}

TEST(Http, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(OneLine("a\r\n\tb\x7f"), "a   b ");
  for (size_t n = 1490; n < 1510; ++n) {
    std::string text(n, 'x');
    for (int i = 0; i < 20; ++i) text += "\u6a29";
    const std::string line = OneLine(text);
    EXPECT_LE(line.size(), 1504u);
    EXPECT_THAT(line, AllOf(StartsWith(text.substr(0, 1490)), Not(HasSubstr("\xe6 "))));
    EXPECT_TRUE(line.ends_with(" ..."));
    EXPECT_EQ((line.size() - 4 - std::min<size_t>(n, 1500)) % 3, 0u) << n;
  }
}

}  // namespace
}  // namespace weightcast::engine
