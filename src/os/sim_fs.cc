#include "os/sim_fs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "os/errors.h"

namespace weightcast::os {
namespace {

class SimMapping final : public Mapping {
 public:
  SimMapping(std::shared_ptr<SimState> state, SimInodePtr file, std::string path, int64_t life,
             int64_t size, bool writable)
      : state_(std::move(state)),
        file_(std::move(file)),
        path_(std::move(path)),
        life_(life),
        size_(size),
        writable_(writable) {}

  ByteSpan bytes() const override { return {file_->bytes->data(), static_cast<size_t>(size_)}; }

  void Update(int64_t offset, int64_t length,
              const std::function<void(MutableByteSpan)>& write) override {
    WC_CHECK(writable_);
    WC_CHECK(offset >= 0 && length >= 0 && offset <= size_ - length);
    // A copy, without the lock: `write` may call the file system, and a dead process changes
    // nothing.
    const ByteSpan before =
        bytes().subspan(static_cast<size_t>(offset), static_cast<size_t>(length));
    Bytes after(before.begin(), before.end());
    write(after);
    MutexLock lock(state_->mu);
    if (!state_->Alive(path_, life_).ok()) return;
    const Result<bool> happens = state_->Mutate("Update", path_);
    if (!happens.ok()) {
      if (state_->crashed) state_->torn = {file_, offset, std::move(after)};
      return;
    }
    if (*happens) WritePages(offset, after);
  }

  void WillNeed(int64_t, int64_t) override {}
  void DontNeed(int64_t, int64_t) override {}

 private:
  void WritePages(int64_t offset, ByteSpan after) WC_REQUIRES(state_->mu) {
    const int64_t end = offset + static_cast<int64_t>(after.size());
    for (int64_t at = offset; at < end;) {
      const int64_t next = std::min(end, (at / kSimPage + 1) * kSimPage);
      const auto length = static_cast<size_t>(next - at);
      const ByteSpan page = after.subspan(static_cast<size_t>(at - offset), length);
      if (std::memcmp(file_->bytes->data() + at, page.data(), length) != 0) {
        WC_CHECK(state_->Fits(*file_, at, next) == next);  // the kernel sends SIGBUS here
        SimDisk::Write(*file_, at, page);
        file_->modified_unix_ms = state_->clock.UnixMillis();
      }
      at = next;
    }
  }

  const std::shared_ptr<SimState> state_;
  const SimInodePtr file_;
  const std::string path_;
  const int64_t life_;
  const int64_t size_;
  const bool writable_;
};

class SimFile final : public File {
 public:
  SimFile(std::shared_ptr<SimState> state, SimInodePtr file, std::string path, int64_t life,
          bool writable)
      : state_(std::move(state)),
        file_(std::move(file)),
        path_(std::move(path)),
        life_(life),
        writable_(writable) {}

  ~SimFile() override {
    MutexLock lock(state_->mu);
    DropLock();
  }

  const std::string& path() const override { return path_; }

  Result<int64_t> Size() override {
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    return file_->size;
  }

  Status Read(int64_t offset, MutableByteSpan out) override {
    WC_CHECK(offset >= 0);
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    const auto wanted = static_cast<int64_t>(out.size());
    if (wanted > 0 && offset > file_->size - wanted) {
      return Error{Code::kDataLoss, path_ + ": read: ends at " + std::to_string(file_->size) +
                                        ", expected " + std::to_string(wanted) + " bytes from " +
                                        std::to_string(offset)};
    }
    if (wanted > 0) std::memcpy(out.data(), file_->bytes->data() + offset, out.size());
    return Ok();
  }

  Status Write(int64_t offset, ByteSpan bytes) override {
    WC_CHECK(offset >= 0);
    const int64_t end = offset + static_cast<int64_t>(bytes.size());
    MutexLock lock(state_->mu);
    WC_TRY(CheckWritable("write"));
    if (bytes.empty()) return Ok();
    const int64_t fits = state_->Fits(*file_, offset, end);
    const ByteSpan taken = bytes.first(static_cast<size_t>(fits - offset));
    if (!taken.empty()) {
      const Result<bool> happens = state_->Mutate("Write", path_);
      if (!happens.ok() && state_->crashed) {
        state_->torn = {file_, offset, Bytes(taken.begin(), taken.end())};
      }
      if (WC_TRY(happens)) {
        SimDisk::Write(*file_, offset, taken);
        file_->modified_unix_ms = state_->clock.UnixMillis();
      }
    }
    return fits == end ? Ok() : ErrnoError(path_, "write", ENOSPC);
  }

