#include "os/sim_disk.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

namespace weightcast::os {
namespace {

// "/a//./b" -> {"a", "b"}; the working directory is "/".
std::vector<std::string> Parts(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.emplace_back(part);
    }
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return parts;
}

int64_t PageOf(int64_t offset) { return offset / kSimPage; }
int64_t PagesFor(int64_t bytes) { return (bytes + kSimPage - 1) / kSimPage; }

// Remembers what the disk has of the pages of [begin, end), before they change.
void Touch(SimInode& file, int64_t begin, int64_t end) {
  for (int64_t page = PageOf(begin); page * kSimPage < end; ++page) {
    const uint8_t* data = file.bytes->data() + page * kSimPage;
    file.synced_pages.try_emplace(page, data, data + kSimPage);
  }
}

// The same content under the same number; entries and locks are left out.
SimInodePtr TwinOf(const SimInode& inode) {
  auto twin = std::make_shared<SimInode>();
  twin->number = inode.number;
  twin->is_directory = inode.is_directory;
  twin->modified_unix_ms = inode.modified_unix_ms;
  twin->size = inode.size;
  twin->synced_size = inode.synced_size;
  twin->synced_pages = inode.synced_pages;
  twin->reserved = inode.reserved;
  if (inode.is_directory) return twin;
  twin->bytes = std::make_unique<StableBytes>();
  for (size_t page = 0; page < inode.reserved.size(); ++page) {  // all others are zeros
    if (!inode.reserved[page]) continue;
    std::memcpy(twin->bytes->data() + page * kSimPage, inode.bytes->data() + page * kSimPage,
                kSimPage);
  }
  return twin;
}

// Each directory that an operation touches, once.
template <typename Operation>
std::vector<SimInode*> DirectoriesOf(const Operation& operation) {
  std::vector<SimInode*> found;
  for (const auto& change : operation) {
    SimInode* directory = change.directory.get();
    if (std::find(found.begin(), found.end(), directory) == found.end()) found.push_back(directory);
  }
  return found;
}

}  // namespace

StableBytes::StableBytes() {
  void* data = ::mmap(nullptr, kSizeMax, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WC_CHECK(data != MAP_FAILED);
  // Huge pages would make every small file cost 2 MiB of zeroing; without them it only runs faster.
  ::madvise(data, kSizeMax, MADV_NOHUGEPAGE);
  data_ = static_cast<uint8_t*>(data);
}

StableBytes::~StableBytes() { ::munmap(data_, kSizeMax); }

SimDisk::SimDisk() : root_(NewInode(true)) {}

SimDisk::SimDisk(const SimDisk& other, SimInodePtr* file) : next_number_(other.next_number_) {
  std::map<const SimInode*, SimInodePtr> twins = {{nullptr, nullptr}};
  std::vector<const SimInode*> found;
  const auto twin = [&](const SimInodePtr& inode) {
    SimInodePtr& made = twins[inode.get()];
    if (inode && !made) {
      made = TwinOf(*inode);
      found.push_back(inode.get());
    }
    return made;
  };
  root_ = twin(other.root_);
  for (const Operation& operation : other.unsynced_) {
    Operation& copy = unsynced_.emplace_back();
    for (const Change& change : operation) {
      copy.push_back({twin(change.directory), change.name, twin(change.before)});
    }
  }
  *file = twin(*file);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& [name, inode] : found[i]->entries) {
      SimInodePtr entry = twin(inode);
      twins[found[i]]->entries[name] = std::move(entry);
    }
  }
}

int SimDisk::Find(const std::string& path, SimInodePtr* out) const {
  *out = root_;
  for (const std::string& part : Parts(path)) {
    if (!(*out)->is_directory) return ENOTDIR;
    const auto entry = (*out)->entries.find(part);
    if (entry == (*out)->entries.end()) return ENOENT;
    *out = entry->second;
  }
  return path.empty() ? ENOENT : 0;
}

int SimDisk::FindPlace(const std::string& path, Place* out) const {
  std::vector<std::string> parts = Parts(path);
  if (parts.empty()) return EINVAL;
  out->name = parts.back();
  parts.pop_back();
  out->directory = root_;
  for (const std::string& part : parts) {
    const auto entry = out->directory->entries.find(part);
    if (entry == out->directory->entries.end()) return ENOENT;
    out->directory = entry->second;
    if (!out->directory->is_directory) return ENOTDIR;
  }
  const auto entry = out->directory->entries.find(out->name);
  out->inode = entry == out->directory->entries.end() ? nullptr : entry->second;
  return 0;
}

SimInodePtr SimDisk::NewInode(bool is_directory) {
  auto inode = std::make_shared<SimInode>();
  inode->number = next_number_++;
  inode->is_directory = is_directory;
  if (!is_directory) inode->bytes = std::make_unique<StableBytes>();
  return inode;
}

void SimDisk::Rebind(SimInode& directory, const std::string& name, const SimInodePtr& inode) {
  if (inode) {
    directory.entries[name] = inode;
  } else {
    directory.entries.erase(name);
  }
}

void SimDisk::Bind(const std::vector<std::pair<Place, SimInodePtr>>& changes) {
  Operation operation;
  for (const auto& [place, inode] : changes) {
    Rebind(*place.directory, place.name, inode);
    operation.push_back({place.directory, place.name, place.inode});
  }
  unsynced_.push_back(std::move(operation));
}

