#include "base/task_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace weightcast {

int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Status ParallelFor(size_t items, int threads,
                   const std::function<Status(size_t item, int worker)>& work) {
  if (threads <= 0) threads = DefaultThreads();
  threads = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), std::max<size_t>(items, 1)));

  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  Mutex mu;
  std::optional<Error> first;
  size_t first_item = 0;

  auto run = [&](int worker) {
    while (!stop) {
      const size_t item = next++;
      if (item >= items) return;
      Status status = work(item, worker);
      if (status.ok()) continue;
      MutexLock lock(mu);
      if (!first || item < first_item) {
        first = status.error();
        first_item = item;
      }
      stop = true;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& thread : others) thread.join();
  if (first) return *first;
  return Ok();
}

}  // namespace weightcast
