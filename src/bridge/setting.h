// Settings of a trainer that a mapping depends on.
#pragma once

#include <string_view>

namespace weightcast::bridge {

// A setting of the trainer that changes what shards hold, and the values that the rules are for: as
// JSON, separated by '|'; or "*": any. Absent and null are always fine.
struct Setting {
  std::string_view key;
  std::string_view values;
};

}  // namespace weightcast::bridge
