// alias: names for versions that outlive numbers ("eval", "best"); they hold what they name.
#include "apps/command.h"
#include "apps/run_choice.h"
#include "base/text.h"

namespace weightcast::apps {

namespace {

struct Values {
  std::string catalog;
  std::string run;
  std::string name;
  std::string version;
  std::string remove;
};

Status Alias(App& app, const Values& v) {
  if (v.name.empty() != v.version.empty() || (!v.remove.empty() && !v.name.empty())) {
    return Error{Code::kInvalidArgument,
                 "alias: expected NAME and VERSION to set one, --remove NAME to remove one, or "
                 "nothing to list them"};
  }
  const auto catalog = WC_TRY(app.OpenCatalog(v.catalog, /*create=*/false));
  const catalog::Run run = WC_TRY(ChooseRun(*catalog, v.run));
  if (!v.remove.empty()) WC_TRY(catalog->RemoveAlias(run.uid, v.remove));
  if (!v.name.empty()) {
    const catalog::Version version = WC_TRY(catalog->FindVersion(run.uid, v.version));
    WC_TRY(catalog->SetAlias(run.uid, v.name, version.uid));
  }
  Json aliases = Json::object();
  std::string text;
  for (const auto& [name, uid] : WC_TRY(catalog->ListAliases(run.uid))) {
    const catalog::Version version = WC_TRY(catalog->GetVersion(uid));
    aliases[name] = {{"number", version.number}, {"uid", uid.hex()}};
    text += name + " -> version " + std::to_string(version.number) + " (" + uid.hex() + ")\n";
  }
  app.Emit({{"run", run.name}, {"aliases", aliases}}, text.empty() ? "no aliases\n" : text);
  return Ok();
}

}  // namespace

std::vector<Command> AliasCommands() {
  return {{"alias", "name a version, so that it is found and kept; or list the names",
           "  weightcast alias --catalog sqlite:c.db --run policy best 7\n"
           "  weightcast alias --catalog sqlite:c.db --run policy --remove best\n"
           "  weightcast alias --catalog sqlite:c.db --run policy\n",
           [](Flags& f) {
             auto v = std::make_shared<Values>();
             f.RequiredText("--catalog", &v->catalog, "sqlite:PATH")
                 .Text("--run", &v->run, "name of the run; the only one if it is not given")
                 .Text("--remove", &v->remove, "the alias to remove")
                 .OptionalArgument("NAME", &v->name, "the alias to set")
                 .OptionalArgument("VERSION", &v->version, "number, uid, alias or latest");
             return [v](App& app) { return Alias(app, *v); };
           }}};
}

}  // namespace weightcast::apps
