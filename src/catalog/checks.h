// What the catalog lets in: names, texts, lists. Every error lists all offenders. Pure.
// Errors: kInvalidArgument where the call is wrong, kInvalidData where data is.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"

namespace weightcast::catalog {

inline constexpr size_t kTextBytesMax = 4096;  // of a token, a URL, a label's value
// Of epochs and version numbers: what every reader of JSON holds exactly.
inline constexpr int64_t kNumberMax = (int64_t{1} << 53) - 1;
inline constexpr size_t kNameBytesMax = 128;  // of a run, an alias, a label
inline constexpr size_t kLabelsMax = 64;
inline constexpr size_t kKeyBytesMax = 1024;  // of an object and a side file

// [A-Za-z0-9][A-Za-z0-9._-]{0,127}
Status CheckName(std::string_view what, std::string_view name);
// A name that FindVersion would not take for "latest", a number or a uid.
Status CheckAlias(std::string_view alias);
// UTF-8 without control characters, at most kTextBytesMax bytes.
Status CheckText(std::string_view what, std::string_view text);
Status CheckLabels(const std::map<std::string, std::string>& labels);
// Relative paths that stay inside a directory and hide nothing there: no empty, dotted or absolute
// part, no weight file (*.safetensors), no name twice. Readers write these files.
Status CheckSideFiles(const std::vector<SideFileRow>& files);
Status CheckObject(const ObjectRef& object);
// Ascending, from 0, not empty.
Status CheckParticipants(const std::vector<int32_t>& participants);
// Ascending indices of the inventory.
Status CheckCarried(const std::vector<int32_t>& carried, const tensor::Inventory& inventory);

}  // namespace weightcast::catalog
