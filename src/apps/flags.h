// The flags of one subcommand. CLI11 stays behind this header (flags.cc).
//
// Every flag "--full-every" may also be set by the environment variable WEIGHTCAST_FULL_EVERY and
// by the same name in the file of --config-file (TOML); flags win over environment, environment
// over file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace weightcast::apps {

class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  Flags& Text(const std::string& name, std::string* value, const std::string& help);
  Flags& RequiredText(const std::string& name, std::string* value, const std::string& help);
  Flags& Texts(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // One of a few words; anything else is a usage error that lists them.
  Flags& Choice(const std::string& name, std::string* value, const std::vector<std::string>& of,
                const std::string& help);
  Flags& Int(const std::string& name, int64_t* value, const std::string& help);
  Flags& Int(const std::string& name, std::optional<int64_t>* value, const std::string& help);
  Flags& Double(const std::string& name, double* value, const std::string& help);
  Flags& Bool(const std::string& name, bool* value, const std::string& help);
  // Arguments without a name, in this order: "MODEL_DIR".
  Flags& Argument(const std::string& name, std::string* value, const std::string& help);
  Flags& OptionalArgument(const std::string& name, std::string* value, const std::string& help);

 private:
  CLI::App& app_;
};

}  // namespace weightcast::apps
