#include "delta/streams.h"

#include <zstd.h>

#include <algorithm>

namespace weightcast::delta {
namespace {

constexpr int kLevel = 1;  // higher levels gain nothing on these streams (docs/design/codec.md)

// A repeat of fewer bytes costs more than it saves. The smallest hash table still finds runs.
constexpr int kMinMatch = 7;
constexpr int kHashLogForRuns = 6;

// A frame costs 9 bytes or more and its first table some 10; what is shorter never wins.
constexpr size_t kCompressFrom = 64;

// A sample is so many pieces, spread evenly. Mantissa bytes of whole tensors are noise, and finding
// that out by compressing all of them would take a third of a full publish.
constexpr size_t kPieces = 4;
constexpr size_t kPieceBytes = 8192;

void Check(size_t zstd_code) { WC_CHECK(!ZSTD_isError(zstd_code)); }

}  // namespace

StreamCoder::StreamCoder() : compressor_(ZSTD_createCCtx()), decompressor_(ZSTD_createDCtx()) {
  WC_CHECK(compressor_ != nullptr && decompressor_ != nullptr);
  Check(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, kLevel));
  Check(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_minMatch, kMinMatch));
}

StreamCoder::~StreamCoder() {
  ZSTD_freeCCtx(compressor_);
  ZSTD_freeDCtx(decompressor_);
}

size_t StreamCoder::Compress(ByteSpan content, std::span<const size_t> cuts, Effort effort) {
  frame_.resize(ZSTD_compressBound(content.size()) + 16 * (cuts.size() + 1));
  Check(ZSTD_CCtx_reset(compressor_, ZSTD_reset_session_only));
  Check(ZSTD_CCtx_setPledgedSrcSize(compressor_, content.size()));
  Check(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_hashLog,
                               effort == Effort::kRuns ? kHashLogForRuns : 0));
  ZSTD_inBuffer in{content.data(), 0, 0};
  ZSTD_outBuffer out{frame_.data(), frame_.size(), 0};
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const bool last = i == cuts.size();
    in.size = last ? content.size() : cuts[i];
    const size_t left =
        ZSTD_compressStream2(compressor_, &out, &in, last ? ZSTD_e_end : ZSTD_e_flush);
    WC_CHECK(left == 0 && in.pos == in.size);
  }
  frame_.resize(out.pos);
  return out.pos;
}

bool StreamCoder::Sample(ByteSpan content, Effort* effort) {
  ByteSpan sample = content;
  const size_t stride = content.size() / kPieces;
  if (stride > 2 * kPieceBytes) {
    sample_.clear();
    for (size_t i = 0; i < kPieces; ++i) {
      ByteWriter(&sample_).PutBytes(content.subspan(i * stride, kPieceBytes));
    }
    sample = sample_;
  }
  const size_t runs = Compress(sample, {}, Effort::kRuns);
  const size_t repeats = Compress(sample, {}, Effort::kRepeats);
  *effort = runs <= repeats ? Effort::kRuns : Effort::kRepeats;
  return std::min(runs, repeats) < sample.size() - sample.size() / 64;
}

void StreamCoder::Pack(ByteSpan content, std::span<const size_t> cuts, Repeats repeats,
                       Bytes* out) {
  Effort effort = Effort::kRuns;
  const bool tried =
      content.size() >= kCompressFrom && (repeats == Repeats::kFew || Sample(content, &effort));
  const bool smaller = tried && Compress(content, cuts, effort) + 4 < content.size();
  ByteWriter writer(out);
  writer.PutVarint(smaller ? frame_.size() : 0);
  writer.PutBytes(smaller ? ByteSpan(frame_) : content);
}

Status StreamCoder::Unpack(ByteReader& in, MutableByteSpan out) {
  const uint64_t frame_bytes = in.GetVarint();
  if (frame_bytes > in.remaining()) in.Fail();
  const ByteSpan bytes = in.GetBytes(frame_bytes == 0 ? out.size() : frame_bytes);
  if (!in.ok()) return Error{Code::kDataLoss, "stream ends early"};
  if (frame_bytes == 0) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size());
    return Ok();
  }
  if (frame_bytes >= out.size()) return Error{Code::kDataLoss, "stream is longer than its content"};
  if (ZSTD_getFrameContentSize(bytes.data(), bytes.size()) != out.size() ||
      ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) != bytes.size()) {
    return Error{Code::kDataLoss, "stream is no frame of " + std::to_string(out.size()) + " bytes"};
  }
  const size_t n =
      ZSTD_decompressDCtx(decompressor_, out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(n) || n != out.size())
    return Error{Code::kDataLoss, "stream does not decompress"};
  return Ok();
}

}  // namespace weightcast::delta
