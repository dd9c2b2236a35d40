#include "apps/config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/bytes.h"
#include "base/text.h"
#include "os/world.h"

namespace weightcast::apps {
namespace {

constexpr const char* kFlag = "--config-file";
constexpr int64_t kConfigBytesMax = kMiB;

struct Item {
  std::string section;  // "" at top level, else "publish", "bench.generate"
  std::string key;
  std::vector<std::string> values;
  std::string place;  // "FILE:LINE: [section] key"
};

void SkipSpace(std::string_view* text) {
  text->remove_prefix(std::min(text->find_first_not_of(" \t\r"), text->size()));
}

bool Take(std::string_view* text, char c) {
  SkipSpace(text);
  if (!text->starts_with(c)) return false;
  text->remove_prefix(1);
  return true;
}

bool AtEnd(std::string_view text) {
  SkipSpace(&text);
  return text.empty() || text.front() == '#';
}

// A bare word (key, section, number, true), or a string in quotes, without escapes and not empty.
bool TakeValue(std::string_view* text, std::string* value) {
  SkipSpace(text);
  const char quote = text->empty() ? '\0' : text->front();
  if (quote == '"' || quote == '\'') {
    const size_t end = text->find(quote, 1);
    if (end == std::string_view::npos) return false;
    *value = text->substr(1, end - 1);
    text->remove_prefix(end + 1);
    // An escape would mean something else than it says: '...' has none.
    return !value->empty() && (quote == '\'' || value->find('\\') == std::string::npos);
  }
  const size_t end = std::min(text->find_first_of(" \t\r#=,[]\"'"), text->size());
  *value = text->substr(0, end);
  text->remove_prefix(end);
  return end > 0;
}

bool TakeValues(std::string_view* text, std::vector<std::string>* values) {
  if (!Take(text, '[')) return TakeValue(text, &values->emplace_back());
  while (!Take(text, ']')) {
    if (!TakeValue(text, &values->emplace_back())) return false;
    if (!Take(text, ',') && !text->starts_with(']')) return false;
  }
  return true;
}

// Sections and items of `text`; an item without a key stands for its section's line.
Result<std::vector<Item>> Parse(const std::string& path, std::string_view text) {
  std::vector<Item> items;
  std::string section;
  std::vector<std::string> bad;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::string_view rest = line;
    if (AtEnd(rest)) continue;
    const std::string place = path + ":" + std::to_string(number) + ": ";
    Item item;
    bool good = false;
    if (Take(&rest, '[')) {
      good = TakeValue(&rest, &section) && Take(&rest, ']') && AtEnd(rest);
      item = {section, "", {}, place + "[" + section + "]"};
    } else {
      good = TakeValue(&rest, &item.key) && Take(&rest, '=') && TakeValues(&rest, &item.values) &&
             AtEnd(rest);
      item.section = section;
      item.place = place + (section.empty() ? "" : "[" + section + "] ") + item.key;
    }
    if (good) {
      items.push_back(std::move(item));
    } else {
      bad.push_back(place + Quoted(line));
    }
  }
  if (bad.empty()) return items;
  return Error{Code::kInvalidArgument,
               "config file: expected lines [section], key = value or key = [value, ...]; found " +
                   JoinNames(bad)};
}

// Commands by the names of their sections: "publish", "bench.generate".
std::map<std::string, const CLI::App*> CommandsOf(const CLI::App& parser) {
  std::map<std::string, const CLI::App*> commands;
  for (const CLI::App* sub : parser.get_subcommands({})) {
    commands[sub->get_name()] = sub;
    for (const CLI::App* leaf : sub->get_subcommands({})) {
      commands[sub->get_name() + "." + leaf->get_name()] = leaf;
    }
  }
  return commands;
}

bool Has(const CLI::App& command, const std::string& key) {
  return command.get_option_no_throw("--" + key) != nullptr && key != "help";
}

bool Given(const CLI::Option& option, const std::vector<std::string>& words) {
  const char* environment = std::getenv(option.get_envname().c_str());
  if (environment != nullptr && *environment != '\0') return true;
  const std::string flag = "--" + option.get_lnames().front();
  return std::ranges::any_of(
      words, [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
}

}  // namespace

Result<std::string> TakeConfigFile(std::vector<std::string>* words) {
  const std::string with_value = std::string(kFlag) + "=";
  const auto at = std::ranges::find_if(*words, [&](const std::string& word) {
    return word == kFlag || word.starts_with(with_value);
  });
  if (at == words->end()) {
    const char* environment = std::getenv("WEIGHTCAST_CONFIG_FILE");
    return std::string(environment == nullptr ? "" : environment);
  }
  const bool split = *at == kFlag;
  std::string path;
  if (!split) path = at->substr(with_value.size());
  if (split && at + 1 != words->end()) path = *(at + 1);
  if (path.empty()) {
    return Error{Code::kInvalidArgument, std::string(kFlag) + ": expected the path of a file"};
  }
  words->erase(at, at + (split ? 2 : 1));
  return path;
}

Result<std::vector<std::string>> ConfigWords(const std::string& path, const CLI::App& parser,
                                             const CLI::App& command,
                                             const std::vector<std::string>& words) {
  const Result<Bytes> text = os::RealWorld().fs.ReadAll(path, kConfigBytesMax);
  if (!text.ok()) {
    return Error{Code::kInvalidArgument, std::string(kFlag) + ": " + text.error().message};
  }
  const std::map<std::string, const CLI::App*> commands = CommandsOf(parser);
  const std::vector<Item> items = WC_TRY(Parse(path, AsText(*text)));
  std::map<std::string, const Item*> chosen;  // the top level stands first: a section wins over it
  std::vector<std::string> unknown;
  for (const Item& item : items) {
    const auto section = commands.find(item.section);
    const bool known =
        item.section.empty()
            ? std::ranges::any_of(commands, [&](auto& c) { return Has(*c.second, item.key); })
            : section != commands.end() && (item.key.empty() || Has(*section->second, item.key));
    if (!known) unknown.push_back(item.place);
    const bool ours = item.section.empty() || (known && section->second == &command);
    if (!known || !ours || item.key.empty() || !Has(command, item.key)) continue;
    if (!Given(*command.get_option("--" + item.key), words)) chosen[item.key] = &item;
  }
  if (!unknown.empty()) {
    return Error{Code::kInvalidArgument, "config file: no command knows " + JoinNames(unknown)};
  }
  std::vector<std::string> out;
  for (const auto& [key, item] : chosen) {
    for (const std::string& value : item->values) out.push_back("--" + key + "=" + value);
  }
  return out;
}

}  // namespace weightcast::apps
