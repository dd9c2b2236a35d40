#include "agent/lay_beside.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "agent/image_dir.h"
#include "agent/journal.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "layout/cells.h"
#include "tensor/root.h"

namespace weightcast::agent {
namespace {

// For manifest, lock, directories and the rounding of files to blocks.
constexpr int64_t kSlackBytes = kMiB;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Which bytes the weight files have besides tensors, and where each tensor goes.
struct ImageLayout {
  struct File {
    std::string name;
    Bytes header;
    int64_t bytes = 0;
  };
  std::vector<File> files;                  // by name
  std::vector<tensor::TensorPlace> places;  // by inventory index
  Bytes index;                              // empty: no index file
};

// The weight files of a checkpoint, byte for byte but for the tensors.
Result<ImageLayout> LayoutOf(os::Fs& fs, const tensor::HfDirectory& directory) {
  ImageLayout layout;
  for (size_t f = 0; f < directory.weight_files().size(); ++f) {
    const tensor::WeightFile& file = directory.weight_files()[f];
    const auto opened = WC_TRY(fs.OpenFile(directory.weight_path(f), os::Open::kRead));
    Bytes header(Size(file.header.data_start));
    WC_TRY(opened->Read(0, header));
    layout.files.push_back({file.name, std::move(header), file.header.file_bytes});
  }
  layout.places = directory.places();
  const std::string index = os::JoinPath(directory.path(), tensor::kIndexFile);
  if (WC_TRY(fs.Exists(index))) {
    layout.index = WC_TRY(fs.ReadAll(index, tensor::kIndexBytesMax));
  }
  return layout;
}

Result<ImageLayout> PlanLayout(const tensor::Inventory& inventory, int64_t file_bytes_max) {
  ImageLayout layout;
  layout.places.resize(inventory.size());
  const std::vector<tensor::PlannedFile> files = tensor::PlanWeightFiles(inventory, file_bytes_max);
  for (size_t f = 0; f < files.size(); ++f) {
    tensor::SafetensorsHeader header;
    Bytes bytes =
        WC_TRY(tensor::MakeSafetensorsHeader(files[f].tensors, {{"format", "pt"}}, &header));
    for (const tensor::PlacedTensor& tensor : header.tensors) {
      layout.places[Size(inventory.Find(tensor.spec.name))] = {static_cast<int32_t>(f),
                                                               tensor.offset};
    }
    layout.files.push_back({files[f].name, std::move(bytes), header.file_bytes});
  }
  if (files.size() > 1) {
    const std::string text = tensor::IndexJson(files);
    layout.index.assign(text.begin(), text.end());
  }
  return layout;
}

// Which cells of a model some batch writes.
class CellSet {
 public:
  explicit CellSet(const tensor::Inventory& inventory) {
    for (const tensor::TensorSpec& spec : inventory.tensors()) {
      marks_.emplace_back(Size(layout::CellGrid::For(spec.matrix()).cells()));
    }
  }
  void Add(int32_t tensor, int64_t cell) { marks_[Size(tensor)][Size(cell)] = true; }
  // Those that are not in it.
  std::vector<std::pair<int32_t, int64_t>> Rest() const {
    std::vector<std::pair<int32_t, int64_t>> rest;
    for (size_t t = 0; t < marks_.size(); ++t) {
      for (size_t c = 0; c < marks_[t].size(); ++c) {
        if (!marks_[t][c]) rest.emplace_back(static_cast<int32_t>(t), static_cast<int64_t>(c));
      }
    }
    return rest;
  }

 private:
  std::vector<std::vector<bool>> marks_;
};

class Layer {
 public:
  Layer(os::World& world, LayRequest request, const LayOptions& options)
      : world_(world),
        fs_(world.fs),
        request_(std::move(request)),
        options_(options),
        inventory_(*request_.inventory),
        next_(NextPath(request_.image)) {}

  Status Build(LayTimes* times) {
    layout_ = WC_TRY(request_.layout_of != nullptr
                         ? LayoutOf(fs_, *request_.layout_of)
                         : PlanLayout(inventory_, options_.weight_file_bytes_max));
    WC_TRY(TakeSpace());
    WC_TRY(FillTensors());
    times->base_bytes = base_bytes_;
    WC_TRY(CheckDigests());
    WC_TRY(WriteSideFiles());
    WC_TRY(WriteMeta());
    return durable() ? SyncTree(fs_, next_) : Ok();
  }

