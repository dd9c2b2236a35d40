#include "engine/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "base/json.h"
#include "base/text.h"

namespace weightcast::engine {
namespace {

constexpr size_t kLineBytesMax = 1500;  // two of them fit a text of the catalog

// Before the first handle is made, once a process; libcurl frees it at exit, or nobody does.
bool CurlIsThere() {
  static const bool there = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return there;
}

struct Reply {
  std::string body;
  size_t bytes_max = 0;
  bool too_large = false;
};

size_t Receive(const char* data, size_t size, size_t count, void* to) {
  auto& reply = *static_cast<Reply*>(to);
  const size_t bytes = size * count;
  if (bytes > reply.bytes_max - reply.body.size()) {
    reply.too_large = true;
    return 0;  // ends the transfer
  }
  reply.body.append(data, bytes);
  return bytes;
}

long Millis(Duration d) {
  const int64_t ms = std::chrono::ceil<milliseconds>(d).count();  // 0 would mean "for ever"
  return std::clamp<int64_t>(ms, 1, std::numeric_limits<int32_t>::max());
}

Error TransportError(CURLcode code, const char* detail, const HttpCall& call) {
  const std::string text = *detail != '\0' ? detail : curl_easy_strerror(code);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return {Code::kDeadlineExceeded, call.url + ": " + text};
    case CURLE_URL_MALFORMAT:
      return {Code::kInvalidArgument, call.url + ": " + text};
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:  // HTTP/0.9, which is any bytes
      return {Code::kInvalidData, call.url + ": the reply is no HTTP/1.1: " + text};
    default:
      return {Code::kUnavailable, call.url + ": " + text};
  }
}

// The server's own words: {"error": {"message"}} or {"detail"}; else the body as it is.
std::string ServerMessage(const std::string& body) {
  const Result<Json> json = ParseJson(body);
  if (json.ok() && json->is_object()) {
    const Json error = json->value("error", Json());
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
    if (error.is_string()) return error.get<std::string>();
    if (json->contains("detail")) return (*json)["detail"].dump();
  }
  return body;
}

Error HttpError(long status, const std::string& body, const HttpCall& call) {
  const std::string message = ServerMessage(body);
  Error error = ErrorOfText(ValidUtf8(message) ? OneLine(message) : "a reply that is no text");
  if (error.code == Code::kInternal && status >= 502 && status <= 504) {
    error.code = Code::kUnavailable;
  }
  return error.With(call.url + ": HTTP " + std::to_string(status));
}

using Handle = std::unique_ptr<CURL, decltype([](CURL* curl) { curl_easy_cleanup(curl); })>;
using Headers =
    std::unique_ptr<curl_slist, decltype([](curl_slist* l) { curl_slist_free_all(l); })>;

}  // namespace

std::string OneLine(std::string_view text) {
  std::string line(text.substr(0, kLineBytesMax));
  const auto continues = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  if (line.size() < text.size()) {
    while (!line.empty() && continues(text[line.size()])) line.pop_back();
    line += " ...";
  }
  std::ranges::replace_if(line, [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }, ' ');
  return line;
}

Error ErrorOfText(std::string_view text) {
  constexpr std::string_view kMark = "weightcast ";
  for (size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) {
    const std::string_view rest = text.substr(at + kMark.size());
    for (auto code = Code::kInternal; code <= Code::kResourceExhausted;
         code = static_cast<Code>(static_cast<int>(code) + 1)) {
      const std::string begin = std::string(CodeName(code)) + ": ";
      if (rest.starts_with(begin)) return {code, std::string(rest.substr(begin.size()))};
    }
  }
  return {Code::kInternal, std::string(text)};
}

Result<std::string> Call(const HttpCall& call) {
  if (!call.url.starts_with("http://") && !call.url.starts_with("https://")) {
    return Error{Code::kInvalidArgument, Quoted(call.url) + ": expected http://HOST:PORT"};
  }
  const Handle curl(CurlIsThere() ? curl_easy_init() : nullptr);
  if (curl == nullptr) return Error{Code::kInternal, "libcurl does not start"};
  Headers headers(curl_slist_append(nullptr, "Expect:"));  // bodies are small: send them at once
  if (!call.body.empty()) {
    curl_slist_append(headers.get(), "Content-Type: application/json");
  }
  Reply reply{{}, static_cast<size_t>(call.reply_bytes_max)};
  char detail[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) {
    WC_CHECK(curl_easy_setopt(curl.get(), option, value) == CURLE_OK);
  };
  set(CURLOPT_URL, call.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_TIMEOUT_MS, Millis(call.timeout));
  set(CURLOPT_CONNECTTIMEOUT_MS, Millis(std::min(call.connect_timeout, call.timeout)));
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(detail));
  set(CURLOPT_WRITEFUNCTION, &Receive);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&reply));
  if (call.method == "POST") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDS, call.body.c_str());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
  }
  const CURLcode code = curl_easy_perform(curl.get());
  if (reply.too_large) {
    return Error{Code::kInvalidData, call.url + ": the reply is larger than " +
                                         std::to_string(call.reply_bytes_max) + " bytes"};
  }
  if (code != CURLE_OK) return TransportError(code, static_cast<const char*>(detail), call);
  long status = 0;
  WC_CHECK(curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status) == CURLE_OK);
  if (status >= 200 && status < 300) return std::move(reply.body);
  return HttpError(status, reply.body, call);
}

}  // namespace weightcast::engine
