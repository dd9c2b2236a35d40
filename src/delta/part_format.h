// Inside of the part: constants that writer and reader share. docs/formats/part.md.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"

namespace weightcast::delta {

inline constexpr std::array<uint8_t, 8> kPartMagic = {0x89, 'W', 'C', 'P', 'A', 'R', 'T', '\n'};
inline constexpr std::array<uint8_t, 4> kPartTrailerMagic = {'W', 'C', 'P', 'E'};
inline constexpr uint32_t kPartVersion = 1;

// A record's head byte.
inline constexpr uint8_t kHeadMethod = 0x07;
inline constexpr uint8_t kHeadSteps = 0x40;
inline constexpr uint8_t kHeadWithoutBase = 0x80;

// Of a record: head, tensor, four of the box, payload bytes, next digest, SHA-256.
inline constexpr size_t kRecordBytesMin = 7 + 16 + 32;

// The trailer's own check of the index.
inline uint64_t IndexCheck(ByteSpan index) {
  return LoadLe<uint64_t>(Sha256::Of(index).value.data());
}

}  // namespace weightcast::delta
