// Small text helpers for messages and tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightcast {

// "a, b, c"; after `max` items "... and N more".
std::string JoinNames(const std::vector<std::string>& names, size_t max = 20);
std::string Quoted(std::string_view text);  // "\"text\"", control characters escaped

}  // namespace weightcast
