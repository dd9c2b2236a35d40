#include "agent/journal.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/hash.h"
#include "delta/scan.h"
#include "delta/sparse.h"
#include "layout/cells.h"

namespace weightcast::agent {
namespace {

constexpr std::string_view kMagic = "WCJOURN1";
constexpr std::string_view kEndMagic = "WCJEND01";
constexpr uint32_t kFormatVersion = 1;
constexpr int64_t kHeaderBytes = 160;
constexpr int64_t kEntryBytes = 80;
constexpr int64_t kTrailerBytes = 40;
static_assert(kJournalFrameBytes == kHeaderBytes + kTrailerBytes);

Error Bad(const std::string& what) { return {Code::kDataLoss, what}; }

size_t Size(int64_t n) { return static_cast<size_t>(n); }

template <typename Id>
Id GetId(ByteReader& in) {
  Id id;
  const ByteSpan bytes = in.GetBytes(id.value.size());
  if (bytes.size() == id.value.size()) CopyBytes(bytes, id.value);
  return id;
}

Bytes EncodeHeader(const JournalIdentity& identity) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.PutBytes(AsBytes(kMagic));
  out.Put(kFormatVersion);
  out.Put(uint32_t{0});
  out.Put(identity.from_generation);
  out.Put(identity.to_generation);
  out.PutBytes(identity.from_version.bytes());
  out.PutBytes(identity.to_version.bytes());
  out.PutBytes(identity.from_root.bytes());
  out.PutBytes(identity.to_root.bytes());
  out.PutBytes(identity.layout.bytes());
  WC_CHECK(bytes.size() == Size(kHeaderBytes));
  return bytes;
}

Result<JournalIdentity> ParseHeader(ByteSpan bytes) {
  ByteReader in(bytes);
  if (AsText(in.GetBytes(kMagic.size())) != kMagic) return Bad("not a journal: wrong magic");
  const auto version = in.Get<uint32_t>();
  if (version != kFormatVersion) {
    return Bad("format version " + std::to_string(version) + ", this program reads " +
               std::to_string(kFormatVersion));
  }
  const auto zero = in.Get<uint32_t>();
  JournalIdentity identity;
  identity.from_generation = in.Get<int64_t>();
  identity.to_generation = in.Get<int64_t>();
  identity.from_version = GetId<VersionUid>(in);
  identity.to_version = GetId<VersionUid>(in);
  identity.from_root = GetId<Root>(in);
  identity.to_root = GetId<Root>(in);
  identity.layout = GetId<LayoutSignature>(in);
  if (!in.done() || zero != 0) return Bad("malformed header");
  if (identity.from_generation < 1 || identity.to_generation <= identity.from_generation) {
    return Bad("header: generations " + std::to_string(identity.from_generation) + " to " +
               std::to_string(identity.to_generation) + " do not ascend from 1");
  }
  return identity;
}

void EncodeEntry(const JournalEntry& entry, Bytes* bytes) {
  ByteWriter out(bytes);
  out.Put(static_cast<uint32_t>(entry.tensor));
  out.Put(static_cast<uint32_t>(entry.form));  // one byte and three zeros
  out.Put(entry.cell);
  out.Put(entry.offset);
  out.Put(static_cast<uint32_t>(entry.bytes));
  out.Put(static_cast<uint32_t>(entry.changed));
  out.Put(static_cast<uint32_t>(entry.gap_bytes));
  out.Put(uint32_t{0});
  out.Put(entry.xxh3);
  const size_t at = bytes->size();
  bytes->resize(at + 32);
  entry.old_digest.Store(bytes->data() + at);
  entry.new_digest.Store(bytes->data() + at + 16);
}

// Everything about an entry that can be said without its body.
Result<JournalEntry> ParseEntry(ByteReader& in, const tensor::Inventory& inventory) {
  const auto tensor = in.Get<uint32_t>();
  const auto form = in.Get<uint32_t>();
  JournalEntry entry;
  entry.cell = in.Get<int64_t>();
  entry.offset = in.Get<int64_t>();
  entry.bytes = in.Get<uint32_t>();
  entry.changed = in.Get<uint32_t>();
  entry.gap_bytes = in.Get<uint32_t>();
  const auto zero = in.Get<uint32_t>();
  entry.xxh3 = in.Get<uint64_t>();
  const ByteSpan digests = in.GetBytes(32);
  if (!in.ok()) return Bad("ends early");
  const auto old_digest = tensor::TensorDigest::Load(digests.data());
  const auto new_digest = tensor::TensorDigest::Load(digests.data() + 16);
  if (!old_digest.ok() || !new_digest.ok()) return Bad("a digest is out of range");
  entry.old_digest = *old_digest;
  entry.new_digest = *new_digest;
  if (tensor >= inventory.size()) return Bad("no tensor " + std::to_string(tensor));
  entry.tensor = static_cast<int32_t>(tensor);
  const tensor::Matrix matrix = inventory[tensor].matrix();
  const layout::CellGrid grid = layout::CellGrid::For(matrix);
  if (entry.cell < 0 || entry.cell >= grid.cells()) {
    return Bad("no cell " + std::to_string(entry.cell) + " in " + inventory[tensor].name);
  }
  const int64_t units = grid.CellBox(entry.cell).units();
  const bool sparse = form == static_cast<uint32_t>(JournalForm::kSparse);
  if (!sparse && form != static_cast<uint32_t>(JournalForm::kWhole)) {
    return Bad("unknown form " + std::to_string(form));
  }
  entry.form = sparse ? JournalForm::kSparse : JournalForm::kWhole;
  const int64_t moved = sparse ? entry.changed : units;
  if (entry.changed < 1 || entry.changed > units || zero != 0 ||
      (sparse ? entry.gap_bytes < entry.changed : entry.gap_bytes != 0) ||
      entry.bytes != entry.gap_bytes + 2 * moved * matrix.unit_bytes) {
    return Bad("sizes do not fit: " + std::to_string(entry.changed) + " of " +
               std::to_string(units) + " units changed, " + std::to_string(entry.gap_bytes) +
               " bytes of gaps, " + std::to_string(entry.bytes) + " in all");
  }
  return entry;
}

// The body of a cell whose `changed` units differ; the smaller form.
JournalForm EncodeBody(int unit_bytes, ByteSpan base, ByteSpan next,
                       std::span<const uint32_t> changed, Bytes* body, int64_t* gap_bytes) {
  body->clear();
  delta::AppendGaps(changed, body);
  *gap_bytes = static_cast<int64_t>(body->size());
  if (body->size() + 2 * changed.size() * Size(unit_bytes) < 2 * next.size()) {
    delta::AppendUnits(next, changed, unit_bytes, body);
    delta::AppendUnits(base, changed, unit_bytes, body);
    return JournalForm::kSparse;
  }
  body->assign(next.begin(), next.end());
  body->insert(body->end(), base.begin(), base.end());
  *gap_bytes = 0;
  return JournalForm::kWhole;
}

void ListSetBits(const std::vector<uint64_t>& mask, std::vector<uint32_t>* out) {
  out->clear();
  for (size_t w = 0; w < mask.size(); ++w) {
    for (uint64_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      out->push_back(static_cast<uint32_t>(w * 64 + Size(std::countr_zero(bits))));
    }
  }
}

// Bodies must tile [begin, end).
Status CheckTiling(const std::vector<JournalEntry>& entries, int64_t begin, int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> bodies;
  bodies.reserve(entries.size());
  for (const JournalEntry& entry : entries) bodies.emplace_back(entry.offset, entry.bytes);
  std::ranges::sort(bodies);
  for (const auto& [offset, bytes] : bodies) {
    if (offset != begin) {
      return Bad("a body starts at " + std::to_string(offset) + ", expected " +
                 std::to_string(begin));
    }
    if (bytes > end - begin) return Bad("a body at " + std::to_string(offset) + " is cut");
    begin += bytes;
  }
  if (begin != end) return Bad("no body lies at " + std::to_string(begin));
  return Ok();
}

std::string EntryName(const tensor::Inventory& inventory, const JournalEntry& entry) {
  return inventory[Size(entry.tensor)].name + " cell " + std::to_string(entry.cell);
}

}  // namespace

