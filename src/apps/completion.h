// `weightcast completion`: a completion script made from the command table.
#pragma once

namespace CLI {
class App;
}

namespace weightcast::apps {

inline constexpr const char* kCompletion = "completion";

// Adds the command to the parser; it prints when parsed.
void AddCompletionCommand(CLI::App& parser);

}  // namespace weightcast::apps
