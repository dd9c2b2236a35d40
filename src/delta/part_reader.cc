#include <algorithm>
#include <tuple>

#include "delta/part.h"
#include "delta/part_format.h"
#include "layout/cells.h"

namespace weightcast::delta {
namespace {

Error Invalid(std::string what) { return {Code::kInvalidData, std::move(what)}; }

Error UnknownVersion(uint32_t version) {
  return Invalid("version " + std::to_string(version) + " of the part format; this program knows " +
                 std::to_string(kPartVersion));
}

template <typename Id>
Id GetId(ByteReader& in) {
  Id id;
  const ByteSpan bytes = in.GetBytes(id.value.size());
  CopyBytes(bytes, id.value);
  return id;
}

// What has no place in an int64 is no size, count or coordinate of ours.
int64_t GetNumber(ByteReader& in, uint64_t max = uint64_t{1} << 62) {
  const uint64_t value = in.GetVarint();
  if (value > max) in.Fail();
  return in.ok() ? static_cast<int64_t>(value) : 0;
}

Result<tensor::TensorDigest> GetDigest(ByteReader& in) {
  const ByteSpan bytes = in.GetBytes(16);
  if (!in.ok()) return Invalid("ends early");
  return tensor::TensorDigest::Load(bytes.data());
}

struct Trailer {
  int64_t footer_bytes = 0;
  uint64_t index_check = 0;
};

//   Requires: bytes.size() == kPartTrailerBytes.
Result<Trailer> ParseTrailer(ByteSpan bytes, int64_t object_bytes) {
  ByteReader in(bytes);
  const auto footer_bytes = in.Get<uint64_t>();
  const auto check = in.Get<uint64_t>();
  const auto version = in.Get<uint32_t>();
  if (!std::ranges::equal(in.GetBytes(kPartTrailerMagic.size()), kPartTrailerMagic)) {
    return Invalid("no part: its last four bytes are not \"WCPE\"");
  }
  if (version != kPartVersion) return UnknownVersion(version);
  const int64_t most = object_bytes - kPartHeaderBytes;
  if (footer_bytes < kPartTrailerBytes || most < 0 || footer_bytes > static_cast<uint64_t>(most)) {
    return Invalid("footer of " + std::to_string(footer_bytes) + " bytes in a part of " +
                   std::to_string(object_bytes));
  }
  return Trailer{static_cast<int64_t>(footer_bytes), check};
}

Result<PartIdentity> ParseIdentity(ByteReader& in) {
  PartIdentity identity;
  const auto kind = in.Get<uint8_t>();
  identity.run = GetId<RunUid>(in);
  identity.version = GetId<VersionUid>(in);
  identity.base = GetId<VersionUid>(in);
  identity.epoch.value = GetNumber(in);
  identity.rank.value = static_cast<int32_t>(GetNumber(in, INT32_MAX));
  identity.plan = GetId<PlanHash>(in);
  identity.layout = GetId<LayoutSignature>(in);
  if (!in.ok()) return Invalid("identity is cut or out of range");
  if (kind != 1 && kind != 2) return Invalid("kind " + std::to_string(kind) + "; 1 or 2 expected");
  identity.kind = static_cast<PartKind>(kind);
  if ((identity.kind == PartKind::kFull) != identity.base.empty()) {
    return Invalid("a delta names its base, a full part names none");
  }
  return identity;
}

// One record after the other, each checked against the inventory and the record before.
class RecordParser {
 public:
  RecordParser(const tensor::Inventory& inventory, PartKind kind, int64_t payload_end)
      : inventory_(inventory), kind_(kind), payload_end_(payload_end) {}

  Result<PartChunk> Parse(ByteReader& in) {
    PartChunk chunk;
    const auto head = in.Get<uint8_t>();
    WC_TRY(ParseHead(head, &chunk));
    const auto tensors = static_cast<int64_t>(inventory_.size());
    const int64_t tensor = tensor_ + GetNumber(in, INT32_MAX);
    if (in.ok() && tensor >= tensors) {
      return Invalid("tensor " + std::to_string(tensor) + " of " + std::to_string(tensors));
    }
    chunk.box = GetBox(in, (head & kHeadSteps) != 0);
    if (!in.ok()) return Invalid("ends early, or a number is out of range");
    tensor_ = tensor;
    chunk.tensor = static_cast<int32_t>(tensor);
    // Names are made for errors only: a large index has a million records.
    if (const Status rest = ParseRest(in, &chunk); !rest.ok()) {
      return rest.error().With(inventory_[static_cast<size_t>(tensor)].name + " " +
                               tensor::BoxText(chunk.box));
    }
    return chunk;
  }

