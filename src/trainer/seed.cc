#include "trainer/seed.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "trainer/publisher.h"

namespace weightcast::trainer {

Result<std::vector<catalog::SideFileRow>> PublishSideFiles(os::World& world, store::Store& store,
                                                           const std::string& directory) {
  std::vector<catalog::SideFileRow> rows;
  for (const tensor::SideFile& file : WC_TRY(tensor::HashSideFiles(world.fs, directory))) {
    const std::string path = os::JoinPath(directory, file.name);
    const Bytes bytes = WC_TRY(world.fs.ReadAll(path, file.bytes));
    if (Sha256::Of(bytes) != file.sha256) {
      return Error{Code::kDataLoss, path + ": changed while it was read"};
    }
    const Status put = store.Put(catalog::SideFileKey(file.sha256), bytes);
    if (!put.ok() && put.error().code != Code::kAlreadyExists) return put.error().With(path);
    rows.push_back({file.name, file.bytes, file.sha256});
  }
  return rows;
}

Result<RegisteredSeed> RegisterSeed(os::World& world, catalog::Catalog& catalog,
                                    store::Store& store, const tensor::HfDirectory& seed,
                                    const SeedOptions& options) {
  const auto& inventory = seed.inventory();
  std::vector<int32_t> carried;
  for (const std::string& name : options.carried) {
    const int64_t index = inventory->Find(name);
    if (index < 0) {
      return Error{Code::kInvalidData,
                   "carried tensor " + Quoted(name) + " is not in the seed " + seed.path()};
    }
    carried.push_back(static_cast<int32_t>(index));
  }
  std::sort(carried.begin(), carried.end());
  const catalog::Run run = WC_TRY(
      catalog.OpenRun({.name = options.run_name, .inventory = inventory, .carried = carried}));

  const tensor::MappedWeights weights =
      WC_TRY(tensor::MappedWeights::Map(world.fs, seed, /*writable=*/false));
  std::vector<tensor::TensorDigest> digests =
      WC_TRY(tensor::DigestAll(*inventory, weights, options.threads, options.progress));
  std::vector<catalog::SideFileRow> side_files =
      WC_TRY(PublishSideFiles(world, store, seed.path()));
  catalog::Version version = WC_TRY(catalog
                                        .RegisterSeed({.run = run.uid,
                                                       .digests = std::move(digests),
                                                       .side_files = std::move(side_files),
                                                       .store_url = store.url()})
                                        .With("seed " + seed.path()));
  WC_TRY(WriteVersionJson(catalog, store, version));
  return RegisteredSeed{run, std::move(version)};
}

}  // namespace weightcast::trainer
