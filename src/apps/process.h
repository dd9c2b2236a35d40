// Child processes: rank and host processes of `publish --shards` and of the demo.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "os/world.h"

namespace weightcast::apps {

// For main, before anything else: if this process was started by Process::Start, it is killed when
// that parent ends, however that ends. The parent says its id in the environment variable
// WEIGHTCAST_PARENT_PID, which is between these two alone and not handed on.
void DieWithParent();

class Process {
 public:
  // Starts argv[0] (which calls DieWithParent) with pipes on stdin and stdout; stderr is inherited
  // (or dropped with `quiet`).
  static Result<Process> Start(const std::vector<std::string>& argv, bool quiet = false);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // kills and reaps what still runs

  struct Exit {
    int code = 0;     // exit status; 128 + signal if it was killed
    std::string out;  // its stdout
  };
  // Writes a line to its stdin.
  Status Tell(const std::string& line);
  // One line of its stdout, without the newline. Errors: kDeadlineExceeded, kUnavailable (it
  // ended).
  Result<std::string> Hear(Duration timeout);
  // True while it runs; does not reap.
  bool running() const;

  // Closes its stdin, reads stdout to its end and reaps. Errors: kDeadlineExceeded (the child is
  // killed).
  Result<Exit> Wait(Duration timeout);
  void Kill();  // SIGKILL
  int pid() const { return pid_; }

 private:
  Process(int pid, int in, int out) : pid_(pid), in_(in), out_(out) {}
  // Appends what is there to heard_; false at the end of the stream.
  Result<bool> Read(const os::Deadline& deadline);

  int pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string heard_;
};

}  // namespace weightcast::apps
