// Streams: byte strings of known length, stored or as one Zstandard frame, whichever is smaller.
// docs/formats/part.md, "Streams". One coder a thread.
#pragma once

#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/status.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace weightcast::delta {

// What to expect of a stream: kFew keeps the match finder from finding repeats in near-noise that
// cost more than they save.
enum class Repeats : uint8_t { kFew, kMany };

class StreamCoder {
 public:
  StreamCoder();
  ~StreamCoder();
  StreamCoder(const StreamCoder&) = delete;
  StreamCoder& operator=(const StreamCoder&) = delete;

  // Appends `content` as a stream to `out`. `cuts` are ascending places inside `content` where its
  // statistics change: the frame's blocks end there, so that each gets a table of its own.
  void Pack(ByteSpan content, std::span<const size_t> cuts, Repeats repeats, Bytes* out);

  // Reads a stream of out.size() bytes. Untrusted; allocates nothing. Errors: kDataLoss.
  Status Unpack(ByteReader& in, MutableByteSpan out);

 private:
  // Appends a frame if it is smaller than `content` by more than its own length field.
  bool Compress(ByteSpan content, std::span<const size_t> cuts, Repeats repeats);

  ZSTD_CCtx_s* compressor_;
  ZSTD_DCtx_s* decompressor_;
  Bytes frame_;  // of the last Compress
};

}  // namespace weightcast::delta
