// The file of --config-file: flags by name, in the part of TOML that flags need.
//
//   catalog = "sqlite:/data/c.db"    # top level: for every command that has the flag
//   [bench.generate]                 # a section: for that command only
//   steps = 3
//   [publish]
//   carry = ["model.visual.*", "mtp.*"]
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace weightcast::apps {

// Takes "--config-file F" or "--config-file=F" out of `words`, wherever it stands; else the
// environment's WEIGHTCAST_CONFIG_FILE, else "". Errors: kInvalidArgument if no F follows.
Result<std::string> TakeConfigFile(std::vector<std::string>* words);

// What the file at `path` says of `command` (a subcommand of `parser`, its flags declared), as
// words "--flag=value". Left out is what stands in `words` or in the environment: both win.
// Errors: kInvalidArgument, naming file, line and every key or section that no command knows.
Result<std::vector<std::string>> ConfigWords(const std::string& path, const CLI::App& parser,
                                             const CLI::App& command,
                                             const std::vector<std::string>& words);

}  // namespace weightcast::apps
