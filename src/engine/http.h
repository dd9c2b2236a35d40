// One HTTP/1.1 call with a deadline: a small client on libcurl, for the routes of engines.
//
// Every call has a connection of its own (servers close idle ones), follows no redirect and asks no
// proxy: an engine is reached as its URL says, whatever the environment holds. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/units.h"

namespace weightcast::engine {

struct HttpCall {
  std::string method = "POST";  // or "GET"
  std::string url;
  std::string body;  // JSON; empty: none
  Duration timeout = seconds(60);
  Duration connect_timeout = seconds(5);
  int64_t reply_bytes_max = kMiB;
};

// The body of a 2xx reply. Errors, each naming the URL:
//   kUnavailable        not reachable, or the connection broke; HTTP 502, 503, 504
//   kDeadlineExceeded   no whole reply within the timeout
//   kInvalidArgument    no URL for http or https
//   kInvalidData        a reply that is no HTTP, or larger than its bound
//   any other HTTP status: what the server's own message says, see ErrorOfText
Result<std::string> Call(const HttpCall& call);

// An error of ours that came as text through somebody else's: whatever follows the first
// "weightcast <code name>: " in it, with that code. Without one: all of it, kInternal.
Error ErrorOfText(std::string_view text);

// What others say, fit for one line of a message or row: control characters are spaces, and of long
// texts (tracebacks) the end is cut off.
//   Requires: text is UTF-8.
std::string OneLine(std::string_view text);

}  // namespace weightcast::engine
