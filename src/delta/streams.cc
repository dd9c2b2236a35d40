#include "delta/streams.h"

#include <zstd.h>

#include <array>

#include "delta/cost.h"

namespace weightcast::delta {
namespace {

constexpr int kLevel = 1;  // higher levels gain nothing on these streams (docs/design/codec.md)

// A repeat of fewer bytes costs more than it saves: streams are nearly noise. The smallest hash
// table still finds runs, which is what a few repeats are.
constexpr int kMinMatch = 7;
constexpr int kHashLogForFew = 6;

// A frame costs 9 bytes or more and its first table some 10; what is shorter never wins.
constexpr size_t kCompressFrom = 64;

// Long streams are first sampled: mantissa bytes of whole tensors are noise, and finding that out
// by compressing them costs a third of a full publish.
constexpr size_t kSampleFrom = 64 * 1024;
constexpr size_t kSamples = 8192;

bool LooksLikeNoise(ByteSpan content) {
  if (content.size() < kSampleFrom) return false;
  std::array<uint32_t, 256> counts{};
  const size_t stride = content.size() / kSamples;
  size_t samples = 0;
  for (size_t i = 0; i < content.size(); i += stride, ++samples) ++counts[content[i]];
  // 8192 samples of even bytes look like 7.977 bits each: the estimate lacks 255 / (2 ln 2) bits.
  return EntropyBits(counts) > samples * 794 / 100;
}

}  // namespace

StreamCoder::StreamCoder() : compressor_(ZSTD_createCCtx()), decompressor_(ZSTD_createDCtx()) {
  WC_CHECK(compressor_ != nullptr && decompressor_ != nullptr);
  WC_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, kLevel)));
  WC_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_minMatch, kMinMatch)));
}

StreamCoder::~StreamCoder() {
  ZSTD_freeCCtx(compressor_);
  ZSTD_freeDCtx(decompressor_);
}

bool StreamCoder::Compress(ByteSpan content, std::span<const size_t> cuts, Repeats repeats) {
  if (content.size() < kCompressFrom || LooksLikeNoise(content)) return false;
  frame_.resize(ZSTD_compressBound(content.size()) + 16 * (cuts.size() + 1));
  WC_CHECK(!ZSTD_isError(ZSTD_CCtx_reset(compressor_, ZSTD_reset_session_only)));
  WC_CHECK(!ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(compressor_, content.size())));
  const int hash_log = repeats == Repeats::kFew ? kHashLogForFew : 0;
  WC_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_hashLog, hash_log)));
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
  return frame_.size() + 4 < content.size();
}

void StreamCoder::Pack(ByteSpan content, std::span<const size_t> cuts, Repeats repeats,
                       Bytes* out) {
  ByteWriter writer(out);
  const bool smaller = Compress(content, cuts, repeats);
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