  int64_t end_of_payloads() const { return at_; }

 private:
  Status ParseHead(uint8_t head, PartChunk* chunk) const {
    const uint8_t method = head & kHeadMethod;
    if ((head & ~(kHeadMethod | kHeadSteps | kHeadWithoutBase)) != 0 || method == 0 ||
        method >= kMethods) {
      return Invalid("head byte " + std::to_string(head) + " is no method of ours");
    }
    chunk->method = static_cast<Method>(method);
    chunk->without_base = (head & kHeadWithoutBase) != 0;
    if (chunk->without_base && chunk->method != Method::kXorPlanes &&
        chunk->method != Method::kRaw) {
      return Invalid("method " + std::to_string(method) + " needs a base");
    }
    if (kind_ == PartKind::kFull && !chunk->without_base) {
      return Invalid("a chunk with a base in a full part");
    }
    return Ok();
  }

  static tensor::Box GetBox(ByteReader& in, bool steps) {
    tensor::Box box;
    box.row = GetNumber(in);
    box.rows = GetNumber(in);
    box.col = GetNumber(in);
    box.cols = GetNumber(in);
    if (!steps) return box;
    box.row_step = GetNumber(in);
    box.col_step = GetNumber(in);
    if (box.row_step == 1 && box.col_step == 1) in.Fail();  // one box, one form
    return box;
  }

  // All that depends on what the chunk's tensor looks like.
  Status ParseRest(ByteReader& in, PartChunk* chunk) {
    const tensor::Matrix matrix = inventory_[static_cast<size_t>(chunk->tensor)].matrix();
    WC_TRY(CheckPlace(matrix, *chunk));
    const int64_t units = chunk->box.units();
    const int64_t raw_bytes = units * matrix.unit_bytes;
    chunk->offset = at_;
    chunk->payload_bytes = GetNumber(in);
    chunk->changed_units = chunk->without_base ? units : GetNumber(in);
    if (!chunk->without_base) chunk->base_digest = WC_TRY(GetDigest(in));
    chunk->next_digest = WC_TRY(GetDigest(in));
    chunk->sha256 = GetId<Sha256Digest>(in);
    if (!in.ok()) return Invalid("ends early, or a number is out of range");
    if (chunk->payload_bytes < 1 || chunk->payload_bytes > raw_bytes ||
        (chunk->method == Method::kRaw && chunk->payload_bytes != raw_bytes)) {
      return Invalid("payload of " + std::to_string(chunk->payload_bytes) + " bytes; raw are " +
                     std::to_string(raw_bytes));
    }
    if (chunk->payload_bytes > payload_end_ - at_) return Invalid("payload runs into the index");
    if (chunk->changed_units < 1 || chunk->changed_units > units) {
      return Invalid(std::to_string(chunk->changed_units) + " changed units of " +
                     std::to_string(units));
    }
    at_ += chunk->payload_bytes;
    return Ok();
  }

  // The box lies in one cell, and behind the record before.
  Status CheckPlace(const tensor::Matrix& matrix, const PartChunk& chunk) {
    const tensor::Box& box = chunk.box;
    if (!tensor::Inside(box, matrix) || box.rows == 0 || box.cols == 0) {
      return Invalid("no box inside a matrix of " + std::to_string(matrix.rows) + " x " +
                     std::to_string(matrix.cols));
    }
    const layout::CellGrid grid = layout::CellGrid::For(matrix);
    const int64_t cell = grid.CellAt(box.row, box.col);
    if (grid.CellAt(box.row + (box.rows - 1) * box.row_step,
                    box.col + (box.cols - 1) * box.col_step) != cell) {
      return Invalid("lies in more than one cell");
    }
    const Place place{chunk.tensor, cell, box.row, box.col};
    if (place <= place_) return Invalid("records are not in ascending order");
    place_ = place;
    return Ok();
  }