  Status Allocate(int64_t size) override {
    WC_CHECK(size >= 0);
    MutexLock lock(state_->mu);
    WC_TRY(CheckWritable("allocate"));
    if (state_->Fits(*file_, 0, size) < size) return ErrnoError(path_, "allocate", ENOSPC);
    if (size == file_->size && SimDisk::Needed(*file_, 0, size) == 0) return Ok();
    if (WC_TRY(state_->Mutate("Allocate", path_))) {
      SimDisk::Resize(*file_, size);
      SimDisk::Reserve(*file_, 0, size);
    }
    return Ok();
  }

  Status Truncate(int64_t size) override {
    WC_CHECK(size >= 0);
    MutexLock lock(state_->mu);
    WC_TRY(CheckWritable("truncate"));
    if (size > StableBytes::kSizeMax) return ErrnoError(path_, "truncate", EFBIG);
    if (size == file_->size) return Ok();
    if (WC_TRY(state_->Mutate("Truncate", path_))) SimDisk::Resize(*file_, size);
    return Ok();
  }

  Status Sync() override {
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    if (WC_TRY(state_->Mutate("Sync", path_))) SimDisk::Sync(*file_);
    return Ok();
  }

  Result<std::unique_ptr<Mapping>> Map(bool writable) override {
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    if (writable && !writable_) return ErrnoError(path_, "map", EACCES);
    return std::unique_ptr<Mapping>(
        std::make_unique<SimMapping>(state_, file_, path_, life_, file_->size, writable));
  }

  Status LockFor(Lock kind, Duration timeout) override {
    const Deadline deadline(state_->clock, timeout);
    while (!WC_TRY(TryLock(kind))) {
      if (deadline.passed()) {
        return Error{Code::kDeadlineExceeded, path_ + ": lock: another holder has it"};
      }
      state_->clock.SleepFor(std::min<Duration>(milliseconds(10), deadline.left()));
    }
    return Ok();
  }

  Status Unlock() override {
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    DropLock();
    return Ok();
  }

 private:
  Status CheckWritable(std::string_view operation) const WC_REQUIRES(state_->mu) {
    WC_TRY(state_->Alive(path_, life_));
    if (!writable_) return ErrnoError(path_, operation, EBADF);
    return Ok();
  }

  Result<bool> TryLock(Lock kind) {
    MutexLock lock(state_->mu);
    WC_TRY(state_->Alive(path_, life_));
    DropLock();
    for (const SimInode::HeldLock& held : file_->locks) {
      const bool both_shared = held.kind == Lock::kShared && kind == Lock::kShared;
      if (held.life == life_ && !both_shared) return false;
    }
    file_->locks.push_back({this, kind, life_});
    return true;
  }

  void DropLock() WC_REQUIRES(state_->mu) {
    std::erase_if(file_->locks, [this](const SimInode::HeldLock& l) { return l.holder == this; });
  }

