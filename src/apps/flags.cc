#include "apps/flags.h"

#include <CLI/CLI.hpp>

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

CLI::Option* WithEnvironment(CLI::Option* option, const std::string& flag) {
  return option->envname(EnvironmentName(flag));
}

}  // namespace

Flags& Flags::Text(const std::string& name, std::string* value, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name);
  return *this;
}

Flags& Flags::RequiredText(const std::string& name, std::string* value, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name)->required();
  return *this;
}

Flags& Flags::Texts(const std::string& name, std::vector<std::string>* values,
                    const std::string& help) {
  WithEnvironment(app_.add_option(name, *values, help), name)
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  return *this;
}

Flags& Flags::Choice(const std::string& name, std::string* value,
                     const std::vector<std::string>& of, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name)
      ->check(CLI::IsMember(of))
      ->capture_default_str();
  return *this;
}

Flags& Flags::Int(const std::string& name, int64_t* value, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name)->capture_default_str();
  return *this;
}

Flags& Flags::Int(const std::string& name, std::optional<int64_t>* value, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name);
  return *this;
}

Flags& Flags::Double(const std::string& name, double* value, const std::string& help) {
  WithEnvironment(app_.add_option(name, *value, help), name)->capture_default_str();
  return *this;
}

Flags& Flags::Bool(const std::string& name, bool* value, const std::string& help) {
  WithEnvironment(app_.add_flag(name, *value, help), name);
  return *this;
}

Flags& Flags::Argument(const std::string& name, std::string* value, const std::string& help) {
  app_.add_option(name, *value, help)->required();
  return *this;
}

Flags& Flags::OptionalArgument(const std::string& name, std::string* value,
                               const std::string& help) {
  app_.add_option(name, *value, help);
  return *this;
}

}  // namespace weightcast::apps