  using Place = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // tensor, cell, row, col

  const tensor::Inventory& inventory_;
  const PartKind kind_;
  const int64_t payload_end_;
  int64_t at_ = kPartHeaderBytes;
  int64_t tensor_ = 0;
  Place place_{-1, 0, 0, 0};
};

Result<PartIndex> ParseIndex(ByteSpan index, int64_t payload_end,
                             const tensor::Inventory& inventory) {
  ByteReader in(index);
  PartIndex parsed;
  parsed.identity = WC_TRY(ParseIdentity(in));
  if (parsed.identity.layout != inventory.signature()) {
    return Invalid("layout signature " + parsed.identity.layout.brief() + ", the inventory has " +
                   inventory.signature().brief());
  }
  const uint64_t count = in.GetVarint();
  if (!in.ok() || count > in.remaining() / kRecordBytesMin) {
    return Invalid(std::to_string(count) + " records in " + std::to_string(in.remaining()) +
                   " bytes");
  }
  parsed.chunks.reserve(count);
  RecordParser records(inventory, parsed.identity.kind, payload_end);
  for (uint64_t i = 0; i < count; ++i) {
    Result<PartChunk> chunk = records.Parse(in);
    if (!chunk.ok()) return chunk.error().With("record " + std::to_string(i));
    parsed.chunks.push_back(*chunk);
  }
  if (!in.done()) return Invalid("bytes behind the last record");
  if (records.end_of_payloads() != payload_end) {
    return Invalid("payloads end at " + std::to_string(records.end_of_payloads()) +
                   ", the index starts at " + std::to_string(payload_end));
  }
  return parsed;
}

}  // namespace

Status CheckPartHeader(ByteSpan header) {
  ByteReader in(header);
  const ByteSpan magic = in.GetBytes(kPartMagic.size());
  const auto version = in.Get<uint32_t>();
  const auto zero = in.Get<uint32_t>();
  if (!in.done() || !std::ranges::equal(magic, kPartMagic)) {
    return Invalid("no part: it does not start with \"\\x89WCPART\\n\"");
  }
  if (version != kPartVersion) return UnknownVersion(version);
  if (zero != 0) return Invalid("the header's last four bytes are not zero");
  return Ok();
}

Result<PartSeal> SealFromTrailer(ByteSpan trailer, int64_t object_bytes) {
  if (trailer.size() != kPartTrailerBytes) {
    return Invalid("trailer of " + std::to_string(trailer.size()) + " bytes");
  }
  const Trailer parsed = WC_TRY(ParseTrailer(trailer, object_bytes));
  return PartSeal{
      .object_bytes = object_bytes, .footer_bytes = parsed.footer_bytes, .footer_sha256 = {}};
}

Result<PartIndex> ParsePartFooter(ByteSpan footer, const PartSeal& seal,
                                  const tensor::Inventory& inventory) {
  if (std::cmp_not_equal(footer.size(), seal.footer_bytes)) {
    return Error{Code::kDataLoss, "footer of " + std::to_string(footer.size()) +
                                      " bytes, the seal says " + std::to_string(seal.footer_bytes)};
  }
  if (const Sha256Digest found = Sha256::Of(footer); found != seal.footer_sha256) {
    return Error{Code::kDataLoss, "footer's SHA-256 is " + found.brief() + ", the seal says " +
                                      seal.footer_sha256.brief()};
  }
  if (footer.size() < kPartTrailerBytes) return Invalid("footer is shorter than its trailer");
  const Trailer trailer = WC_TRY(ParseTrailer(footer.last(kPartTrailerBytes), seal.object_bytes));
  if (trailer.footer_bytes != seal.footer_bytes) {
    return Invalid("trailer says a footer of " + std::to_string(trailer.footer_bytes) +
                   " bytes, the seal " + std::to_string(seal.footer_bytes));
  }
  const ByteSpan index = footer.first(footer.size() - kPartTrailerBytes);
  if (IndexCheck(index) != trailer.index_check) {
    return Invalid("the trailer's check does not fit the index");
  }
  PartIndex parsed = WC_TRY(ParseIndex(index, seal.object_bytes - seal.footer_bytes, inventory));
  parsed.object_bytes = seal.object_bytes;
  return parsed;
}

}  // namespace weightcast::delta