  const std::shared_ptr<SimState> state_;
  const SimInodePtr file_;
  const std::string path_;
  const int64_t life_;
  const bool writable_;
};

// Whether `directory` lies below `top` or is it; a directory cannot move into itself.
bool IsBelow(const SimInode* directory, const SimInode& top) {
  std::vector<const SimInode*> below = {&top};
  for (size_t i = 0; i < below.size(); ++i) {
    if (below[i] == directory) return true;
    for (const auto& [name, inode] : below[i]->entries) {
      if (inode->is_directory) below.push_back(inode.get());
    }
  }
  return false;
}

// What keeps `from` from being renamed over `to`: an errno value, or 0.
int RenameError(const SimDisk::Place& from, const SimDisk::Place& to) {
  if (!from.inode) return ENOENT;
  if (from.inode->is_directory && IsBelow(to.directory.get(), *from.inode)) return EINVAL;
  if (!to.inode || to.inode == from.inode) return 0;
  if (from.inode->is_directory && !to.inode->is_directory) return ENOTDIR;
  if (!from.inode->is_directory && to.inode->is_directory) return EISDIR;
  return to.inode->entries.empty() ? 0 : ENOTEMPTY;
}

int ExchangeError(const SimDisk::Place& a, const SimDisk::Place& b) {
  if (!a.inode || !b.inode) return ENOENT;
  const bool loops = IsBelow(b.directory.get(), *a.inode) || IsBelow(a.directory.get(), *b.inode);
  return loops ? EINVAL : 0;
}

}  // namespace

Duration SimClock::Advance(Duration d) {
  MutexLock lock(mu_);
  return now_ += d;
}

SteadyTime SimClock::Now() { return SteadyTime(Advance(std::chrono::microseconds(1))); }

int64_t SimClock::UnixMillis() {
  constexpr int64_t kStart = 1'700'000'000'000;
  return kStart + Advance(std::chrono::microseconds(1)) / milliseconds(1);
}

void SimClock::SleepFor(Duration d) {
  Advance(d);
  // Whoever is waited for, in another thread, needs real time.
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void SimRandom::Fill(MutableByteSpan out) {
  MutexLock lock(mu_);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(source_());
}

std::mt19937_64 SimRandom::Source() {
  MutexLock lock(mu_);
  return source_;
}

SimState::SimState(SimState& other) : clock(other.clock), random(other.random) {
  MutexLock lock(mu);
  MutexLock other_lock(other.mu);
  torn = other.torn;
  SimInodePtr torn_file = torn ? torn->file : nullptr;
  disk = SimDisk(other.disk, &torn_file);
  if (torn) torn->file = torn_file;
  life = other.life;
  crashed = other.crashed;
  crashed_in = other.crashed_in;
  mutations = other.mutations;
  crash_at = other.crash_at;
  calls = other.calls;
  swallowed = other.swallowed;
  space = other.space;
  read_only = other.read_only;
  kind = other.kind;
}

Status SimState::Alive(const std::string& path, int64_t of_life) const {
  if (crashed || of_life != life) return Error{Code::kUnavailable, path + ": crashed"};
  return Ok();
}

Result<bool> SimState::Mutate(const std::string& call, const std::string& path) {
  WC_TRY(Alive(path));
  if (read_only && !call.starts_with("Sync")) return ErrnoError(path, call, EROFS);
  const int64_t ordinal = calls[call]++;
  if (mutations++ == crash_at) {
    crashed = true;
    crashed_in = call + " " + path;
    return Alive(path).error();
  }
  return !swallowed.contains({call, ordinal});
}

int64_t SimState::Fits(const SimInode& file, int64_t begin, int64_t end) const {
  end = std::max(begin, std::min(end, StableBytes::kSizeMax));
  if (space < 0) return end;
  int64_t left = space - disk.Used();
  for (int64_t at = begin; at < end;) {
    const int64_t next = std::min(end, (at / kSimPage + 1) * kSimPage);
    const int64_t needed = SimDisk::Needed(file, at, next);
    if (needed > std::max<int64_t>(left, 0)) return at;
    left -= needed;
    at = next;
  }
  return end;
}

Result<std::unique_ptr<File>> SimFs::OpenFile(const std::string& path, Open mode) {
  SimState& state = *state_;
  MutexLock lock(state.mu);
  WC_TRY(state.Alive(path));
  SimDisk::Place place;
  if (const int error = state.disk.FindPlace(path, &place); error != 0) {
    return ErrnoError(path, "open", error == EINVAL ? EISDIR : error);
  }
  if (place.inode) {
    if (mode == Open::kCreateNew) return ErrnoError(path, "open", EEXIST);
    if (place.inode->is_directory) return ErrnoError(path, "open", EISDIR);
    if (mode != Open::kRead && state.read_only) return ErrnoError(path, "open", EROFS);
  } else {
    if (mode == Open::kRead || mode == Open::kReadWrite) return ErrnoError(path, "open", ENOENT);
    const bool happens = WC_TRY(state.Mutate("Create", path));
    const SimInodePtr file = state.disk.NewInode(false);
    file->modified_unix_ms = state.clock.UnixMillis();
    if (happens) state.disk.Bind({{place, file}});
    place.inode = file;
  }
  return std::unique_ptr<File>(
      std::make_unique<SimFile>(state_, place.inode, path, state.life, mode != Open::kRead));
}

Result<Stat> SimFs::StatPath(const std::string& path) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(path));
  SimInodePtr inode;
  if (const int error = state_->disk.Find(path, &inode); error != 0) {
    return ErrnoError(path, "stat", error);
  }
  return Stat{.is_directory = inode->is_directory,
              .size = inode->size,
              .inode = inode->number,
              .modified_unix_ms = inode->modified_unix_ms};
}