void SimDisk::SyncNames(const SimInodePtr& directory) {
  // From the last operation to the first: one that is made durable takes with it what came before
  // in each of its directories.
  std::set<const SimInode*> durable = {directory.get()};
  std::vector<Operation> rest;
  for (auto operation = unsynced_.rbegin(); operation != unsynced_.rend(); ++operation) {
    const std::vector<SimInode*> directories = DirectoriesOf(*operation);
    if (std::any_of(directories.begin(), directories.end(),
                    [&](const SimInode* d) { return durable.contains(d); })) {
      durable.insert(directories.begin(), directories.end());
    } else {
      rest.push_back(std::move(*operation));
    }
  }
  std::reverse(rest.begin(), rest.end());
  unsynced_ = std::move(rest);
}

void SimDisk::Write(SimInode& file, int64_t offset, ByteSpan bytes) {
  if (bytes.empty()) return;
  const int64_t end = offset + static_cast<int64_t>(bytes.size());
  Touch(file, offset, end);
  Reserve(file, offset, end);
  std::memcpy(file.bytes->data() + offset, bytes.data(), bytes.size());
  file.size = std::max(file.size, end);
}

void SimDisk::Resize(SimInode& file, int64_t size) {
  if (size < file.size) {
    Touch(file, size, file.size);
    std::memset(file.bytes->data() + size, 0, static_cast<size_t>(file.size - size));
    if (std::cmp_less(PagesFor(size), file.reserved.size())) {
      file.reserved.resize(static_cast<size_t>(PagesFor(size)));
    }
  }
  file.size = size;
}

void SimDisk::Reserve(SimInode& file, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const auto pages = static_cast<size_t>(PagesFor(end));
  if (file.reserved.size() < pages) file.reserved.resize(pages);
  std::fill(file.reserved.begin() + PageOf(begin),
            file.reserved.begin() + static_cast<ptrdiff_t>(pages), true);
}

void SimDisk::Sync(SimInode& file) {
  file.synced_pages.clear();
  file.synced_size = file.size;
}

int64_t SimDisk::Needed(const SimInode& file, int64_t begin, int64_t end) {
  int64_t pages = 0;
  for (int64_t page = PageOf(begin); page * kSimPage < end; ++page) {
    const auto i = static_cast<size_t>(page);
    if (i >= file.reserved.size() || !file.reserved[i]) ++pages;
  }
  return pages * kSimPage;
}

std::vector<SimInode*> SimDisk::Reachable() const {
  std::vector<SimInode*> found = {root_.get()};
  std::set<const SimInode*> seen;  // a file may have several names
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& [name, inode] : found[i]->entries) {
      if (seen.insert(inode.get()).second) found.push_back(inode.get());
    }
  }
  return found;
}

int64_t SimDisk::Used() const {
  int64_t pages = 0;
  for (const SimInode* inode : Reachable()) {
    pages += std::count(inode->reserved.begin(), inode->reserved.end(), true);
  }
  return pages * kSimPage;
}

void SimDisk::SyncAll() {
  unsynced_.clear();
  for (SimInode* inode : Reachable()) {
    if (!inode->is_directory) Sync(*inode);
  }
}

void SimDisk::LosePower(std::mt19937_64& random) {
  LoseNames(random);
  for (SimInode* inode : Reachable()) {
    if (!inode->is_directory) LoseData(*inode, random);
  }
}

void SimDisk::LoseNames(std::mt19937_64& random) {
  // How many operations on each directory survive, in the order in which directories first appear.
  std::map<const SimInode*, size_t> left;
  std::vector<const SimInode*> order;
  for (const Operation& operation : unsynced_) {
    for (const SimInode* directory : DirectoriesOf(operation)) {
      if (left[directory]++ == 0) order.push_back(directory);
    }
  }
  for (const SimInode* directory : order) {
    size_t& n = left[directory];
    n = static_cast<size_t>(random() % (n + 1));
  }
  // An operation on two directories survives only if both keep it, and its loss ends both.
  std::vector<Operation> lost;
  for (Operation& operation : unsynced_) {
    const std::vector<SimInode*> directories = DirectoriesOf(operation);
    const bool survives = std::all_of(directories.begin(), directories.end(),
                                      [&](const SimInode* d) { return left[d] > 0; });
    for (const SimInode* directory : directories) {
      left[directory] = survives ? left[directory] - 1 : 0;
    }
    if (!survives) lost.push_back(std::move(operation));
  }
  for (auto operation = lost.rbegin(); operation != lost.rend(); ++operation) {
    for (auto change = operation->rbegin(); change != operation->rend(); ++change) {
      Rebind(*change->directory, change->name, change->before);
    }
  }
  unsynced_.clear();
}

void SimDisk::LoseData(SimInode& file, std::mt19937_64& random) {
  // A rate for the whole file first: else "nothing of it" and "all of it" would never be seen.
  const uint64_t quarters_kept = random() % 5;
  for (const auto& [page, content] : file.synced_pages) {
    if (random() % 4 < quarters_kept) continue;
    std::memcpy(file.bytes->data() + page * kSimPage, content.data(), content.size());
    Reserve(file, page * kSimPage, (page + 1) * kSimPage);
  }
  const bool size_kept = random() % 2 == 0;
  const int64_t extent = std::max(file.size, file.synced_size);
  file.size = size_kept ? file.size : file.synced_size;
  const int64_t tail = PagesFor(extent) * kSimPage - file.size;
  std::memset(file.bytes->data() + file.size, 0, static_cast<size_t>(tail));
  file.reserved.resize(static_cast<size_t>(PagesFor(file.size)));
  Sync(file);
}

}  // namespace weightcast::os
