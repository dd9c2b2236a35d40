#include "os/fs_real.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <thread>

#include "os/errors.h"

namespace weightcast::os {
namespace {

// Repeats a call that a signal interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

Status Check(int result, const std::string& path, std::string_view operation) {
  if (result == -1) return ErrnoError(path, operation, errno);
  return Ok();
}

class RealMapping final : public Mapping {
 public:
  RealMapping(uint8_t* data, size_t size, bool writable)
      : data_(data), size_(size), writable_(writable) {}
  ~RealMapping() override {
    if (size_ > 0) ::munmap(data_, size_);
  }

  ByteSpan bytes() const override { return {data_, size_}; }

  void Update(int64_t offset, int64_t length,
              const std::function<void(MutableByteSpan)>& write) override {
    WC_CHECK(writable_);
    CheckRange(offset, length);
    write({data_ + offset, static_cast<size_t>(length)});
  }

  void WillNeed(int64_t offset, int64_t length) override { Advise(offset, length, MADV_WILLNEED); }

  // A shared mapping of a file keeps its bytes in the page cache, dirty ones too.
  void DontNeed(int64_t offset, int64_t length) override { Advise(offset, length, MADV_DONTNEED); }

 private:
  void CheckRange(int64_t offset, int64_t length) const {
    WC_CHECK(offset >= 0 && length >= 0);
    WC_CHECK(offset <= static_cast<int64_t>(size_) - length);
  }
  void Advise(int64_t offset, int64_t length, int advice) {
    CheckRange(offset, length);
    if (length == 0) return;
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    const int64_t skip = offset % page;
    ::madvise(data_ + (offset - skip), static_cast<size_t>(length + skip), advice);
  }

  uint8_t* const data_;
  const size_t size_;
  const bool writable_;
};

class RealFile final : public File {
 public:
  RealFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~RealFile() override { ::close(fd_); }

  const std::string& path() const override { return path_; }

  Result<int64_t> Size() override {
    struct stat stat;
    WC_TRY(Check(::fstat(fd_, &stat), path_, "size"));
    return int64_t{stat.st_size};
  }

  Status Read(int64_t offset, MutableByteSpan out) override {
    WC_CHECK(offset >= 0);
    size_t done = 0;
    while (done < out.size()) {
      const int64_t at = offset + static_cast<int64_t>(done);
      const ssize_t n =
          Uninterrupted([&] { return ::pread(fd_, out.data() + done, out.size() - done, at); });
      if (n == -1) return ErrnoError(path_, "read", errno);
      if (n == 0) return EndsEarly(offset, out.size(), at);
      done += static_cast<size_t>(n);
    }
    return Ok();
  }

  Status Write(int64_t offset, ByteSpan bytes) override {
    WC_CHECK(offset >= 0);
    size_t done = 0;
    while (done < bytes.size()) {
      const int64_t at = offset + static_cast<int64_t>(done);
      const ssize_t n = Uninterrupted(
          [&] { return ::pwrite(fd_, bytes.data() + done, bytes.size() - done, at); });
      if (n == -1) return ErrnoError(path_, "write", errno);
      done += static_cast<size_t>(n);
    }
    return Ok();
  }

  Status Allocate(int64_t size) override {
    WC_CHECK(size >= 0);
    const int64_t before = WC_TRY(Size());
    if (size > 0) {
      // Where the file system cannot reserve, glibc writes a byte into every block.
      int error = ::posix_fallocate(fd_, 0, size);
      while (error == EINTR) error = ::posix_fallocate(fd_, 0, size);
      if (error != 0) {
        // Best effort: the error that counts is the first one.
        static_cast<void>(Truncate(before));
        return ErrnoError(path_, "allocate " + std::to_string(size) + " bytes", error);
      }
    }
    return size < before ? Truncate(size) : Ok();
  }

  Status Truncate(int64_t size) override {
    WC_CHECK(size >= 0);
    return Check(Uninterrupted([&] { return ::ftruncate(fd_, size); }), path_, "truncate");
  }

  Status Sync() override {
    // fdatasync also makes a changed size durable; only times are left out.
    return Check(Uninterrupted([&] { return ::fdatasync(fd_); }), path_, "sync");
  }

  Result<std::unique_ptr<Mapping>> Map(bool writable) override {
    const auto size = static_cast<size_t>(WC_TRY(Size()));
    void* data = nullptr;
    if (size > 0) {  // the kernel refuses empty mappings
      const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
      data = ::mmap(nullptr, size, protection, MAP_SHARED, fd_, 0);
      if (data == MAP_FAILED) return ErrnoError(path_, "map", errno);
    }
    return std::unique_ptr<Mapping>(
        std::make_unique<RealMapping>(static_cast<uint8_t*>(data), size, writable));
  }

  Status LockFor(Lock lock, Duration timeout) override {
    const int operation = (lock == Lock::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    // flock has no timeout of its own, so we ask again: soon at first, 20 times a second later.
    for (Duration pause = milliseconds(5);;
         pause = std::min<Duration>(pause * 2, milliseconds(50))) {
      if (Uninterrupted([&] { return ::flock(fd_, operation); }) == 0) return Ok();
      if (errno != EWOULDBLOCK) return ErrnoError(path_, "lock", errno);
      const Duration left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) {
        return Error{Code::kDeadlineExceeded, path_ + ": lock: another holder has it"};
      }
      std::this_thread::sleep_for(std::min(pause, left));
    }
  }

  Status Unlock() override {
    return Check(Uninterrupted([&] { return ::flock(fd_, LOCK_UN); }), path_, "unlock");
  }

