// A part: one object of a version, written by one rank. Payloads of chunks, then an index (footer),
// then a fixed trailer. docs/formats/part.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/status.h"
#include "delta/codec.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::delta {

enum class PartKind : uint8_t {
  kDelta = 1,  // chunks against a base version; unchanged chunks are not listed
  kFull = 2,   // every chunk, without a base
};

// What a part says of itself; must equal what catalog and announcement say of it.
struct PartIdentity {
  PartKind kind = PartKind::kDelta;
  RunUid run;
  VersionUid version;
  VersionUid base;  // empty for kFull
  Epoch epoch;
  RankId rank;
  PlanHash plan;
  LayoutSignature layout;

  bool operator==(const PartIdentity&) const = default;
};

// One listed chunk. Digests are partials of the tensor digest, in the tensor's own coordinates.
struct PartChunk {
  int32_t tensor = 0;
  tensor::Box box;
  Method method = Method::kRaw;
  bool without_base = false;  // decodes without a base (kFull parts, and raw chunks of a rank that
                              // had no baseline)
  int64_t offset = 0;         // of the payload in the object
  int64_t payload_bytes = 0;
  int64_t changed_units = 0;
  tensor::TensorDigest base_digest;  // zero when without_base
  tensor::TensorDigest next_digest;
  Sha256Digest sha256;  // of the payload
};

struct PartIndex {
  PartIdentity identity;
  std::vector<PartChunk> chunks;  // sorted by (tensor, cell, box.row, box.col), offsets ascending
  int64_t object_bytes = 0;
};

// What the announcement carries so that a reader can believe the part.
struct PartSeal {
  int64_t object_bytes = 0;
  int64_t footer_bytes = 0;    // index and trailer: the last bytes of the object
  Sha256Digest footer_sha256;  // of those bytes
};

// Writes a part into a sink, chunk by chunk; holds only the index (about 120 bytes a chunk).
class PartWriter {
 public:
  using Sink = std::function<Status(ByteSpan)>;
  PartWriter(PartIdentity identity, Sink sink);

  // `chunk` without offset, payload_bytes and sha256, which the writer fills in. In sorted order.
  //   Requires: the payload is not empty; chunk.method is not kAbsent.
  Status Add(PartChunk chunk, ByteSpan payload);
  // Writes index and trailer. The writer may only be destroyed afterwards.
  Result<PartSeal> Finish();

  int64_t payload_bytes() const { return payload_bytes_; }

 private:
  Status Write(ByteSpan bytes);  // the header goes before the first bytes

  PartIdentity identity_;
  Sink sink_;
  std::vector<PartChunk> chunks_;
  int64_t at_ = 0;
  int64_t payload_bytes_ = 0;
};

// Parses the footer. Untrusted, but for `seal`. Errors: kDataLoss (size or SHA-256 do not match the
// seal), kInvalidData (malformed: names the record and the rule; a chunk that is no sub-box of one
// cell, out of order, overlapping payloads, gaps, a wrong magic, an unknown version or method).
//   `footer` holds exactly the last seal.footer_bytes bytes of the object.
Result<PartIndex> ParsePartFooter(ByteSpan footer, const PartSeal& seal,
                                  const tensor::Inventory& inventory);

// The first bytes of every part. Nothing in them tells two parts apart, so a reader of chunks does
// not need them; whoever proves a whole object checks them too. Errors: kInvalidData.
inline constexpr int64_t kPartHeaderBytes = 16;
Status CheckPartHeader(ByteSpan header);

// For `inspect`, which has a file and no seal: the sizes that the trailer (the last
// kPartTrailerBytes bytes) gives. The caller then reads the footer and fills in its SHA-256; that
// proves nothing about origin, but the trailer's own check of the index finds damage.
// Errors: kInvalidData (no part, an unknown version, sizes that do not fit).
inline constexpr int64_t kPartTrailerBytes = 24;
Result<PartSeal> SealFromTrailer(ByteSpan trailer, int64_t object_bytes);

// Decodes one chunk of a part and proves it: payload SHA-256, base digest before, next digest
// after. Errors: kDataLoss saying which of the three failed, with tensor name and box.
//   Requires: next.size() == units of chunk.box * unit bytes; `base` packed, or empty if
//   chunk.without_base.
Status DecodeVerified(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload,
                      ByteSpan base, Scratch& scratch, MutableByteSpan next);
// Its two halves, for whoever proves a payload where it arrives and decodes it later: size and
// SHA-256; then the rest.
Status ProvePayload(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload);
Status DecodeProven(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload,
                    ByteSpan base, Scratch& scratch, MutableByteSpan next);

}  // namespace weightcast::delta