Result<std::vector<std::string>> SimFs::List(const std::string& directory) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(directory));
  SimInodePtr inode;
  int error = state_->disk.Find(directory, &inode);
  if (error == 0 && !inode->is_directory) error = ENOTDIR;
  if (error != 0) return ErrnoError(directory, "list", error);
  std::vector<std::string> names;
  for (const auto& [name, entry] : inode->entries) names.push_back(name);
  return names;
}

Status SimFs::MakeDirectories(const std::string& path) {
  SimState& state = *state_;
  MutexLock lock(state.mu);
  WC_TRY(state.Alive(path));
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string level = path.substr(0, end);
    SimInodePtr inode;
    const int error = state.disk.Find(level, &inode);
    if (error == 0 && inode->is_directory) continue;
    if (error == 0) return ErrnoError(path, "create directory", EEXIST);
    SimDisk::Place place;
    const int unplaced = state.disk.FindPlace(level, &place);
    if (unplaced != 0) return ErrnoError(path, "create directory", error);
    if (WC_TRY(state.Mutate("MakeDirectory", level))) {
      state.disk.Bind({{place, state.disk.NewInode(true)}});
    }
  }
  return Ok();
}

Status SimFs::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(from));
  SimDisk::Place source;
  SimDisk::Place target;
  int error = state_->disk.FindPlace(from, &source);
  if (error == 0) error = state_->disk.FindPlace(to, &target);
  if (error == 0) error = RenameError(source, target);
  if (error != 0) return ErrnoError(from, "rename to " + to, error);
  if (target.inode == source.inode) return Ok();
  if (WC_TRY(state_->Mutate("Rename", from))) {
    state_->disk.Bind({{source, nullptr}, {target, source.inode}});
  }
  return Ok();
}

Status SimFs::Exchange(const std::string& a, const std::string& b) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(a));
  SimDisk::Place one;
  SimDisk::Place other;
  int error = state_->disk.FindPlace(a, &one);
  if (error == 0) error = state_->disk.FindPlace(b, &other);
  if (error == 0) error = ExchangeError(one, other);
  if (error != 0) return ErrnoError(a, "exchange with " + b, error);
  if (WC_TRY(state_->Mutate("Exchange", a))) {
    state_->disk.Bind({{one, other.inode}, {other, one.inode}});
  }
  return Ok();
}

Status SimFs::Link(const std::string& from, const std::string& to) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(from));
  SimDisk::Place source;
  SimDisk::Place target;
  int error = state_->disk.FindPlace(from, &source);
  if (error == 0 && !source.inode) error = ENOENT;
  if (error == 0 && source.inode->is_directory) error = EPERM;
  if (error == 0) error = state_->disk.FindPlace(to, &target);
  if (error == 0 && target.inode) error = EEXIST;
  if (error != 0) return ErrnoError(from, "link as " + to, error);
  if (WC_TRY(state_->Mutate("Link", to))) state_->disk.Bind({{target, source.inode}});
  return Ok();
}

Status SimFs::Remove(const std::string& path) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(path));
  SimDisk::Place place;
  int error = state_->disk.FindPlace(path, &place);
  if (error == 0 && !place.inode) error = ENOENT;
  if (error == 0 && !place.inode->entries.empty()) error = ENOTEMPTY;
  if (error != 0) return ErrnoError(path, "remove", error);
  if (WC_TRY(state_->Mutate("Remove", path))) state_->disk.Bind({{place, nullptr}});
  return Ok();
}

Status SimFs::SyncDirectory(const std::string& path) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(path));
  SimInodePtr inode;
  int error = state_->disk.Find(path, &inode);
  if (error == 0 && !inode->is_directory) error = ENOTDIR;
  if (error != 0) return ErrnoError(path, "sync directory", error);
  if (WC_TRY(state_->Mutate("SyncDirectory", path))) state_->disk.SyncNames(inode);
  return Ok();
}

Result<int64_t> SimFs::FreeBytes(const std::string& path) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(path));
  if (state_->space < 0) return int64_t{1} << 50;
  return std::max<int64_t>(0, state_->space - state_->disk.Used());
}

Result<FsKind> SimFs::Kind(const std::string& path) {
  MutexLock lock(state_->mu);
  WC_TRY(state_->Alive(path));
  return state_->kind;
}

Result<std::string> SimFs::Absolute(const std::string& path) {
  if (path.starts_with('/')) return path;
  return path == "." ? "/" : JoinPath("/", path);
}

}  // namespace weightcast::os