int64_t JournalCellBytesMax(int64_t units, int unit_bytes, int64_t changed) {
  if (changed == 0) return 0;
  changed = std::min(changed, units);
  // A gap of 128 units or more takes a second byte, of 16,384 or more a third; few fit in a cell.
  const int64_t gaps = changed + std::min(changed, units / 128) + std::min(changed, units / 16384);
  return kEntryBytes + std::min(gaps + 2 * changed * unit_bytes, 2 * units * unit_bytes);
}

Result<std::unique_ptr<JournalWriter>> JournalWriter::Create(
    os::Fs& fs, const std::string& path, const JournalIdentity& identity,
    std::shared_ptr<const tensor::Inventory> inventory, int64_t bytes_max) {
  auto file = WC_TRY(fs.OpenFile(path, os::Open::kCreate));
  WC_TRY(file->Truncate(0));
  std::unique_ptr<JournalWriter> writer(
      new JournalWriter(std::move(file), identity, std::move(inventory), bytes_max));
  WC_TRY(writer->file_->Write(0, writer->header_));
  return writer;
}

JournalWriter::JournalWriter(std::unique_ptr<os::File> file, const JournalIdentity& identity,
                             std::shared_ptr<const tensor::Inventory> inventory, int64_t bytes_max)
    : file_(std::move(file)),
      inventory_(std::move(inventory)),
      bytes_max_(bytes_max),
      header_(EncodeHeader(identity)),
      at_(kHeaderBytes) {}

