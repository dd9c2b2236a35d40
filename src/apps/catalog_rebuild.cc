// catalog rebuild: a lost catalog put back from the version.json files of a store.
#include <algorithm>
#include <map>
#include <set>

#include "apps/command.h"
#include "base/text.h"

namespace weightcast::apps {
namespace {

constexpr int64_t kVersionJsonBytesMax = 256 * kMiB;

struct Bad {
  std::string key;
  std::string why;
};

// A version.json that was read and believed. The document itself is read again when its turn comes:
// the inventories of many versions do not fit in memory.
struct Found {
  std::string key;
  VersionUid uid;
  VersionUid base;
  int64_t number = 0;
};

Result<catalog::VersionDocument> ReadDocument(store::Store& store, const std::string& key) {
  const Bytes text = WC_TRY(store.GetAll(key, kVersionJsonBytesMax));
  catalog::VersionDocument document = WC_TRY(catalog::ParseVersionJson(AsText(text)));
  const std::string expected = catalog::VersionJsonKey(document.run.uid, document.version.uid);
  if (key == expected) return document;
  return Error{Code::kInvalidData, "it belongs at " + expected};
}

Status ReadAll(App& app, store::Store& store, std::vector<Found>* found, std::vector<Bad>* bad) {
  std::vector<std::string> keys;
  WC_TRY(store.List("runs/", [&](const store::ObjectInfo& object) {
    if (object.key.ends_with("/version.json")) keys.push_back(object.key);
    return Ok();
  }));
  std::ranges::sort(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Result<catalog::VersionDocument> document = ReadDocument(store, keys[i]);
    if (document.ok()) {
      found->push_back(
          {keys[i], document->version.uid, document->version.base, document->version.number});
    } else if (document.error().code == Code::kInvalidData ||
               document.error().code == Code::kDataLoss) {
      bad->push_back({keys[i], document.error().message});
    } else {
      return document.error();  // the store: nothing is known about the document
    }
    app.Progress("read", static_cast<int64_t>(i + 1), static_cast<int64_t>(keys.size()));
  }
  return Ok();
}

// Bases first; one whose base is not in the store may come at any time.
std::vector<Found> BasesFirst(std::vector<Found> found) {
  std::ranges::sort(found, {}, &Found::number);  // then a run needs one pass, a fork one more
  std::set<VersionUid> waiting;
  for (const Found& f : found) waiting.insert(f.uid);
  std::vector<Found> ordered;
  while (!found.empty()) {
    std::vector<Found> later;
    for (const Found& f : found) {
      if (waiting.contains(f.base)) {
        later.push_back(f);
      } else {
        waiting.erase(f.uid);
        ordered.push_back(f);
      }
    }
    if (later.size() == found.size()) {  // a circle: forged, and its order does not matter
      ordered.insert(ordered.end(), later.begin(), later.end());
      break;
    }
    found = std::move(later);
  }
  return ordered;
}

// Rebuilding into a catalog that has something of its own would mix two histories.
Status NothingElse(catalog::Catalog& catalog, const std::vector<Found>& found) {
  std::set<VersionUid> uids;
  for (const Found& f : found) uids.insert(f.uid);
  std::vector<std::string> others;
  for (const catalog::Run& run : WC_TRY(catalog.ListRuns())) {
    for (const catalog::Version& version : WC_TRY(catalog.ListVersions(run.uid))) {
      if (version.state == catalog::VersionState::kReady && uids.contains(version.uid)) continue;
      others.push_back("version " + std::to_string(version.number) + " of run " + run.name + " (" +
                       version.uid.hex() + ", " + std::string(StateName(version.state)) + ")");
    }
  }
  if (others.empty()) return Ok();
  return Error{Code::kConflict, "the catalog is not empty and has what the store has not: " +
                                    JoinNames(others) + "; rebuild into a new one"};
}

Status Rebuild(App& app, const std::string& store_url, const std::string& catalog_url) {
  store::Store* store = WC_TRY(app.OpenStore(store_url));
  std::vector<Found> found;
  std::vector<Bad> bad;
  WC_TRY(ReadAll(app, *store, &found, &bad));
  const auto catalog = WC_TRY(app.OpenCatalog(catalog_url));
  WC_TRY(NothingElse(*catalog, found));

  int64_t restored = 0;
  int64_t skipped = 0;
  for (const Found& f : BasesFirst(std::move(found))) {
    const catalog::VersionDocument document = WC_TRY(ReadDocument(*store, f.key).With(f.key));
    const bool there = catalog->GetVersion(f.uid).ok();
    const Status status = catalog->Restore(document.run, document.version, document.digests);
    if (status.ok()) {
      ++(there ? skipped : restored);
    } else if (status.error().code == Code::kConflict && !there) {
      bad.push_back({f.key, status.error().message});
    } else {
      return status.error().With(f.key);
    }
  }
  Json bad_json = Json::array();
  std::vector<std::string> bad_names;
  for (const Bad& b : bad) {
    bad_json.push_back({{"key", b.key}, {"error", b.why}});
    bad_names.push_back(b.key + ": " + b.why);
  }
  const std::string incarnation = WC_TRY(catalog->Incarnation());
  app.Emit(
      {{"incarnation", incarnation},
       {"restored", restored},
       {"skipped", skipped},
       {"bad", bad_json},
       {"lost", {"aliases", "pins", "leases", "rounds", "attempts that were not READY"}}},
      std::to_string(restored) + " versions restored, " + std::to_string(skipped) +
          " were there already, " + std::to_string(bad.size()) +
          " bad\nlost with the old catalog: aliases, pins, leases, rounds, attempts that were not "
          "READY\ntrainers must open a new epoch\n");
  if (bad.empty()) return Ok();
  return Error{Code::kDataLoss, "not restored: " + JoinNames(bad_names)};
}

}  // namespace

std::vector<Command> CatalogCommands() {
  return {{"catalog rebuild", "put a lost catalog back from the version.json files of a store",
           "  weightcast catalog rebuild --store file:/data/bytes --catalog sqlite:new.db\n",
           [](Flags& f) {
             auto v = std::make_shared<std::pair<std::string, std::string>>();
             f.RequiredText("--store", &v->first, "file:PATH; read only")
                 .RequiredText("--catalog", &v->second, "sqlite:PATH; new, or left by a rebuild");
             return [v](App& app) { return Rebuild(app, v->first, v->second); };
           }}};
}

}  // namespace weightcast::apps
