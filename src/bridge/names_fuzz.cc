// Names that a receiver lists, from anywhere: parsed or refused, and then sorted, each once.
#include <algorithm>

#include "base/bytes.h"
#include "bridge/receiver.h"
#include "fuzz/accepted.h"

namespace weightcast::bridge {
namespace {

bool Parse(ByteSpan input) {
  const auto names = ParseNames(AsText(input));
  if (!names.ok()) {
    WC_CHECK(names.error().code == Code::kInvalidData);
    return false;
  }
  WC_CHECK(!names->empty());
  WC_CHECK(std::ranges::is_sorted(*names));
  WC_CHECK(std::ranges::adjacent_find(*names) == names->end());
  return true;
}

}  // namespace
}  // namespace weightcast::bridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (weightcast::bridge::Parse({data, size})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
