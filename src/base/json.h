// Strict JSON: nlohmann behind limits. Duplicate keys, excess depth or size, trailing bytes and
// invalid UTF-8 are refused, since much of what we parse is untrusted.
//
// Only .cc files that handle JSON include this header: it is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace weightcast {

using Json = nlohmann::ordered_json;  // keeps the order in which fields were written

struct JsonLimits {
  size_t bytes_max = size_t{256} << 20;
  int depth_max = 64;
};

// Errors: kInvalidData, with the byte offset.
Result<Json> ParseJson(std::string_view text, JsonLimits limits = {});

// Typed access to an object's field. Errors: kInvalidData naming the field, the expected type and
// what was found.
Result<std::string> JsonString(const Json& object, std::string_view field);
Result<int64_t> JsonInt(const Json& object, std::string_view field);
Result<bool> JsonBool(const Json& object, std::string_view field);
Result<const Json*> JsonObject(const Json& object, std::string_view field);
Result<const Json*> JsonArray(const Json& object, std::string_view field);

}  // namespace weightcast
