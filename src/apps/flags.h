// The flags of one subcommand. CLI11 stays behind this header (flags.cc).
//
// Every flag "--full-every" may also be set by the environment variable WEIGHTCAST_FULL_EVERY (an
// empty one counts as not set) and by the same name in the file of --config-file (config_file.h);
// flags win over environment, environment over file. Texts must not be empty, numbers not negative.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace weightcast::apps {

// The largest whole number that every reader of JSON holds exactly; the most threads; the longest
// time, which fits a Duration; what fits an int.
inline constexpr int64_t kJsonIntMax = (int64_t{1} << 53) - 1;
inline constexpr int64_t kThreadsMax = 4096;
inline constexpr int64_t kSecondsMax = 1'000'000'000;
inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

class Flags {
 public:
  // `environment`: whether the flags may be set by the environment.
  explicit Flags(CLI::App& app, bool environment) : app_(app), environment_(environment) {}

  Flags& Text(const std::string& name, std::string* value, const std::string& help);
  Flags& RequiredText(const std::string& name, std::string* value, const std::string& help);
  Flags& Texts(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // One or more after the flag, or separated by commas: "--engines A B", WEIGHTCAST_ENGINES=A,B.
  Flags& RequiredList(const std::string& name, std::vector<std::string>* values,
                      const std::string& help);
  // One of a few words; anything else is a usage error that lists them.
  Flags& Choice(const std::string& name, std::string* value, const std::vector<std::string>& of,
                const std::string& help);
  // A whole number in 0..max.
  Flags& Int(const std::string& name, int64_t* value, const std::string& help,
             int64_t max = std::numeric_limits<int64_t>::max());
  Flags& Int(const std::string& name, std::optional<int64_t>* value, const std::string& help,
             int64_t max = std::numeric_limits<int64_t>::max());
  // A finite number that is not negative.
  Flags& Double(const std::string& name, double* value, const std::string& help);
  Flags& Bool(const std::string& name, bool* value, const std::string& help);
  // Arguments without a name, in this order: "MODEL_DIR".
  Flags& Argument(const std::string& name, std::string* value, const std::string& help);
  Flags& OptionalArgument(const std::string& name, std::string* value, const std::string& help);

 private:
  // Adds an option, with its environment variable if it is a flag.
  template <typename T>
  CLI::Option* Add(const std::string& name, T* value, const std::string& help);

  CLI::App& app_;
  const bool environment_;
};

}  // namespace weightcast::apps