  // Afterwards NextPath is the old image, or an empty directory: as long as it is there, the
  // exchange may not be durable.
  Status Exchange(Duration hold_timeout, LayTimes* times) {
    const os::Deadline deadline(world_.clock, hold_timeout);
    const auto lock = LockImage(world_, request_.image, os::Lock::kExclusive, deadline);
    // Where there is no image, or none that could be held, nobody is to be waited for.
    if (!lock.ok() && lock.error().code != Code::kNotFound &&
        lock.error().code != Code::kDataLoss) {
      return lock.error();
    }
    const SteadyTime begin = world_.clock.Now();
    WC_TRY(fs_.MakeDirectories(request_.image));
    WC_TRY(fs_.Exchange(next_, request_.image));
    // Before the old image is removed: the disk must not lose the exchange and keep the removal.
    const std::string parent = os::ParentPath(request_.image);
    const bool replaces = lock.ok() || lock.error().code == Code::kDataLoss;
    Status synced = Ok();
    if (durable()) synced = replaces ? fs_.SyncDirectory(parent) : fs_.SyncPath(parent);
    if (!synced.ok()) WC_TRY(fs_.Exchange(next_, request_.image));
    times->apply = world_.clock.Now() - begin;
    return synced;
  }

 private:
  bool durable() const { return request_.manifest.durability == Durability::kHost; }

  // Reserves all space, so that nothing later fails for lack of it.
  Status TakeSpace() {
    int64_t needed = kSlackBytes + static_cast<int64_t>(layout_.index.size());
    for (const ImageLayout::File& file : layout_.files) needed += file.bytes;
    for (const catalog::SideFileRow& row : request_.manifest.side_files) needed += row.bytes;
    const int64_t free = WC_TRY(fs_.FreeBytes(os::ParentPath(next_)));
    if (free < needed) {
      return Error{Code::kResourceExhausted, next_ + ": laying the image needs " +
                                                 std::to_string(needed) + " bytes, " +
                                                 std::to_string(free) + " are free"};
    }
    WC_TRY(fs_.MakeDirectories(MetaPath(next_)));
    for (const ImageLayout::File& file : layout_.files) {
      const std::string path = os::JoinPath(next_, file.name);
      WC_TRY(fs_.MakeDirectories(os::ParentPath(path)));
      auto opened = WC_TRY(fs_.OpenFile(path, os::Open::kCreateNew));
      WC_TRY(opened->Allocate(file.bytes));
      WC_TRY(opened->Write(0, file.header));
      request_.manifest.weight_files.push_back({file.name, file.bytes, Sha256::Of(file.header)});
      files_.push_back(std::move(opened));
    }
    return Ok();
  }

  Status FillTensors() {
    sums_.resize(inventory_.size());
    std::optional<tensor::MappedWeights> base;
    if (request_.base != nullptr) {
      base = WC_TRY(tensor::MappedWeights::Map(fs_, *request_.base, /*writable=*/false));
    }
    CellSet replayed(inventory_);
    if (request_.chain != nullptr) WC_TRY(ReplayChain(base ? &*base : nullptr, &replayed));
    const auto rest = replayed.Rest();
    if (!base && !rest.empty()) {
      return Error{Code::kDataLoss, "the full version lacks " + std::to_string(rest.size()) +
                                        " cells, the first of " +
                                        inventory_[Size(rest.front().first)].name};
    }
    return ParallelFor(rest.size(), options_.threads, [&](size_t item, int) {
      const auto [tensor, cell] = rest[item];
      const layout::CellRun run = layout::RunOf(inventory_[Size(tensor)].matrix(), cell);
      base_bytes_ += run.bytes;
      if (request_.tick) request_.tick();
      return WriteCell(tensor, run, run.Of(base->tensor(Size(tensor))));
    });
  }

  Status ReplayChain(const tensor::MappedWeights* base, CellSet* replayed) {
    const int threads = ThreadCount(options_.threads);
    const auto batches = request_.chain->Batches(options_.batch_payload_bytes_max, threads);
    std::vector<transfer::Chain::Scratch> scratch(Size(threads));
    std::vector<std::vector<tensor::Partial>> gained(
        Size(threads), std::vector<tensor::Partial>(inventory_.size()));
    for (const transfer::ReplayBatch& batch : batches) {
      for (const transfer::ReplayCell& cell : batch.cells) replayed->Add(cell.tensor, cell.cell);
    }
    const auto read = [&](const transfer::ReplayCell& cell) {
      base_bytes_ += cell.run.bytes;
      return cell.run.Of(base->tensor(Size(cell.tensor)));
    };
    const auto write = [&](const transfer::ReplayCell& cell, const transfer::ReplayedCell& made) {
      return WriteCell(cell.tensor, cell.run, made.next);
    };
    return ParallelFor(batches.size(), threads, [&](size_t item, int worker) {
      if (request_.tick) request_.tick();
      return request_.chain->Replay(batches[item], scratch[Size(worker)], read, write,
                                    &gained[Size(worker)]);
    });
  }

