// The one binary. Flags, environment and config files are read here and in flags.cc; below, options
// are structs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <map>

#include "apps/command.h"
#include "apps/completion.h"
#include "apps/config_file.h"
#include "apps/process.h"
#include "base/log.h"
#include "base/text.h"
#include "os/world.h"

namespace weightcast::apps {
namespace {

constexpr const char* kAbout =
    "Weightcast moves policy weights from an RL trainer to its inference engines: right, fast, "
    "never "
    "half-way.\n\n"
    "  weightcast publish --catalog sqlite:c.db --store file:bytes --run policy --seed SEED_DIR "
    "MODEL_DIR\n"
    "  weightcast pull    --catalog sqlite:c.db --run policy --seed SEED_DIR IMAGE_DIR\n"
    "  weightcast verify  IMAGE_DIR\n\n"
    "Try `weightcast demo`, or `weightcast COMMAND --help`.";

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 a fault of ours, 2 usage, 3 data that does not verify, 4 conflict or "
    "illegal\n"
    "state, 5 unavailable (the same call may work later).";

std::vector<Command> AllCommands() {
  std::vector<Command> all;
  for (auto part : {PublishCommands, PullCommands, LogCommands, AliasCommands, CatalogCommands,
                    DiffCommands, BridgeCommands, RoundCommands, BenchCommands, DemoCommands}) {
    for (Command& command : part()) all.push_back(std::move(command));
  }
  return all;
}

bool IsFlag(const std::string& word) { return word.starts_with('-'); }

// The command that `words` name: the first word that is no flag, in a group with the one after it;
// "" if they name none. Errors: kInvalidArgument for a name that there is not.
Result<std::string> ChosenCommand(const std::vector<std::string>& words,
                                  const std::vector<Command>& commands) {
  const auto first = std::ranges::find_if_not(words, IsFlag);
  if (first == words.end()) return std::string();
  std::string name = *first;
  if (name == kCompletion) return name;
  std::string group;
  for (const Command& command : commands) {
    if (std::string_view(command.name).starts_with(name + " ")) group = name + " ";
  }
  if (!group.empty()) {
    if (first + 1 == words.end() || IsFlag(*(first + 1))) return std::string();
    name = group + *(first + 1);
  }
  std::vector<std::string> known;
  for (const Command& command : commands) {
    if (command.name == name) return name;
    const bool shown = *command.summary != '\0';
    if (shown && std::string_view(command.name).starts_with(group)) known.push_back(command.name);
  }
  if (group.empty()) known.push_back(kCompletion);
  return Error{Code::kInvalidArgument,
               "no command " + Quoted(name) + "; known: " + JoinNames(known, known.size())};
}

constexpr std::pair<const char*, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                        {"info", LogLevel::kInfo},
                                                        {"warning", LogLevel::kWarning},
                                                        {"error", LogLevel::kError}};

// The parser of all commands, and what the chosen one does.
class CommandLine {
 public:
  CommandLine(const std::vector<Command>& commands, const std::string& chosen) {
    parser_.footer(kExitCodes);
    parser_.require_subcommand(1);
    parser_.set_version_flag("--version", "weightcast " WEIGHTCAST_VERSION);
    Flags(parser_, /*environment=*/true)  // for --help: TakeConfigFile reads it
        .Text("--config-file", &config_file_, "flags by name, in TOML; flags and environment win");
    for (const Command& command : commands) Add(command, command.name == chosen);
    for (auto& [name, group] : groups_) {
      std::string summary;
      for (const CLI::App* sub : group->get_subcommands({})) {
        summary += (summary.empty() ? "" : ", ") + sub->get_name();
      }
      group->description(summary);
    }
    AddCompletionCommand(parser_);
  }

  Status Run(App& app, std::vector<std::string> words, const std::string& config_file) {
    if (!config_file.empty() && chosen_ != nullptr) {
      const auto own =
          std::ranges::find_if_not(words, IsFlag) + (chosen_->get_parent() == &parser_ ? 1 : 2);
      const auto more = WC_TRY(ConfigWords(config_file, parser_, *chosen_, words));
      words.insert(own, more.begin(), more.end());
    }
    std::ranges::reverse(words);  // as CLI11 wants them
    try {
      parser_.parse(std::move(words));
    } catch (const CLI::Success& done) {  // --help, --version
      parser_.exit(done);
      return Ok();
    } catch (const CLI::ParseError& error) {
      return Error{Code::kInvalidArgument,
                   std::string(error.what()) + "\nRun with --help for more information."};
    }
    for (const auto& [name, level] : kLevels) {
      if (name == log_level_) SetLogLevel(level);
    }
    app.set_json(json_);
    return action_ ? action_(app) : Ok();
  }

 private:
  void Add(const Command& command, bool chosen) {
    std::string name = command.name;
    CLI::App* parent = &parser_;
    if (const size_t space = name.find(' '); space != std::string::npos) {
      CLI::App*& group = groups_[name.substr(0, space)];
      if (group == nullptr) {
        group = parser_.add_subcommand(name.substr(0, space))->require_subcommand(1);
      }
      parent = group;
      name = name.substr(space + 1);
    }
    // A command without a summary is for other commands of ours: it is not shown.
    CLI::App* sub = parent->add_subcommand(name, command.summary);
    if (*command.summary == '\0') sub->group("");
    sub->footer(std::string("Examples:\n") + command.examples);
    std::vector<std::string> levels;
    for (const auto& [level, value] : kLevels) levels.emplace_back(level);
    // One name may mean different things in two commands: the environment speaks to the chosen one.
    Flags flags(*sub, /*environment=*/chosen);
    flags.Bool("--json", &json_, "print one JSON document on stdout");
    flags.Choice("--log-level", &log_level_, levels, "what is logged on stderr");
    const auto action = command.setup(flags);
    if (!chosen) return;
    chosen_ = sub;
    action_ = action;
  }

  CLI::App parser_{kAbout, "weightcast"};
  std::map<std::string, CLI::App*> groups_;
  std::string config_file_;
  bool json_ = false;
  std::string log_level_ = "warning";
  CLI::App* chosen_ = nullptr;
  std::function<Status(App&)> action_;  // empty: help, or completion
};

std::string SelfPath() {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "weightcast";
}

Status Run(App& app, std::vector<std::string> words) {
  const std::string config_file = WC_TRY(TakeConfigFile(&words));
  const std::vector<Command> commands = AllCommands();
  const std::string chosen = WC_TRY(ChosenCommand(words, commands));
  try {
    return CommandLine(commands, chosen).Run(app, std::move(words), config_file);
  } catch (const std::bad_alloc&) {  // a size that the user chose
    return Error{Code::kResourceExhausted, chosen + ": this host has not enough memory"};
  }
}

int Main(int argc, char** argv) {
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
  DieWithParent();
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  App app(os::RealWorld());
  app.set_self(SelfPath());
  // For errors on the way: what a flag after the wrong one says is not known otherwise.
  app.set_json(std::ranges::find(words, "--json") != words.end());
  return app.Finish(Run(app, std::move(words)));
}

}  // namespace
}  // namespace weightcast::apps

int main(int argc, char** argv) { return weightcast::apps::Main(argc, argv); }
