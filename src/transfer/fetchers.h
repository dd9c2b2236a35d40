// One fetcher a store, opened when a version first names it. For agents and for lost baselines.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "os/world.h"
#include "store/store.h"
#include "transfer/fetcher.h"
#include "transfer/source.h"

namespace weightcast::transfer {

// Opens the store of a URL; the store outlives whoever asks.
using OpenStore = std::function<Result<store::Store*>(const std::string& url)>;

// Not for many threads at once; the fetchers that it gives are.
class Fetchers {
 public:
  // `open_store` outlives this.
  Fetchers(os::World& world, const OpenStore& open_store)
      : world_(world), open_store_(open_store) {}

  Result<store::Store*> StoreOf(const std::string& url) {
    Entry& entry = by_url_[url];
    if (entry.store == nullptr) entry.store = WC_TRY(open_store_(url));
    return entry.store;
  }

  Result<Fetcher*> For(const catalog::Version& version) {
    store::Store* store = WC_TRY(StoreOf(version.store_url));
    Entry& entry = by_url_[version.store_url];
    if (entry.fetcher == nullptr) {
      entry.source = std::make_unique<StoreSource>(*store);
      // A read of a directory is a read of a file: no round trip that a second one could hide.
      const bool near = version.store_url.starts_with("file:");
      entry.fetcher =
          std::make_unique<Fetcher>(world_, std::vector<Source*>{entry.source.get()},
                                    near ? FetchOptions{.parallel = 1} : FetchOptions{});
    }
    return entry.fetcher.get();
  }

  // Adds what arrived, by source kind.
  void AddBytes(std::map<std::string, int64_t>* by_kind) const {
    for (const auto& [url, entry] : by_url_) {
      if (entry.fetcher == nullptr) continue;
      for (const auto& [kind, bytes] : entry.fetcher->bytes_by_kind()) (*by_kind)[kind] += bytes;
    }
  }

 private:
  struct Entry {
    store::Store* store = nullptr;
    std::unique_ptr<StoreSource> source;
    std::unique_ptr<Fetcher> fetcher;
  };
  os::World& world_;
  const OpenStore& open_store_;
  std::map<std::string, Entry> by_url_;
};

}  // namespace weightcast::transfer
