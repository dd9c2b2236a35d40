#include "base/text.h"

#include <cstdio>

namespace weightcast {

std::string JoinNames(const std::vector<std::string>& names, size_t max) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < max; ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > max) text += " ... and " + std::to_string(names.size() - max) + " more";
  return text;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

bool MatchesGlob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last star met, and where its match ends so far
  size_t star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool ValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
    const uint8_t lead = byte(i++);
    if (lead < 0x80) continue;
    if (lead < 0xc2 || lead > 0xf4) return false;
    const size_t more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (more > text.size() - i) return false;
    // What the lead leaves open is decided by the second byte: overlong, surrogate, too large.
    const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return false;
    for (size_t k = 1; k < more; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    i += more;
  }
  return true;
}

}  // namespace weightcast
