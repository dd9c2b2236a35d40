// JSON of a version: what a version row and version.json share. Pure; takes untrusted JSON.
// Fields: docs/formats/version_json.md, "version".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "catalog/catalog.h"

namespace weightcast::catalog {

// An empty id is an empty string.
template <typename Id>
std::string IdText(const Id& id) {
  return id.empty() ? std::string() : id.hex();
}
// Lower case only, so that one id has one text.
template <typename Id>
Result<Id> IdFromText(std::string_view text) {
  if (text.empty()) return Id{};
  Id id = WC_TRY(Id::Parse(text));
  if (id.empty() || id.hex() != text) {
    return Error{Code::kInvalidData, "\"" + std::string(text) + "\" is not a lower-case id"};
  }
  return id;
}
template <typename Id>
Result<Id> JsonId(const Json& object, std::string_view field) {
  const std::string text = WC_TRY(JsonString(object, field));
  return IdFromText<Id>(text).With("field \"" + std::string(field) + "\"");
}

// Like JsonInt, and not negative.
Result<int64_t> JsonCount(const Json& object, std::string_view field);
// An ascending array of numbers from 0.
Result<std::vector<int32_t>> JsonIndices(const Json& object, std::string_view field);

// Refuses fields that are not among `known`: all are listed. So a new field is a new format.
Status CheckFields(const Json& object, std::initializer_list<std::string_view> known);
// Parses `text` as an object whose "v" is 1. Errors name the format that was found.
Result<Json> ParseVersion1(std::string_view text);

// Everything of a version but what moves after READY (state, deadline, failure).
Json VersionToJson(const Version& version);
Result<Version> VersionFromJson(const Json& object);

}  // namespace weightcast::catalog
