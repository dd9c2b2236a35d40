#include "base/json.h"

#include <set>
#include <vector>

namespace weightcast {
namespace {

// Builds the document while refusing duplicate keys and excess depth as they appear, so that a
// hostile document never costs more than its own size.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  StrictSax(Json* out, int depth_max) : dom_(*out, false), depth_max_(depth_max) {}

  const std::string& why() const { return why_; }

  bool null() override { return dom_.null(); }
  bool boolean(bool v) override { return dom_.boolean(v); }
  bool number_integer(number_integer_t v) override { return dom_.number_integer(v); }
  bool number_unsigned(number_unsigned_t v) override { return dom_.number_unsigned(v); }
  bool number_float(number_float_t v, const string_t& s) override { return dom_.number_float(v, s); }
  bool string(string_t& v) override { return dom_.string(v); }
  bool binary(binary_t& v) override { return dom_.binary(v); }
  bool start_object(std::size_t n) override {
    keys_.emplace_back();
    return Deeper() && dom_.start_object(n);
  }
  bool key(string_t& v) override {
    if (!keys_.back().insert(v).second) return Refuse("duplicate key \"" + v + "\"");
    return dom_.key(v);
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return dom_.end_object();
  }
  bool start_array(std::size_t n) override { return Deeper() && dom_.start_array(n); }
  bool end_array() override {
    --depth_;
    return dom_.end_array();
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Drop the library's own prefix "[json.exception....] ".
    const std::string text = error.what();
    const size_t cut = text.find("] ");
    return Refuse("byte " + std::to_string(position) + ": " +
                  (cut == std::string::npos ? text : text.substr(cut + 2)));
  }

 private:
  bool Deeper() {
    if (++depth_ > depth_max_) return Refuse("nested deeper than " + std::to_string(depth_max_));
    return true;
  }
  bool Refuse(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }

  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  std::vector<std::set<std::string>> keys_;
  int depth_max_;
  int depth_ = 0;
  std::string why_;
};

Error WrongType(std::string_view field, std::string_view expected, const Json& found) {
  return {Code::kInvalidData, "field \"" + std::string(field) + "\": expected " +
                                  std::string(expected) + ", found " + found.type_name()};
}

Result<const Json*> Field(const Json& object, std::string_view field) {
  if (!object.is_object()) {
    return Error{Code::kInvalidData,
                 "expected an object with field \"" + std::string(field) + "\", found " +
                     object.type_name()};
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
    return Error{Code::kInvalidData, "JSON of " + std::to_string(text.size()) +
                                         " bytes, at most " + std::to_string(limits.bytes_max)};
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
