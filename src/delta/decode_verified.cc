#include "delta/part.h"

namespace weightcast::delta {
namespace {

Error Unproven(std::string what) { return {Code::kDataLoss, std::move(what)}; }

std::string Name(const tensor::TensorSpec& spec, const PartChunk& chunk) {
  return spec.name + " " + tensor::BoxText(chunk.box);
}

Status CheckPayload(const PartChunk& chunk, ByteSpan payload) {
  if (std::cmp_not_equal(payload.size(), chunk.payload_bytes)) {
    return Unproven("payload of " + std::to_string(payload.size()) + " bytes, the index says " +
                    std::to_string(chunk.payload_bytes));
  }
  if (const Sha256Digest found = Sha256::Of(payload); found != chunk.sha256) {
    return Unproven("payload's SHA-256 is " + found.brief() + ", the index says " +
                    chunk.sha256.brief());
  }
  return Ok();
}

Status Decode(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload,
              ByteSpan base, Scratch& scratch, MutableByteSpan next) {
  const tensor::Matrix matrix = spec.matrix();
  if (!chunk.without_base) {
    const tensor::TensorDigest found = tensor::DigestBox(matrix, chunk.box, base);
    if (found != chunk.base_digest) {
      return Unproven("base has digest " + found.hex() + ", the index says " +
                      chunk.base_digest.hex());
    }
  }
  WC_TRY(DecodeChunk(chunk.method, spec.dtype, chunk.changed_units, payload, base, scratch, next)
             .With("payload"));
  const tensor::TensorDigest found =
      chunk.without_base ? tensor::DigestBox(matrix, chunk.box, next)
                         : chunk.base_digest + tensor::DigestChange(matrix, chunk.box, base, next,
                                                                    scratch.changed());
  if (found != chunk.next_digest) {
    return Unproven("result has digest " + found.hex() + ", the index says " +
                    chunk.next_digest.hex());
  }
  return Ok();
}

}  // namespace

Status ProvePayload(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload) {
  return CheckPayload(chunk, payload).With(Name(spec, chunk));
}

Status DecodeProven(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload,
                    ByteSpan base, Scratch& scratch, MutableByteSpan next) {
  WC_CHECK(chunk.without_base == base.empty());
  return Decode(spec, chunk, payload, base, scratch, next).With(Name(spec, chunk));
}

Status DecodeVerified(const tensor::TensorSpec& spec, const PartChunk& chunk, ByteSpan payload,
                      ByteSpan base, Scratch& scratch, MutableByteSpan next) {
  WC_TRY(ProvePayload(spec, chunk, payload));
  return DecodeProven(spec, chunk, payload, base, scratch, next);
}

}  // namespace weightcast::delta
