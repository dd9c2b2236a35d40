#include "trainer/seed.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"

namespace weightcast::trainer {
namespace {

// Configs and tokenizers are a few MB; nothing that large belongs beside weights.
constexpr int64_t kSideFileBytesMax = 512 * kMiB;

}  // namespace

Status StoreSideFiles(os::World& world, store::Store& store, const tensor::HfDirectory& directory,
                      const std::vector<tensor::SideFile>& files) {
  for (const tensor::SideFile& file : files) {
    const std::string path = os::JoinPath(directory.path(), file.name);
    const Bytes bytes = WC_TRY(world.fs.ReadAll(path, kSideFileBytesMax));
    if (Sha256::Of(bytes) != file.sha256) {
      return Error{Code::kDataLoss, path + ": changed while it was read"};
    }
    Status put = store.Put(catalog::SideFileKey(file.sha256), bytes);
    if (!put.ok() && put.error().code != Code::kAlreadyExists) return put.With(path);
  }
  return Ok();
}

Result<std::vector<catalog::SideFileRow>> PublishSideFiles(os::World& world, store::Store& store,
                                                           const tensor::HfDirectory& directory) {
  const std::vector<tensor::SideFile> files = WC_TRY(directory.HashSideFiles(world.fs));
  WC_TRY(StoreSideFiles(world, store, directory, files));
  std::vector<catalog::SideFileRow> rows;
  for (const tensor::SideFile& file : files) rows.push_back({file.name, file.bytes, file.sha256});
  return rows;
}

Result<RegisteredSeed> RegisterSeed(os::World& world, catalog::Catalog& catalog, store::Store& store,
                                    const tensor::HfDirectory& seed, const SeedOptions& options) {
  const auto& inventory = seed.inventory();
  std::vector<int32_t> carried;
  for (const std::string& name : options.carried) {
    const int64_t index = inventory->Find(name);
    if (index < 0) {
      return Error{Code::kInvalidData, "carried tensor " + Quoted(name) + " is not in the seed " +
                                           seed.path()};
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
  std::vector<catalog::SideFileRow> side_files = WC_TRY(PublishSideFiles(world, store, seed));
  catalog::Version version =
      WC_TRY(catalog.RegisterSeed({.run = run.uid,
                                   .digests = std::move(digests),
                                   .side_files = std::move(side_files),
                                   .store_url = store.url()})
                 .With("seed " + seed.path()));
  return RegisteredSeed{run, std::move(version)};
}

}  // namespace weightcast::trainer
