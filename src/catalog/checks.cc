#include "catalog/checks.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace weightcast::catalog {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

bool PlainText(std::string_view text, size_t bytes_max) {
  return text.size() <= bytes_max && ValidUtf8(text) &&
         std::ranges::none_of(text, [](char c) { return c >= 0 && (c < 0x20 || c == 0x7f); });
}

// For a message, whatever the bytes are.
std::string Shown(std::string_view text) {
  if (!ValidUtf8(text)) return "0x" + Hex(AsBytes(text.substr(0, 64)));
  return text.size() <= 200 ? Quoted(text) : std::to_string(text.size()) + " bytes";
}

bool SafePath(std::string_view path) {
  if (!PlainText(path, kKeyBytesMax)) return false;
  for (size_t start = 0;;) {
    const size_t end = std::min(path.find('/', start), path.size());
    if (end == start || path[start] == '.') return false;
    if (end == path.size()) return true;
    start = end + 1;
  }
}

template <typename Indices>
bool Ascending(const Indices& indices, int64_t size) {
  int64_t above = -1;
  for (const int32_t index : indices) {
    if (index <= above || index >= size) return false;
    above = index;
  }
  return true;
}

}  // namespace

Status CheckName(std::string_view what, std::string_view name) {
  const bool good = !name.empty() && name.size() <= kNameBytesMax && IsAlnum(name[0]) &&
                    std::ranges::all_of(name, [](char c) {
                      return IsAlnum(c) || c == '.' || c == '_' || c == '-';
                    });
  if (good) return Ok();
  return Error{Code::kInvalidArgument, std::string(what) + " " + Shown(name) +
                                           ": expected 1 to 128 of A-Z a-z 0-9 . _ -, beginning "
                                           "with a letter or digit"};
}

Status CheckAlias(std::string_view alias) {
  WC_TRY(CheckName("alias", alias));
  const bool number = std::ranges::all_of(alias, IsDigit);
  const bool uid = alias.size() == 32 && std::ranges::all_of(alias, IsHex);
  if (!number && !uid && alias != "latest") return Ok();
  return Error{Code::kInvalidArgument, "alias " + Quoted(alias) +
                                           ": numbers, \"latest\" and 32 hexadecimal digits name "
                                           "versions already"};
}

Status CheckText(std::string_view what, std::string_view text) {
  if (PlainText(text, kTextBytesMax)) return Ok();
  return Error{Code::kInvalidArgument, std::string(what) + " " + Shown(text) +
                                           ": expected at most 4096 bytes of UTF-8 without control "
                                           "characters"};
}

Status CheckLabels(const std::map<std::string, std::string>& labels) {
  std::vector<std::string> bad;
  if (labels.size() > kLabelsMax) {
    bad.push_back(std::to_string(labels.size()) + " labels, at most " + std::to_string(kLabelsMax));
  }
  for (const auto& [name, value] : labels) {
    if (name.empty() || !PlainText(name, kNameBytesMax)) bad.push_back("label " + Shown(name));
    const Status status = CheckText("label " + Shown(name) + ": value", value);
    if (!status.ok()) bad.push_back(status.error().message);
  }
  if (bad.empty()) return Ok();
  return Error{Code::kInvalidArgument, JoinNames(bad)};
}

Status CheckSideFiles(const std::vector<SideFileRow>& files) {
  std::vector<std::string> bad;
  std::set<std::string_view> names;
  for (const SideFileRow& file : files) {
    if (!SafePath(file.name) || file.name.ends_with(".safetensors")) {
      bad.push_back(Shown(file.name) + " is not a name that a side file may have");
    } else if (!names.insert(file.name).second) {
      bad.push_back(Shown(file.name) + " is there more than once");
    }
    if (file.bytes < 0 || file.sha256.empty()) bad.push_back(Shown(file.name) + " has no content");
  }
  if (bad.empty()) return Ok();
  return Error{Code::kInvalidData, "side files: " + JoinNames(bad)};
}

Status CheckObject(const ObjectRef& object) {
  std::string why;
  if (object.key.empty() || !PlainText(object.key, kKeyBytesMax)) why = "bad key";
  if (object.footer_bytes <= 0 || object.footer_bytes > object.bytes) {
    why = "footer of " + std::to_string(object.footer_bytes) + " bytes in an object of " +
          std::to_string(object.bytes);
  }
  if (object.footer_sha256.empty()) why = "no footer digest";
  if (why.empty()) return Ok();
  return Error{Code::kInvalidData, "object " + Shown(object.key) + ": " + why};
}

Status CheckParticipants(const std::vector<int32_t>& participants) {
  if (!participants.empty() && Ascending(participants, INT64_MAX)) return Ok();
  return Error{Code::kInvalidArgument,
               "participants: expected ranks from 0, ascending and at least one"};
}

Status CheckCarried(const std::vector<int32_t>& carried, const tensor::Inventory& inventory) {
  const auto size = static_cast<int64_t>(inventory.size());
  if (Ascending(carried, size)) return Ok();
  return Error{
      Code::kInvalidArgument,
      "carried tensors: expected ascending indices of an inventory of " + std::to_string(size)};
}

}  // namespace weightcast::catalog
