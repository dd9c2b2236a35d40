#include "base/bytes.h"

namespace weightcast {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Hex(ByteSpan bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Status ParseHex(std::string_view text, MutableByteSpan out) {
  if (text.size() != 2 * out.size()) {
    return Error{Code::kInvalidData, "expected " + std::to_string(2 * out.size()) +
                                         " hexadecimal digits, found " +
                                         std::to_string(text.size())};
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return Error{Code::kInvalidData, "not hexadecimal: \"" + std::string(text) + "\""};
    }
    out[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return Ok();
}

}  // namespace weightcast
