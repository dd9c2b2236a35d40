// Version 0: registered from the seed checkpoint's files, by root, without moving weight bytes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "os/world.h"
#include "store/store.h"
#include "tensor/hf_directory.h"

namespace weightcast::trainer {

// Hashes the side files of a directory, stores each once, by content, and gives their catalog rows.
// Errors: as Store::Put; kDataLoss if a file changed since it was hashed.
Result<std::vector<catalog::SideFileRow>> PublishSideFiles(os::World& world, store::Store& store,
                                                           const std::string& directory);

struct SeedOptions {
  std::string run_name;
  // Names of the tensors that the trainer does not hold; they stay as they are in the seed.
  std::vector<std::string> carried;
  int threads = 0;
  std::function<void(int64_t)> progress;  // bytes digested so far
};

struct RegisteredSeed {
  catalog::Run run;
  catalog::Version version;
};

// Opens (or creates) the run with the seed's inventory and registers v0. May be called by every
// rank and again after any failure: the same seed gives the same answer, another one is kConflict.
Result<RegisteredSeed> RegisterSeed(os::World& world, catalog::Catalog& catalog,
                                    store::Store& store, const tensor::HfDirectory& seed,
                                    const SeedOptions& options);

}  // namespace weightcast::trainer
