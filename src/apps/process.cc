#include "apps/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "os/world.h"

extern char** environ;

namespace weightcast::apps {
namespace {

Error Errno(const std::string& what) {
  return {Code::kUnavailable, what + ": " + std::strerror(errno)};
}

constexpr const char* kParentPid = "WEIGHTCAST_PARENT_PID";

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

void DieWithParent() {
  const char* parent = std::getenv(kParentPid);
  if (parent == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before the line above.
  if (std::to_string(::getppid()) != parent) std::_Exit(ExitCode(Code::kUnavailable));
  ::unsetenv(kParentPid);
}

Result<Process> Process::Start(const std::vector<std::string>& argv, bool quiet) {
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return Errno("pipe");
  if (::pipe2(out, O_CLOEXEC) != 0) {
    ::close(in[0]);
    ::close(in[1]);
    return Errno("pipe");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (quiet) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  std::vector<std::string> variables = {std::string(kParentPid) + "=" + std::to_string(::getpid())};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, Pointers(argv).data(),
                                   Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  if (failed != 0) {
    ::close(in[1]);
    ::close(out[0]);
    return Error{Code::kUnavailable, argv[0] + ": " + std::strerror(failed)};
  }
  return Process(pid, in[1], out[0]);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      heard_(std::move(other.heard_)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(heard_, other.heard_);
  return *this;
}

Process::~Process() {
  if (pid_ > 0) {
    Kill();
    ::waitpid(pid_, nullptr, 0);
  }
  if (in_ >= 0) ::close(in_);
  if (out_ >= 0) ::close(out_);
}

void Process::Kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

bool Process::running() const {
  siginfo_t info{};
  return pid_ > 0 &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

Status Process::Tell(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return Errno("process " + std::to_string(pid_));
  }
  return Ok();
}

Result<bool> Process::Read(const os::Deadline& deadline) {
  char buffer[65536];
  for (;;) {
    if (deadline.passed()) {
      Kill();
      return Error{Code::kDeadlineExceeded,
                   "process " + std::to_string(pid_) + " did not answer in time"};
    }
    pollfd poll{out_, POLLIN, 0};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline.left()).count();
    const int ready = ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(left + 1, 1000)));
    if (ready < 0 && errno != EINTR) return Errno("poll");
    if (ready <= 0) continue;
    const ssize_t n = ::read(out_, buffer, sizeof buffer);
    if (n > 0) heard_.append(buffer, static_cast<size_t>(n));
    if (n >= 0) return n > 0;
  }
}

Result<std::string> Process::Hear(Duration timeout) {
  const os::Deadline deadline(os::RealWorld().clock, timeout);
  for (;;) {
    if (const size_t end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    if (!WC_TRY(Read(deadline))) {
      return Error{Code::kUnavailable, "process " + std::to_string(pid_) + " ended"};
    }
  }
}

Result<Process::Exit> Process::Wait(Duration timeout) {
  if (in_ >= 0) ::close(std::exchange(in_, -1));
  const os::Deadline deadline(os::RealWorld().clock, timeout);
  while (WC_TRY(Read(deadline))) {
  }
  Exit exit;
  exit.out = std::move(heard_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  exit.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit;
}

}  // namespace weightcast::apps
