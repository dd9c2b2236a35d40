// The one binary. Flags, environment and config files are read here and in flags.cc; below, options
// are structs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>

#include "apps/command.h"
#include "apps/completion.h"
#include "base/log.h"
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
                    DiffCommands, BridgeCommands, BenchCommands, DemoCommands}) {
    for (Command& command : part()) all.push_back(std::move(command));
  }
  return all;
}

struct Entry {
  CLI::App* parser;
  std::function<Status(App&)> action;
};

std::string SelfPath() {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "weightcast";
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App parser(kAbout, "weightcast");
  parser.footer(kExitCodes);
  parser.require_subcommand(1);
  parser.set_version_flag("--version", "weightcast " WEIGHTCAST_VERSION);
  parser
      .set_config("--config-file", "", "flags by name, in TOML; flags and environment win over it")
      ->envname("WEIGHTCAST_CONFIG_FILE");

  bool json = false;
  std::string log_level = "warning";
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError}};
  std::map<std::string, CLI::App*> groups;
  std::vector<Entry> entries;
  const std::vector<Command> commands = AllCommands();
  for (const Command& command : commands) {
    std::string name = command.name;
    CLI::App* parent = &parser;
    if (const size_t space = name.find(' '); space != std::string::npos) {
      const std::string group = name.substr(0, space);
      if (!groups.contains(group)) {
        groups[group] = parser.add_subcommand(group)->require_subcommand(1);
        groups[group]->fallthrough(false);
      }
      parent = groups[group];
      name = name.substr(space + 1);
    }
    // A command without a summary is for other commands of ours: it is not shown.
    CLI::App* sub = parent->add_subcommand(name, command.summary);
    if (*command.summary == '\0') sub->group("");
    sub->footer(std::string("Examples:\n") + command.examples);
    sub->configurable();
    Flags flags(*sub);
    flags.Bool("--json", &json, "print one JSON document on stdout");
    flags.Choice("--log-level", &log_level, {"debug", "info", "warning", "error"},
                 "what is logged on stderr");
    entries.push_back({sub, command.setup(flags)});
  }
  for (auto& [name, group] : groups) {
    std::string summary;
    for (const CLI::App* sub : group->get_subcommands({})) {
      summary += (summary.empty() ? "" : ", ") + sub->get_name();
    }
    group->description(summary);
  }
  AddCompletionCommand(parser);

  App app(os::RealWorld());
  try {
    parser.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return parser.exit(done);
  } catch (const CLI::ParseError& error) {
    // The flags before the wrong one are known, those after it are not.
    app.set_json(std::find(argv, argv + argc, std::string_view("--json")) != argv + argc);
    return app.Finish(Error{Code::kInvalidArgument,
                            std::string(error.what()) + "\nRun with --help for more information."});
  }
  SetLogLevel(levels.at(log_level));
  app.set_json(json);
  app.set_self(SelfPath());
  Status status;
  for (const Entry& entry : entries) {
    if (entry.parser->parsed()) status = entry.action(app);
  }
  return app.Finish(status);
}

}  // namespace
}  // namespace weightcast::apps

int main(int argc, char** argv) { return weightcast::apps::Main(argc, argv); }
