#include "base/json.h"

#include <set>
#include <vector>

namespace weightcast {
namespace {

// Builds the document while refusing duplicate keys and excess depth as they appear, so that a
// hostile document never costs more than its own size. The library's own builder looks every key of
// an ordered object up one by one: quadratic, a minute for the index of a large model.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  StrictSax(Json* out, int depth_max) : out_(*out), depth_max_(static_cast<size_t>(depth_max)) {}

  const std::string& why() const { return why_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool v) override { return Add(v); }
  bool number_integer(number_integer_t v) override { return Add(v); }
  bool number_unsigned(number_unsigned_t v) override { return Add(v); }
  bool number_float(number_float_t v, const string_t&) override { return Add(v); }
  bool string(string_t& v) override { return Add(std::move(v)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool key(string_t& v) override {
    if (!open_.back().keys.insert(v).second) return Refuse("duplicate key \"" + v + "\"");
    open_.back().key = std::move(v);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Drop the library's own prefix "[json.exception....] ".
    const std::string text = error.what();
    const size_t cut = text.find("] ");
    return Refuse("byte " + std::to_string(position) + ": " +
                  (cut == std::string::npos ? text : text.substr(cut + 2)));
  }

 private:
  // A container that is still being filled.
  struct Level {
    Json* node;
    std::set<std::string> keys;
    std::string key;  // of the next member
  };

  Json* Place(Json value) {
    if (open_.empty()) {
      out_ = std::move(value);
      return &out_;
    }
    Level& level = open_.back();
    if (level.node->is_array()) {
      level.node->push_back(std::move(value));
      return &level.node->back();
    }
    auto& members = level.node->get_ref<Json::object_t&>();
    members.emplace_back(std::move(level.key), std::move(value));
    return &members.back().second;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (open_.size() == depth_max_) {
      return Refuse("nested deeper than " + std::to_string(depth_max_));
    }
    open_.push_back({Place(std::move(value)), {}, {}});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Refuse(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }

  Json& out_;
  size_t depth_max_;
  std::vector<Level> open_;
  std::string why_;
};

Error WrongType(std::string_view field, std::string_view expected, const Json& found) {
  return {Code::kInvalidData, "field \"" + std::string(field) + "\": expected " +
                                  std::string(expected) + ", found " + found.type_name()};
}

Result<const Json*> Field(const Json& object, std::string_view field) {
  if (!object.is_object()) {
    return Error{Code::kInvalidData, "expected an object with field \"" + std::string(field) +
                                         "\", found " + object.type_name()};
  }
  const auto it = object.find(std::string(field));
  if (it == object.end()) {
    return Error{Code::kInvalidData, "field \"" + std::string(field) + "\" is missing"};
  }
  return &*it;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.bytes_max) {
    return Error{Code::kInvalidData, "JSON of " + std::to_string(text.size()) + " bytes, at most " +
                                         std::to_string(limits.bytes_max)};
  }
  // The library takes a NUL for the end of its input and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return Error{Code::kInvalidData, "JSON: byte " + std::to_string(nul + 1) + ": a NUL"};
  }
  Json out;
  StrictSax sax(&out, limits.depth_max);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) {
    return Error{Code::kInvalidData, "JSON: " + sax.why()};
  }
  return out;
}

Result<std::string> JsonString(const Json& object, std::string_view field) {
  const Json* value = WC_TRY(Field(object, field));
  if (!value->is_string()) return WrongType(field, "a string", *value);
  return value->get<std::string>();
}

Result<int64_t> JsonInt(const Json& object, std::string_view field) {
  const Json* value = WC_TRY(Field(object, field));
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Error{Code::kInvalidData, "field \"" + std::string(field) + "\": " + value->dump() +
                                         " does not fit 63 bits"};
  }
  if (!value->is_number_integer()) return WrongType(field, "an integer", *value);
  return value->get<int64_t>();
}

Result<bool> JsonBool(const Json& object, std::string_view field) {
  const Json* value = WC_TRY(Field(object, field));
  if (!value->is_boolean()) return WrongType(field, "true or false", *value);
  return value->get<bool>();
}

Result<const Json*> JsonObject(const Json& object, std::string_view field) {
  const Json* value = WC_TRY(Field(object, field));
  if (!value->is_object()) return WrongType(field, "an object", *value);
  return value;
}

Result<const Json*> JsonArray(const Json& object, std::string_view field) {
  const Json* value = WC_TRY(Field(object, field));
  if (!value->is_array()) return WrongType(field, "an array", *value);
  return value;
}

}  // namespace weightcast