CellChange Comparison::Compare(const tensor::Matrix& matrix, const tensor::Box& box, ByteSpan base,
                               ByteSpan next) {
  const auto unit_bytes = Size(matrix.unit_bytes);
  mask_.resize(delta::MaskWords(next.size() / unit_bytes));
  delta::DiffUnits(unit_bytes, base, next, mask_);
  ListSetBits(mask_, &changed_);
  const tensor::TensorDigest before = tensor::DigestBox(matrix, box, base);
  return {changed_, before, before + tensor::DigestChange(matrix, box, base, next, changed_)};
}

Status JournalWriter::Add(int32_t tensor, int64_t cell, ByteSpan base, ByteSpan next,
                          const CellChange& change, Bytes* body) {
  if (change.changed.empty()) return Ok();
  const tensor::Matrix matrix = (*inventory_)[Size(tensor)].matrix();
  WC_CHECK(base.size() == Size(layout::RunOf(matrix, cell).bytes) && next.size() == base.size());
  JournalEntry entry{.tensor = tensor, .cell = cell};
  entry.changed = static_cast<int64_t>(change.changed.size());
  entry.form = EncodeBody(matrix.unit_bytes, base, next, change.changed, body, &entry.gap_bytes);
  entry.bytes = static_cast<int64_t>(body->size());
  entry.xxh3 = Xxh3(*body);
  entry.old_digest = change.old_digest;
  entry.new_digest = change.new_digest;
  {
    MutexLock lock(mu_);
    const int64_t index = kEntryBytes * static_cast<int64_t>(entries_.size() + 1) + kTrailerBytes;
    if (at_ + entry.bytes + index > bytes_max_) {
      return Error{Code::kResourceExhausted, file_->path() + ": the journal would exceed " +
                                                 std::to_string(bytes_max_) + " bytes"};
    }
    entry.offset = at_;
    at_ += entry.bytes;
    changed_ += entry.changed;
    entries_.push_back(entry);
  }
  return file_->Write(entry.offset, *body);
}

Status JournalWriter::Finish(bool durable) {
  std::ranges::sort(entries_, {},
                    [](const JournalEntry& e) { return std::pair(e.tensor, e.cell); });
  Bytes tail = header_;  // in front only for the hash
  for (const JournalEntry& entry : entries_) EncodeEntry(entry, &tail);
  ByteWriter out(&tail);
  const auto count = static_cast<int64_t>(entries_.size());
  out.Put(at_);
  out.Put(count);
  out.Put(at_ + count * kEntryBytes + kTrailerBytes);
  out.Put(Xxh3(tail));
  out.PutBytes(AsBytes(kEndMagic));
  const ByteSpan written = ByteSpan(tail).subspan(Size(kHeaderBytes));
  WC_TRY(file_->Write(at_, written));
  at_ += static_cast<int64_t>(written.size());
  return durable ? file_->Sync() : Ok();
}

Result<Journal> Journal::Open(os::Fs& fs, const std::string& path,
                              std::shared_ptr<const tensor::Inventory> inventory) {
  const auto file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  auto mapping = WC_TRY(file->Map(/*writable=*/false));
  Journal journal = WC_TRY(Parse(mapping->bytes(), std::move(inventory)).With(path));
  journal.mapping_ = std::move(mapping);
  return journal;
}

