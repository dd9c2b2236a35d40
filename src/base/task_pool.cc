#include "base/task_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace weightcast {

int ThreadCount(int asked) {
  if (asked > 0) return asked;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Status ParallelFor(size_t items, int threads,
                   const std::function<Status(size_t item, int worker)>& work) {
  threads = static_cast<int>(
      std::min<size_t>(static_cast<size_t>(ThreadCount(threads)), std::max<size_t>(items, 1)));

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

struct TaskPool::State {
  explicit State(int most) : threads_max(static_cast<size_t>(std::max(1, most))) {}

  void Work() {
    mu.Lock();
    while (true) {
      while (tasks.empty() && !closing) {
        ++idle;
        wake.Wait(mu);
        --idle;
      }
      if (tasks.empty()) break;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      mu.Unlock();
      task();
      task = nullptr;  // what it holds dies outside the lock
      mu.Lock();
    }
    mu.Unlock();
  }

  const size_t threads_max;
  Mutex mu;
  CondVar wake;
  std::deque<std::function<void()>> tasks WC_GUARDED_BY(mu);
  std::vector<std::thread> threads WC_GUARDED_BY(mu);
  size_t idle WC_GUARDED_BY(mu) = 0;
  bool closing WC_GUARDED_BY(mu) = false;
};

TaskPool::TaskPool(int threads_max) : state_(std::make_unique<State>(threads_max)) {}

TaskPool::~TaskPool() {
  std::vector<std::thread> threads;
  while (true) {  // a task that still runs may Run another, and so start a thread
    {
      MutexLock lock(state_->mu);
      state_->closing = true;
      threads.swap(state_->threads);
    }
    if (threads.empty()) return;
    state_->wake.NotifyAll();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
}

void TaskPool::Run(std::function<void()> task) {
  MutexLock lock(state_->mu);
  state_->tasks.push_back(std::move(task));
  if (state_->idle < state_->tasks.size() && state_->threads.size() < state_->threads_max) {
    state_->threads.emplace_back([state = state_.get()] { state->Work(); });
  }
  state_->wake.NotifyOne();
}

}  // namespace weightcast