  Status WriteCell(int32_t tensor, const layout::CellRun& run, ByteSpan bytes) {
    const tensor::TensorPlace& place = layout_.places[Size(tensor)];
    WC_TRY(files_[Size(place.file)]->Write(place.offset + run.offset, bytes));
    const tensor::TensorDigest digest = tensor::DigestRun(run.offset, bytes);
    MutexLock lock(mu_);
    sums_[Size(tensor)] = sums_[Size(tensor)] + digest;
    done_ += run.bytes;
    return request_.progress ? request_.progress(done_, inventory_.bytes()) : Ok();
  }

  Status CheckDigests() const {
    const Manifest& manifest = request_.manifest;
    std::vector<std::string> bad;
    for (size_t t = 0; t < sums_.size(); ++t) {
      if (sums_[t] == manifest.digests[t]) continue;
      bad.push_back(inventory_[t].name + " (expected " + manifest.digests[t].hex() + ", found " +
                    sums_[t].hex() + ")");
    }
    if (!bad.empty()) {
      return Error{Code::kDataLoss,
                   "version " + std::to_string(manifest.number) +
                       ": laid tensors do not have its digests: " + JoinNames(bad)};
    }
    if (tensor::ComputeRoot(inventory_, sums_) == manifest.root) return Ok();
    return Error{Code::kDataLoss, "version " + std::to_string(manifest.number) +
                                      ": its tensor digests do not give its root " +
                                      manifest.root.hex()};
  }

  // The version's side files, but the index is that of the weight files as they are laid.
  Status WriteSideFiles() {
    std::vector<catalog::SideFileRow>& rows = request_.manifest.side_files;
    std::erase_if(rows, [](const auto& row) { return row.name == tensor::kIndexFile; });
    for (const catalog::SideFileRow& row : rows) {
      const std::string path = os::JoinPath(next_, row.name);
      WC_TRY(fs_.MakeDirectories(os::ParentPath(path)));
      WC_TRY(BringSideFile(fs_, row, request_.side_sources, path, /*durable=*/false));
    }
    if (!layout_.index.empty()) {
      rows.push_back({tensor::kIndexFile, static_cast<int64_t>(layout_.index.size()),
                      Sha256::Of(layout_.index)});
      WC_TRY(WriteNew(fs_, os::JoinPath(next_, tensor::kIndexFile), layout_.index, false));
    }
    std::ranges::sort(rows, {}, &catalog::SideFileRow::name);
    return Ok();
  }

  Status WriteMeta() {
    std::array<uint8_t, 16> id{};
    world_.random.Fill(id);
    WC_TRY(WriteNew(fs_, LockPath(next_), AsBytes(Hex(id)), false));
    const Manifest& manifest = request_.manifest;
    WC_TRY(WriteNew(fs_, ManifestPath(next_, manifest.generation),
                    AsBytes(EncodeManifest(manifest)), false));
    const State clean{manifest.generation, manifest.generation};
    return WriteNew(fs_, StatePath(next_, clean), {}, false);
  }

  os::World& world_;
  os::Fs& fs_;
  LayRequest request_;
  const LayOptions options_;
  const tensor::Inventory& inventory_;
  const std::string next_;
  ImageLayout layout_;
  std::vector<std::unique_ptr<os::File>> files_;
  std::atomic<int64_t> base_bytes_{0};
  Mutex mu_;
  std::vector<tensor::TensorDigest> sums_;  // guarded by mu_ while threads write, as is done_
  int64_t done_ = 0;
};

}  // namespace

std::string NextPath(const std::string& image) {
  return os::JoinPath(os::ParentPath(image), "." + os::BaseName(image) + ".weightcast-next");
}

Status RemoveNext(os::Fs& fs, const std::string& image) {
  const std::string next = NextPath(image);
  if (!WC_TRY(fs.Exists(next))) return Ok();
  WC_TRY(fs.SyncPath(os::ParentPath(image)));
  return fs.RemoveTree(next);
}

Status LayBeside(os::World& world, LayRequest request, const LayOptions& options,
                 Duration hold_timeout, LayTimes* times) {
  const SteadyTime begin = world.clock.Now();
  const std::string next = NextPath(request.image);
  Layer layer(world, std::move(request), options);
  Status laid = layer.Build(times);
  times->prepare = world.clock.Now() - begin;
  if (laid.ok()) laid = layer.Exchange(hold_timeout, times);
  const Status removed = world.fs.RemoveTree(next);
  if (!removed.ok()) {  // the next pull tries again
    Log(LogLevel::kWarning, "not removed", {{"path", next}, {"reason", removed.error().message}});
  }
  return laid;
}

}  // namespace weightcast::agent
