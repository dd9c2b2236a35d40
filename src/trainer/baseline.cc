#include "trainer/baseline.h"

#include <algorithm>

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "base/units.h"
#include "trainer/redo.h"

namespace weightcast::trainer {
namespace {

constexpr int64_t kStateBytesMax = kMiB;
constexpr int64_t kStateFormat = 2;

template <typename Id>
Result<Id> IdField(const Json& object, std::string_view field) {
  return Id::Parse(WC_TRY(JsonString(object, field))).With(field);
}

}  // namespace

Sha256Digest PartialsHash(std::span<const std::pair<int32_t, tensor::Partial>> partials) {
  Bytes bytes;
  ByteWriter writer(&bytes);
  for (const auto& [tensor, partial] : partials) {
    writer.Put(tensor);
    writer.Put(partial.units);
    writer.Put(partial.digest.low);
    writer.Put(partial.digest.high);
  }
  return Sha256::Of(bytes);
}

Baseline::Baseline(os::World& world, std::string directory, std::string identity)
    : world_(&world), directory_(std::move(directory)), identity_(std::move(identity)) {}

std::string Baseline::redo_path() const { return os::JoinPath(directory_, "redo"); }

Result<Baseline> Baseline::Open(os::World& world, const std::string& directory,
                                const std::string& identity, const layout::ChunkList& chunks) {
  Baseline baseline(world, directory, identity);
  WC_TRY(world.fs.MakeDirectories(directory));
  baseline.lock_ = WC_TRY(world.fs.OpenFile(os::JoinPath(directory, "lock"), os::Open::kCreate));
  if (!baseline.lock_->LockFor(os::Lock::kExclusive, Duration::zero()).ok()) {
    return Error{Code::kUnavailable, "baseline " + directory + " is in use by another publisher"};
  }

  // Whatever is wrong with the state file, the answer is the same: the bytes are at no version.
  const auto load = [&]() -> Status {
    const Bytes text =
        WC_TRY(world.fs.ReadAll(os::JoinPath(directory, "state.json"), kStateBytesMax));
    const Json state = WC_TRY(ParseJson(AsText(text)));
    const bool usable =
        WC_TRY(JsonInt(state, "format")) == kStateFormat &&
        WC_TRY(JsonString(state, "identity")) == identity &&
        // The bytes are not synced: after a restart of the host they are not trusted.
        WC_TRY(JsonString(state, "boot_id")) == world.boot_id;
    if (!usable) return Ok();
    const auto version = WC_TRY(IdField<VersionUid>(state, "version"));
    const auto partials = WC_TRY(IdField<Sha256Digest>(state, "partials"));
    if (state.contains("pending")) {
      const Json& pending = state["pending"];
      baseline.pending_ = PendingVersion{WC_TRY(IdField<VersionUid>(pending, "version")),
                                         WC_TRY(IdField<Sha256Digest>(pending, "partials")),
                                         WC_TRY(JsonInt(pending, "redo_bytes"))};
    }
    baseline.version_ = version;
    baseline.partials_ = partials;
    return Ok();
  };
  if (!load().ok()) baseline.pending_.reset();

  const std::string bytes_path = os::JoinPath(directory, "bytes");
  baseline.file_ = WC_TRY(world.fs.OpenFile(bytes_path, os::Open::kCreate));
  if (WC_TRY(baseline.file_->Size()) != chunks.packed_bytes) {
    baseline.version_ = {};
    baseline.pending_.reset();
    WC_TRY(baseline.file_->Truncate(0));
  }
  // Reserved now: a write through the mapping must not find the disk full.
  WC_TRY(baseline.file_->Allocate(chunks.packed_bytes));
  baseline.mapping_ = WC_TRY(baseline.file_->Map(/*writable=*/true));
  return baseline;
}

Status Baseline::SaveState() {
  Json state;
  state["format"] = kStateFormat;
  state["identity"] = identity_;
  state["boot_id"] = world_->boot_id;
  state["version"] = version_.hex();
  state["partials"] = partials_.hex();
  if (pending_) {
    state["pending"] = {{"version", pending_->version.hex()},
                        {"partials", pending_->partials.hex()},
                        {"redo_bytes", pending_->redo_bytes}};
  }
  // Not durable: it would say nothing after a host restart anyway (see boot_id).
  return world_->fs.WriteAtomically(os::JoinPath(directory_, "state.json"), AsBytes(state.dump(1)),
                                    /*durable=*/false);
}

Status Baseline::BeginRedo() {
  WC_TRY(DropPending());
  redo_ = WC_TRY(world_->fs.OpenFile(redo_path(), os::Open::kCreate));
  redo_bytes_ = 0;
  return redo_->Truncate(0);
}

Status Baseline::AppendRedo(ByteSpan record) {
  WC_TRY(redo_->Write(redo_bytes_, record));
  redo_bytes_ += static_cast<int64_t>(record.size());
  return Ok();
}

Status Baseline::SetPending(const VersionUid& version, const Sha256Digest& partials) {
  redo_.reset();
  pending_ = PendingVersion{version, partials, redo_bytes_};
  return SaveState();
}

Status Baseline::DropPending() {
  if (!pending_) return Ok();
  pending_.reset();
  return SaveState();
}

Status Baseline::BeginRebuild() {
  version_ = {};
  partials_ = {};
  pending_.reset();
  return SaveState();
}

void Baseline::Write(int64_t at, ByteSpan bytes) {
  mapping_->Update(at, static_cast<int64_t>(bytes.size()),
                   [&](MutableByteSpan out) { CopyBytes(bytes, out); });
}

Status Baseline::SetVersion(const VersionUid& version, const Sha256Digest& partials) {
  version_ = version;
  partials_ = partials;
  pending_.reset();
  return SaveState();
}

Status Baseline::Advance(const tensor::Inventory& inventory, const layout::ChunkList& chunks,
                         int threads) {
  WC_CHECK(pending_.has_value());
  const PendingVersion done = *pending_;
  if (done.redo_bytes > 0) {
    const auto redo = WC_TRY(world_->fs.OpenFile(redo_path(), os::Open::kRead));
    const int64_t found = WC_TRY(redo->Size());
    if (found != done.redo_bytes) {
      return Error{Code::kDataLoss, redo_path() + ": expected " + std::to_string(done.redo_bytes) +
                                        " bytes, found " + std::to_string(found)};
    }
    const auto mapped = WC_TRY(redo->Map(/*writable=*/false));
    WC_TRY(ApplyRedo(mapped->bytes(), inventory, chunks, *mapping_, threads).With(redo_path()));
  }
  WC_TRY(SetVersion(done.version, done.partials));
  const Status removed = world_->fs.Remove(redo_path());
  return removed.ok() || removed.error().code == Code::kNotFound ? Ok() : removed;
}

}  // namespace weightcast::trainer
