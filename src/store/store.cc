#include "store/store.h"

#include "base/text.h"

namespace weightcast::store {
namespace {

// Length of the UTF-8 sequence at the front of `text`; 0 if it is none (RFC 3629: no overlong
// forms, no surrogates, at most U+10FFFF).
size_t SequenceLength(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto lead = at(0);
  if (lead < 0x80) return 1;
  struct Row {
    unsigned lead_first, lead_last, second_first, second_last;
    size_t length;
  };
  constexpr Row kRows[] = {
      {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
      {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
      {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
  };
  for (const Row& row : kRows) {
    if (lead < row.lead_first || lead > row.lead_last) continue;
    bool good = at(1) >= row.second_first && at(1) <= row.second_last;
    for (size_t i = 2; i < row.length; ++i) good = good && at(i) >= 0x80 && at(i) <= 0xbf;
    return good ? row.length : 0;
  }
  return 0;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = SequenceLength(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

// What is wrong with one part, or "".
std::string_view PartFault(std::string_view part) {
  if (part.empty()) return "has an empty part";
  if (part == "." || part == "..") return "has a part \".\" or \"..\"";
  if (part.size() > kKeyPartBytesMax) return "has a part of more than 255 bytes";
  return "";
}

std::string_view KeyFault(std::string_view key) {
  if (key.empty()) return "is empty";
  if (key.size() > kKeyBytesMax) return "has more than 1024 bytes";
  if (key.find('\0') != std::string_view::npos) return "holds a zero byte";
  if (!IsUtf8(key)) return "is not UTF-8";
  if (key == ".tmp" || key.starts_with(".tmp/")) return "begins with the reserved part \".tmp\"";
  for (size_t at = 0; at <= key.size();) {
    const size_t end = std::min(key.find('/', at), key.size());
    const std::string_view fault = PartFault(key.substr(at, end - at));
    if (!fault.empty()) return fault;
    at = end + 1;
  }
  return "";
}

}  // namespace

Status CheckKey(std::string_view key) {
  const std::string_view fault = KeyFault(key);
  if (fault.empty()) return Ok();
  return Error{Code::kInvalidArgument,
               "key " + Quoted(key.substr(0, 100)) + " " + std::string(fault)};
}

Result<Bytes> Store::GetAll(std::string_view key, int64_t bytes_max) {
  const int64_t size = WC_TRY(Size(key));
  if (size > bytes_max) {
    return Error{Code::kInvalidData, url() + ": object " + std::string(key) + ": has " +
                                         std::to_string(size) + " bytes, at most " +
                                         std::to_string(bytes_max) + " are accepted"};
  }
  Bytes bytes(static_cast<size_t>(size));
  WC_TRY(Get(key, 0, bytes));
  return bytes;
}

}  // namespace weightcast::store