Result<Journal> Journal::Parse(ByteSpan file, std::shared_ptr<const tensor::Inventory> inventory) {
  Journal journal;
  journal.file_ = file;
  journal.inventory_ = std::move(inventory);
  WC_TRY(journal.ParseAll());
  return journal;
}

Status Journal::ParseAll() {
  if (bytes() < kJournalFrameBytes) {
    return Bad("has " + std::to_string(bytes()) + " bytes, a journal has at least " +
               std::to_string(kJournalFrameBytes));
  }
  identity_ = WC_TRY(ParseHeader(file_.first(Size(kHeaderBytes))));
  if (identity_.layout != inventory_->signature()) {
    return Bad("journal of layout " + identity_.layout.brief() + ", the image has " +
               inventory_->signature().brief());
  }
  ByteReader trailer(file_.last(Size(kTrailerBytes)));
  const auto index_at = trailer.Get<int64_t>();
  const auto count = trailer.Get<int64_t>();
  const auto file_bytes = trailer.Get<int64_t>();
  const auto xxh3 = trailer.Get<uint64_t>();
  if (AsText(trailer.GetBytes(kEndMagic.size())) != kEndMagic) return Bad("no commit record");
  if (file_bytes != bytes() || index_at < kHeaderBytes || index_at > bytes() - kTrailerBytes ||
      count != (bytes() - kTrailerBytes - index_at) / kEntryBytes ||
      index_at + count * kEntryBytes != bytes() - kTrailerBytes) {
    return Bad("commit record: " + std::to_string(count) + " entries at " +
               std::to_string(index_at) + " of " + std::to_string(file_bytes) +
               " bytes do not fit a file of " + std::to_string(bytes()));
  }
  const ByteSpan index = file_.subspan(Size(index_at), Size(count * kEntryBytes));
  Bytes hashed(file_.begin(), file_.begin() + kHeaderBytes);
  hashed.insert(hashed.end(), index.begin(), index.end());
  const ByteSpan sizes = file_.last(Size(kTrailerBytes)).first(24);
  hashed.insert(hashed.end(), sizes.begin(), sizes.end());
  if (Xxh3(hashed) != xxh3) return Bad("header and index do not match their hash");

  ByteReader in(index);
  entries_.reserve(Size(count));
  for (int64_t i = 0; i < count; ++i) {
    entries_.push_back(WC_TRY(ParseEntry(in, *inventory_).With("entry " + std::to_string(i))));
    const JournalEntry& entry = entries_.back();
    if (i > 0) {
      const JournalEntry& before = entries_[Size(i) - 1];
      if (std::tie(before.tensor, before.cell) >= std::tie(entry.tensor, entry.cell)) {
        return Bad("entry " + std::to_string(i) + ": out of order");
      }
    }
  }
  WC_TRY(CheckTiling(entries_, kHeaderBytes, index_at));
  for (const JournalEntry& entry : entries_) {
    if (Xxh3(file_.subspan(Size(entry.offset), Size(entry.bytes))) != entry.xxh3) {
      return Bad(EntryName(*inventory_, entry) + ": does not match its hash");
    }
  }
  return Ok();
}

Journal::EntryUnits Journal::UnitsOf(const JournalEntry& entry) const {
  const ByteSpan body = file_.subspan(Size(entry.offset), Size(entry.bytes));
  const ByteSpan units = body.subspan(Size(entry.gap_bytes));
  return {body.first(Size(entry.gap_bytes)), units.last(units.size() / 2),
          units.first(units.size() / 2)};
}

Status Journal::Write(const JournalEntry& entry, bool undo, MutableByteSpan cell) const {
  const EntryUnits units = UnitsOf(entry);
  const ByteSpan wanted = undo ? units.old_units : units.new_units;
  if (entry.form == JournalForm::kWhole) {
    WC_CHECK(wanted.size() == cell.size());
    CopyBytes(wanted, cell);
    return Ok();
  }
  const int unit_bytes = (*inventory_)[Size(entry.tensor)].matrix().unit_bytes;
  if (!delta::ScatterUnits(unit_bytes, units.gaps, wanted, cell)) {
    return Bad(EntryName(*inventory_, entry) + ": positions do not fit the cell");
  }
  return Ok();
}

}  // namespace weightcast::agent
