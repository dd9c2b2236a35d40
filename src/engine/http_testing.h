// An HTTP server for tests: one request a connection, answered by a function, on a thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace weightcast::engine {

class TestServer {
 public:
  // From "POST /path" and the body to the raw reply; an empty one closes the connection.
  using Answer = std::function<std::string(const std::string& line, const std::string& body)>;

  explicit TestServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    WC_CHECK(::bind(listener_, any, size) == 0 && ::listen(listener_, 16) == 0);
    WC_CHECK(::getsockname(listener_, any, &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

  const std::string& url() const { return url_; }
  // "POST /path {body}" of every request so far.
  std::vector<std::string> requests() {
    const std::lock_guard lock(mu_);
    return requests_;
  }

  static std::string Reply(int status, const std::string& body) {
    return "HTTP/1.1 " + std::to_string(status) +
           " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

 private:
  void Serve() {
    for (;;) {
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      Talk(peer);
      ::close(peer);
    }
  }

  void Talk(int peer) {
    std::string in;
    char buffer[4096];
    for (;;) {
      const size_t end = in.find("\r\n\r\n");
      if (end != in.npos && in.size() >= end + 4 + Length(in)) break;
      const ssize_t n = ::recv(peer, buffer, sizeof buffer, 0);
      if (n <= 0) return;
      in.append(buffer, static_cast<size_t>(n));
    }
    const std::string line = in.substr(0, in.find(" HTTP/"));
    const std::string body = in.substr(in.find("\r\n\r\n") + 4);
    {
      const std::lock_guard lock(mu_);
      requests_.push_back(body.empty() ? line : line + " " + body);
    }
    const std::string reply = answer_(line, body);
    for (size_t at = 0; at < reply.size();) {
      const ssize_t n = ::send(peer, reply.data() + at, reply.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }

  static size_t Length(const std::string& in) {
    constexpr std::string_view kName = "Content-Length: ";
    const size_t at = in.find(kName);
    return at == in.npos ? 0 : std::stoul(in.substr(at + kName.size()));
  }

  const Answer answer_;
  int listener_ = -1;
  std::string url_;
  std::mutex mu_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

// "conflict: message", or "ok".
template <typename T>
std::string Text(const Result<T>& result) {
  if (result.ok()) return "ok";
  return std::string(CodeName(result.error().code)) + ": " + result.error().message;
}

}  // namespace weightcast::engine
