// What a subcommand is, and what it may use. Only apps/ reads flags, environment and config files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/wiring.h"
#include "base/json.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "os/world.h"
#include "store/store.h"

namespace weightcast::apps {

// Shared by all commands of one invocation.
class App {
 public:
  explicit App(os::World& world) : world_(world), stores_(world) {}

  os::World& world() { return world_; }
  bool json() const { return json_; }
  void set_json(bool json) { json_ = json; }
  const std::string& self() const { return self_; }  // path of this binary, to start rank processes
  void set_self(std::string self) { self_ = std::move(self); }

  // The result, once: `text` goes to stdout now; with --json the document does, at the end.
  void Emit(Json document, const std::string& text);
  // Ends the invocation: prints the document, with the error if there is one; gives the exit code.
  // A result that could not be written is an error too (unavailable).
  int Finish(const Status& status);
  // A progress bar on stderr if it is a terminal; call with done == total to end it. Any thread.
  void Progress(const std::string& label, int64_t done, int64_t total);

  // Checks that paths which the user named, (flag, path) each, are there; empty ones are not asked
  // for. Errors: kInvalidArgument, listing all that are missing.
  Status CheckInputs(const std::vector<std::pair<const char*, std::string>>& inputs);
  // Errors: kConflict if there is anything in the directory `path`, naming it.
  Status CheckEmpty(const std::string& path);

  // wiring.h, with the world of this invocation; stores live as long as the App.
  Result<std::unique_ptr<catalog::Catalog>> OpenCatalog(const std::string& url,
                                                        bool create = true) {
    return apps::OpenCatalog(world_, url, create);
  }
  Result<store::Store*> OpenStore(const std::string& url) { return stores_.Open(url); }

 private:
  os::World& world_;
  bool json_ = false;
  Json document_;  // null until Emit
  std::string self_;
  Stores stores_;
};

// A row of the command table. `setup` declares the flags (their values live in what it captures)
// and returns the action; the action's error becomes the exit code of docs/cli.md.
struct Command {
  const char* name;      // "publish", or "catalog rebuild" for a nested one
  const char* summary;   // one line; empty: for other commands of ours, not shown in --help
  const char* examples;  // shown below --help
  std::function<std::function<Status(App&)>(Flags&)> setup;
};

// One function a file of apps/: each gives its rows.
std::vector<Command> PublishCommands();
std::vector<Command> PullCommands();     // pull, verify
std::vector<Command> LogCommands();      // log, show
std::vector<Command> AliasCommands();    // alias
std::vector<Command> CatalogCommands();  // catalog rebuild
std::vector<Command> DiffCommands();     // diff, inspect
std::vector<Command> BridgeCommands();   // convert, plan, trace
std::vector<Command> RoundCommands();    // round
std::vector<Command> BenchCommands();    // bench codec, bench generate
std::vector<Command> DemoCommands();

// Text for people: "1.2 GB", "12.3 MB/s", "0.85 %", "1.23 s".
std::string BytesText(int64_t bytes);
std::string PercentText(double fraction);
std::string SecondsText(double seconds);

}  // namespace weightcast::apps
