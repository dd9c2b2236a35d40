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

// What to expect of a stream. In near-noise the match finder finds repeats that cost more than they
// save, and takes most of the time; kFew keeps it from that, kUnknown tries both on a sample.
enum class Repeats : uint8_t { kFew, kUnknown };

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
  enum class Effort : uint8_t { kRuns, kRepeats };  // what the match finder can find

  // Leaves a frame in frame_, and returns its size.
  size_t Compress(ByteSpan content, std::span<const size_t> cuts, Effort effort);
  // Whether a frame is worth trying, and with which effort.
  bool Sample(ByteSpan content, Effort* effort);

  ZSTD_CCtx_s* compressor_;
  ZSTD_DCtx_s* decompressor_;
  Bytes frame_;
  Bytes sample_;
};

}  // namespace weightcast::delta
