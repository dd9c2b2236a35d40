#include "base/spool.h"

namespace weightcast {

Spool::Spool(int64_t bytes_max, Drain drain) : bytes_max_(bytes_max), drain_(std::move(drain)) {
  thread_->Run([this] { Run(); });
}

Spool::~Spool() {
  {
    std::lock_guard lock(mu_);
    closed_ = true;
    blocks_.clear();
  }
  changed_.notify_all();
  thread_.reset();  // waits for Run to return
}

Status Spool::Append(ByteSpan bytes) {
  std::unique_lock lock(mu_);
  const auto size = static_cast<int64_t>(bytes.size());
  changed_.wait(
      lock, [&] { return error_ || waiting_bytes_ == 0 || waiting_bytes_ + size <= bytes_max_; });
  if (error_) return *error_;
  blocks_.emplace_back(bytes.begin(), bytes.end());
  waiting_bytes_ += size;
  changed_.notify_all();
  return Ok();
}

Status Spool::Finish() {
  {
    std::lock_guard lock(mu_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.reset();  // waits for Run to return
  if (error_) return *error_;
  return Ok();
}

void Spool::Run() {
  for (;;) {
    Bytes block;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [&] { return closed_ || !blocks_.empty(); });
      if (blocks_.empty()) return;
      block = std::move(blocks_.front());
      blocks_.pop_front();
    }
    Status status = drain_(block);
    std::lock_guard lock(mu_);
    waiting_bytes_ -= static_cast<int64_t>(block.size());
    if (!status.ok()) {
      error_ = status.error();
      blocks_.clear();
      waiting_bytes_ = 0;
      changed_.notify_all();
      return;
    }
    changed_.notify_all();
  }
}

}  // namespace weightcast
