#include "trainer/baseline.h"

#include <algorithm>

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "base/units.h"

namespace weightcast::trainer {
namespace {

constexpr int64_t kStateBytesMax = kMiB;
constexpr int64_t kStateFormat = 1;

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

std::string Baseline::kept_path() const { return os::JoinPath(directory_, "kept.part"); }

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
      baseline.pending_ =
          PendingPart{WC_TRY(IdField<VersionUid>(pending, "version")),
                      {WC_TRY(JsonInt(pending, "bytes")), WC_TRY(JsonInt(pending, "footer_bytes")),
                       WC_TRY(IdField<Sha256Digest>(pending, "footer_sha256"))},
                      WC_TRY(IdField<Sha256Digest>(pending, "partials"))};
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
                        {"bytes", pending_->seal.object_bytes},
                        {"footer_bytes", pending_->seal.footer_bytes},
                        {"footer_sha256", pending_->seal.footer_sha256.hex()},
                        {"partials", pending_->partials.hex()}};
  }
  // Not durable: it would say nothing after a host restart anyway (see boot_id).
  return world_->fs.WriteAtomically(os::JoinPath(directory_, "state.json"), AsBytes(state.dump(1)),
                                    /*durable=*/false);
}

Status Baseline::SetPending(const PendingPart& pending) {
  pending_ = pending;
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
  mapping_->Update(at, static_cast<int64_t>(bytes.size()), [&](MutableByteSpan out) {
    std::copy(bytes.begin(), bytes.end(), out.begin());
  });
}

Status Baseline::SetVersion(const VersionUid& version, const Sha256Digest& partials) {
  version_ = version;
  partials_ = partials;
  pending_.reset();
  return SaveState();
}

Status Baseline::Advance(const tensor::Inventory& inventory, const layout::ChunkList& chunks) {
  WC_CHECK(pending_.has_value());
  const delta::PartSeal& seal = pending_->seal;
  std::unique_ptr<os::File> kept = WC_TRY(world_->fs.OpenFile(kept_path(), os::Open::kRead));
  const int64_t kept_bytes = WC_TRY(kept->Size());
  if (kept_bytes != seal.object_bytes) {
    return Error{Code::kDataLoss, kept_path() + ": expected " + std::to_string(seal.object_bytes) +
                                      " bytes, found " + std::to_string(kept_bytes)};
  }
  Bytes footer(static_cast<size_t>(seal.footer_bytes));
  WC_TRY(kept->Read(kept_bytes - seal.footer_bytes, footer));
  const delta::PartIndex index =
      WC_TRY(delta::ParsePartFooter(footer, seal, inventory).With(kept_path()));

  delta::Scratch scratch;
  Bytes payload;
  Bytes next;
  size_t own = 0;
  for (const delta::PartChunk& part : index.chunks) {
    while (own < chunks.chunks.size() &&
           (chunks.chunks[own].tensor != part.tensor || chunks.chunks[own].box != part.box)) {
      ++own;
    }
    if (own == chunks.chunks.size()) {
      return Error{Code::kDataLoss, kept_path() + ": a chunk of " +
                                        inventory[static_cast<size_t>(part.tensor)].name +
                                        " is not this rank's"};
    }
    const tensor::TensorSpec& spec = inventory[static_cast<size_t>(part.tensor)];
    const tensor::Matrix matrix = spec.matrix();
    const int64_t bytes = part.box.units() * matrix.unit_bytes;
    const ByteSpan base = chunk(chunks.chunks[own], bytes);
    const tensor::TensorDigest found = tensor::DigestBox(matrix, part.box, base);
    if (found == part.next_digest) continue;  // a death came after this chunk

    payload.resize(static_cast<size_t>(part.payload_bytes));
    next.resize(static_cast<size_t>(bytes));
    WC_TRY(kept->Read(part.offset, payload));
    WC_TRY(delta::DecodeVerified(spec, part, payload, part.without_base ? ByteSpan() : base,
                                 scratch, next)
               .With(kept_path()));
    Write(chunks.chunks[own].at, next);
  }
  const PendingPart done = *pending_;
  WC_TRY(SetVersion(done.version, done.partials));
  return world_->fs.Remove(kept_path());
}

}  // namespace weightcast::trainer
