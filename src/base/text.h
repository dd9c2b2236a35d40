// Small text helpers for messages and tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightcast {

// "a, b, c"; after `max` items "... and N more".
std::string JoinNames(const std::vector<std::string>& names, size_t max = 20);
std::string Quoted(std::string_view text);  // "\"text\"", control characters escaped
// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool ValidUtf8(std::string_view text);
// Whether all of `text` fits `pattern`, in which `*` stands for any characters, also none.
bool MatchesGlob(std::string_view pattern, std::string_view text);

}  // namespace weightcast
