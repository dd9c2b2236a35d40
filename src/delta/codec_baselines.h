// Inside of the codec report: limits of information theory, and encodings that others use, for two
// states of a bf16 tensor.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace weightcast::delta {

struct Bounds {
  double l0 = 0;  // bytes a changed element, without the base
  double l1 = 0;  // given the base's octaves
};
//   Requires: at least one element differs.
Bounds BoundsOf(std::span<const uint16_t> base, std::span<const uint16_t> next);

// Bytes that each encoding takes.
std::map<std::string, int64_t> BaselineBytes(std::span<const uint16_t> base,
                                             std::span<const uint16_t> next);

}  // namespace weightcast::delta
