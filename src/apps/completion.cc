#include "apps/completion.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace weightcast::apps {
namespace {

// "publish" -> "--catalog --store ...".
std::string FlagNames(const CLI::App& app) {
  std::string names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names += " --" + name;
  }
  return names;
}

std::string Script(const CLI::App& parser) {
  std::string words;
  std::string cases;
  for (const CLI::App* sub : parser.get_subcommands({})) {
    if (sub->get_group().empty()) continue;
    words += " " + sub->get_name();
    std::string nested;
    for (const CLI::App* leaf : sub->get_subcommands({})) nested += " " + leaf->get_name();
    cases += "    " + sub->get_name() + ") words=\"" + nested + FlagNames(*sub) + "\" ;;\n";
    for (const CLI::App* leaf : sub->get_subcommands({})) {
      cases += "    \"" + sub->get_name() + " " + leaf->get_name() + "\") words=\"" +
               FlagNames(*leaf) + "\" ;;\n";
    }
  }
  return "# bash completion of weightcast: eval \"$(weightcast completion)\"\n"
         "_weightcast() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" words\n"
         "  local command=\"${COMP_WORDS[1]}\"\n"
         "  [[ \"$command\" == bench || \"$command\" == catalog ]] && (( COMP_CWORD > 2 )) && "
         "command=\"$command ${COMP_WORDS[2]}\"\n"
         "  if (( COMP_CWORD == 1 )); then words=\"" +
         words + "\"; else case \"$command\" in\n" + cases +
         "  esac; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ \"$current\" == -* ]] || COMPREPLY+=($(compgen -f -- \"$current\"))\n"
         "}\n"
         "complete -o filenames -F _weightcast weightcast\n";
}

}  // namespace

void AddCompletionCommand(CLI::App& parser) {
  CLI::App* sub = parser.add_subcommand(kCompletion, "print a bash completion script");
  sub->footer("Examples:\n  eval \"$(weightcast completion)\"");
  sub->callback([&parser] { std::cout << Script(parser); });
}

}  // namespace weightcast::apps
