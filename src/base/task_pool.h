// Threads for work that is cut into independent items. The one place below the network leaves that
// starts threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/status.h"

namespace weightcast {

// How many workers an option asks for; 0 (or less): the CPUs this process may run on.
int ThreadCount(int asked);

// Calls work(item, worker) for every item in [0, items) on `threads` threads (the caller is one of
// them); `worker` is in [0, threads), for scratch space. Items start in order. After the first
// error no new item starts; the error of the lowest item that failed is returned, whatever the
// timing. Waits for all started items.
Status ParallelFor(size_t items, int threads,
                   const std::function<Status(size_t item, int worker)>& work);

// Threads for work that may outlive the call that asked for it. Any thread may call it.
class TaskPool {
 public:
  explicit TaskPool(int threads_max);
  ~TaskPool();  // waits for all tasks, started or not
  // Never blocks. Tasks start in order, at most threads_max at a time; a thread is started when a
  // task finds none idle. `task` may call Run.
  void Run(std::function<void()> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightcast
