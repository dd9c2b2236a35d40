// A bounded queue of bytes between a producer that must not wait for the network and a thread that
// drains it: what a trainer encodes into while the upload goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "base/bytes.h"
#include "base/status.h"
#include "base/task_pool.h"

namespace weightcast {

class Spool {
 public:
  using Drain = std::function<Status(ByteSpan)>;

  // Starts the thread, which calls `drain` on every block in order. At most `bytes_max` bytes wait
  // (one block may exceed it alone). The first error of `drain` ends the stream.
  Spool(int64_t bytes_max, Drain drain);
  ~Spool();  // drops what waits
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Waits while the spool is full; gives the error of `drain` if there was one. One producer.
  Status Append(ByteSpan bytes);
  // Waits until everything is drained; the result of all of it.
  Status Finish();

 private:
  void Run();

  const int64_t bytes_max_;
  const Drain drain_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Bytes> blocks_;
  int64_t waiting_bytes_ = 0;  // in blocks_ and in the block being drained
  bool closed_ = false;
  std::optional<Error> error_;
  std::optional<TaskPool> thread_{1};
};

}  // namespace weightcast
