#include "apps/wiring.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/text.h"
#include "catalog/sql/sqlite.h"
#include "store/directory_store.h"

namespace weightcast::apps {
namespace {

// The rest of `url` after `scheme`, or nothing.
std::optional<std::string> AfterScheme(const std::string& url, std::string_view scheme) {
  if (!url.starts_with(scheme)) return std::nullopt;
  return url.substr(scheme.size());
}

Result<std::string> AbsolutePath(const std::string& url, const std::string& path) {
  if (path.empty()) return Error{Code::kInvalidArgument, Quoted(url) + ": the path is missing"};
  return std::filesystem::absolute(path).lexically_normal().string();
}

}  // namespace

Result<std::unique_ptr<catalog::Catalog>> OpenCatalog(os::World& world, const std::string& url,
                                                      bool create) {
  if (const auto path = AfterScheme(url, "sqlite:")) {
    const std::string absolute = WC_TRY(AbsolutePath(url, *path));
    if (!create && !WC_TRY(world.fs.Exists(absolute))) {
      return Error{Code::kUnavailable,
                   "catalog " + Quoted(url) + " is not reachable: there is no file " + absolute};
    }
    return catalog::OpenSqliteCatalog(world, absolute, {.create = create});
  }
  return Error{Code::kInvalidArgument,
               "catalog " + Quoted(url) + ": expected sqlite:PATH (a file on this host)"};
}

Result<std::string> AbsoluteUrl(const std::string& url) {
  for (const char* scheme : {"sqlite:", "file:"}) {
    const auto path = AfterScheme(url, scheme);
    if (path) return scheme + WC_TRY(AbsolutePath(url, *path));
  }
  return url;
}

Result<store::Store*> Stores::Open(const std::string& url) {
  const auto path = AfterScheme(url, "file:");
  if (!path) {
    return Error{Code::kInvalidArgument, "store " + Quoted(url) + ": expected file:PATH"};
  }
  const std::string absolute = WC_TRY(AbsolutePath(url, *path));
  MutexLock lock(mu_);
  for (const auto& [known, store] : stores_) {
    if (known == absolute) return store.get();
  }
  stores_.emplace_back(absolute, WC_TRY(store::DirectoryStore::Open(world_, absolute)));
  return stores_.back().second.get();
}

std::string DefaultBaseline(const RunUid& run) {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = state != nullptr && *state != '\0' ? state
                           : home != nullptr                  ? std::string(home) + "/.local/state"
                                                              : "/var/tmp";
  return base + "/weightcast/" + run.hex();
}

}  // namespace weightcast::apps
