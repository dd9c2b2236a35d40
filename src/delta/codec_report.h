// How small and how fast the codec is on simulated training, against the limits of information
// theory, memcpy, and encodings that others use. For `weightcast bench codec`;
// docs/design/codec.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/bytes.h"
#include "delta/adam_sim.h"
#include "os/world.h"

namespace weightcast::delta {

struct CodecBenchOptions {
  AdamOptions training;
  int64_t units = int64_t{16} << 20;  // bf16; about 20 bytes of memory each
  int steps = 30;                     // optimizer steps before the one that is measured
  int rounds = 3;                     // each speed is the best of so many
  bool baselines = true;              // other encodings; take several times the rest
};

struct CodecReport {
  int64_t elements = 0;
  int64_t changed_elements = 0;
  double density = 0;
  int64_t wire_bytes = 0;  // of a whole part: payloads and footer
  double bytes_per_changed = 0;
  double bound_l0 =
      0;  // bytes a changed element if positions and values are independent of the base
  double bound_l1 = 0;                       // given the base's octaves, which the receiver sees
  int64_t full_bytes = 0;                    // a full part of the same state
  std::map<std::string, int64_t> baselines;  // encoding: bytes
  std::map<std::string, double> gb_per_s;    // of the dense state, one thread
  double digest_update_per_s = 0;            // changed units
};

// Errors: kInvalidArgument (nothing changed, no units).
Result<CodecReport> RunCodecBench(const CodecBenchOptions& options, os::Clock& clock);

// The same on two states of a bf16 tensor that are at hand.
//   Requires: base.size() == next.size(), even.
Result<CodecReport> MeasureCodec(ByteSpan base, ByteSpan next, const CodecBenchOptions& options,
                                 os::Clock& clock);

}  // namespace weightcast::delta
