#include "apps/flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

namespace weightcast::apps {
namespace {

// "--full-every" -> "WEIGHTCAST_FULL_EVERY".
std::string EnvironmentName(const std::string& flag) {
  std::string name = "WEIGHTCAST_";
  for (const char c : flag.substr(flag.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// Does all of `text` say a number?
template <typename T>
bool Parses(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

CLI::Validator NotEmpty() {
  return {[](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, ""};
}

CLI::Validator WholeNumber(int64_t max) {
  return {[max](const std::string& text) -> std::string {
            int64_t value = 0;
            if (Parses(text, &value) && value >= 0 && value <= max) return "";
            return "expected a whole number in 0.." + std::to_string(max) + ", found " + text;
          },
          ""};
}

CLI::Validator FiniteNumber() {
  return {[](const std::string& text) -> std::string {
            double value = 0;
            if (Parses(text, &value) && std::isfinite(value) && value >= 0) return "";
            return "expected a number that is not negative, found " + text;
          },
          ""};
}

}  // namespace

template <typename T>
CLI::Option* Flags::Add(const std::string& name, T* value, const std::string& help) {
  CLI::Option* option = app_.add_option(name, *value, help);
  return environment_ && name.starts_with("--") ? option->envname(EnvironmentName(name)) : option;
}

Flags& Flags::Text(const std::string& name, std::string* value, const std::string& help) {
  Add(name, value, help)->check(NotEmpty());
  return *this;
}

Flags& Flags::RequiredText(const std::string& name, std::string* value, const std::string& help) {
  Add(name, value, help)->check(NotEmpty())->required();
  return *this;
}

Flags& Flags::Texts(const std::string& name, std::vector<std::string>* values,
                    const std::string& help) {
  Add(name, values, help)->check(NotEmpty())->expected(1)->take_all()->allow_extra_args(false);
  return *this;
}

Flags& Flags::RequiredList(const std::string& name, std::vector<std::string>* values,
                           const std::string& help) {
  Add(name, values, help)->check(NotEmpty())->required()->delimiter(',');
  return *this;
}

Flags& Flags::Choice(const std::string& name, std::string* value,
                     const std::vector<std::string>& of, const std::string& help) {
  Add(name, value, help)->check(CLI::IsMember(of))->capture_default_str();
  return *this;
}

Flags& Flags::Int(const std::string& name, int64_t* value, const std::string& help, int64_t max) {
  Add(name, value, help)->check(WholeNumber(max))->capture_default_str();
  return *this;
}

Flags& Flags::Int(const std::string& name, std::optional<int64_t>* value, const std::string& help,
                  int64_t max) {
  Add(name, value, help)->check(WholeNumber(max));
  return *this;
}

Flags& Flags::Double(const std::string& name, double* value, const std::string& help) {
  Add(name, value, help)->check(FiniteNumber())->capture_default_str();
  return *this;
}

Flags& Flags::Bool(const std::string& name, bool* value, const std::string& help) {
  CLI::Option* option = app_.add_flag(name, *value, help);
  if (environment_) option->envname(EnvironmentName(name));
  return *this;
}

Flags& Flags::Argument(const std::string& name, std::string* value, const std::string& help) {
  return RequiredText(name, value, help);
}

Flags& Flags::OptionalArgument(const std::string& name, std::string* value,
                               const std::string& help) {
  return Text(name, value, help);
}

}  // namespace weightcast::apps