 private:
  Error EndsEarly(int64_t offset, size_t wanted, int64_t end) const {
    return {Code::kDataLoss, path_ + ": read: ends at " + std::to_string(end) + ", expected " +
                                 std::to_string(wanted) + " bytes from " + std::to_string(offset)};
  }

  const int fd_;
  const std::string path_;
};

constexpr int Flags(Open mode) {
  switch (mode) {
    case Open::kRead:
      return O_RDONLY | O_CLOEXEC;
    case Open::kReadWrite:
      return O_RDWR | O_CLOEXEC;
    case Open::kCreate:
      return O_RDWR | O_CREAT | O_CLOEXEC;
    case Open::kCreateNew:
      return O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  }
  return O_RDONLY | O_CLOEXEC;
}

// statfs(2) f_type of file systems whose locks and mappings other hosts see differently, or not at
// all. FUSE is one of them because what stands behind it is unknown.
constexpr std::array<uint32_t, 14> kNetworkFileSystems = {
    0x6969,      // NFS
    0x517b,      // SMB
    0xff534d42,  // CIFS
    0xfe534d42,  // SMB2
    0x01021997,  // 9p
    0x65735546,  // FUSE, virtiofs
    0x5346414f,  // AFS (OpenAFS)
    0x6b414653,  // AFS (kernel)
    0x73757245,  // Coda
    0x00c36400,  // Ceph
    0x0bd00bd0,  // Lustre
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x7461636f,  // OCFS2
};

int64_t ToMillis(const timespec& t) { return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000; }

class KernelFs final : public Fs {
 public:
  Result<std::unique_ptr<File>> OpenFile(const std::string& path, Open mode) override {
    // Without O_NONBLOCK the open of a FIFO waits for its other end; files do not know the flag.
    const int flags = Flags(mode) | O_NONBLOCK;
    const int fd = Uninterrupted([&] { return ::open(path.c_str(), flags, 0666); });
    if (fd == -1) return ErrnoError(path, "open", errno);
    auto file = std::make_unique<RealFile>(fd, path);
    struct stat stat;
    WC_TRY(Check(::fstat(fd, &stat), path, "open"));
    if (S_ISDIR(stat.st_mode)) return ErrnoError(path, "open", EISDIR);
    if (!S_ISREG(stat.st_mode)) return Error{Code::kInvalidData, path + ": is not a file"};
    return std::unique_ptr<File>(std::move(file));
  }

  Result<Stat> StatPath(const std::string& path) override {
    struct stat stat;
    WC_TRY(Check(::stat(path.c_str(), &stat), path, "stat"));
    return Stat{.is_directory = S_ISDIR(stat.st_mode),
                .size = stat.st_size,
                .inode = stat.st_ino,
                .modified_unix_ms = ToMillis(stat.st_mtim)};
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(directory.c_str()), &::closedir);
    if (!handle) return ErrnoError(directory, "list", errno);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(handle.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) return ErrnoError(directory, "list", errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status MakeDirectories(const std::string& path) override {
    for (size_t end = 0; end != std::string::npos;) {
      end = path.find('/', end + 1);
      const std::string level = path.substr(0, end);
      if (::mkdir(level.c_str(), 0777) == 0) continue;
      const int error = errno;
      // An existing level may also be refused for lack of permission or as read-only.
      const Result<Stat> found = StatPath(level);
      if (!found.ok()) return ErrnoError(path, "create directory", error);
      if (!found->is_directory) return ErrnoError(path, "create directory", EEXIST);
    }
    return Ok();
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return Check(::rename(from.c_str(), to.c_str()), from, "rename to " + to);
  }

  Status Exchange(const std::string& a, const std::string& b) override {
    return Check(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE), a,
                 "exchange with " + b);
  }

  Status Link(const std::string& from, const std::string& to) override {
    return Check(::link(from.c_str(), to.c_str()), from, "link as " + to);
  }

  Status Remove(const std::string& path) override {
    return Check(std::remove(path.c_str()), path, "remove");
  }

  Status SyncDirectory(const std::string& path) override {
    const int fd =
        Uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd == -1) return ErrnoError(path, "sync directory", errno);
    const int result = Uninterrupted([&] { return ::fsync(fd); });
    const int error = result == 0 ? 0 : errno;
    ::close(fd);
    // EINVAL: this file system keeps no names back that one could wait for (squashfs, some network
    // file systems).
    if (error == 0 || error == EINVAL) return Ok();
    return ErrnoError(path, "sync directory", error);
  }

  Result<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs stat;
    WC_TRY(Check(::statvfs(path.c_str(), &stat), path, "free space"));
    return static_cast<int64_t>(stat.f_bavail * stat.f_frsize);
  }

  Result<FsKind> Kind(const std::string& path) override {
    struct statfs stat;
    WC_TRY(Check(::statfs(path.c_str(), &stat), path, "kind of file system"));
    const auto kind = static_cast<uint32_t>(stat.f_type);
    if (kind == 0x01021994 || kind == 0x858458f6) return FsKind::kMemory;  // tmpfs, ramfs
    const bool network = std::ranges::find(kNetworkFileSystems, kind) != kNetworkFileSystems.end();
    return network ? FsKind::kNetwork : FsKind::kDisk;
  }

  Result<std::string> Absolute(const std::string& path) override {
    if (path.starts_with('/')) return path;
    std::array<char, PATH_MAX> directory;
    if (::getcwd(directory.data(), directory.size()) == nullptr) {
      return ErrnoError(path, "working directory", errno);
    }
    return path == "." ? std::string(directory.data()) : JoinPath(directory.data(), path);
  }
};

}  // namespace

Fs& RealFs() {
  static KernelFs fs;
  return fs;
}

}  // namespace weightcast::os
