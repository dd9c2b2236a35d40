// What names become: catalog and store URLs to open ones. Shared by the command line and the Python
// package, which are the only places that wire things.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "os/world.h"
#include "store/store.h"

namespace weightcast::apps {

// "sqlite:PATH". Errors: kInvalidArgument for a scheme that is not built in, naming those that are;
// kUnavailable if it is not there and is not to be created.
Result<std::unique_ptr<catalog::Catalog>> OpenCatalog(os::World& world, const std::string& url,
                                                      bool create);

// The same URL for another process: "sqlite:PATH" and "file:PATH" with the path made absolute.
Result<std::string> AbsoluteUrl(const std::string& url);

// Stores by URL, each opened once and kept. Any thread.
class Stores {
 public:
  explicit Stores(os::World& world) : world_(world) {}

  // "file:PATH"; relative paths are made absolute.
  Result<store::Store*> Open(const std::string& url);

 private:
  os::World& world_;
  Mutex mu_;
  std::vector<std::pair<std::string, std::unique_ptr<store::Store>>> stores_ WC_GUARDED_BY(mu_);
};

// Where the baselines of a run lie unless somebody says otherwise:
// $XDG_STATE_HOME/weightcast/<run uid>, as docs/cli.md says.
std::string DefaultBaseline(const RunUid& run);

}  // namespace weightcast::apps
