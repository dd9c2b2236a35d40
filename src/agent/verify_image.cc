#include "agent/agent.h"
#include "agent/side_files.h"
#include "tensor/root.h"

namespace weightcast::agent {

DigestsOf DigestsIn(catalog::Catalog* catalog) {
  if (catalog == nullptr) return {};
  return [catalog](const VersionUid& version) { return catalog->GetDigests(version); };
}

Result<VerifyReport> VerifyImage(os::World& world, const std::string& path, int threads,
                                 const DigestsOf& digests_of,
                                 const std::function<void(int64_t)>& progress) {
  const SteadyTime begin = world.clock.Now();
  Image image(world, path);
  const Hold hold = WC_TRY(image.TakeHold(seconds(60)));  // headers are checked by it
  const Manifest& manifest = hold.manifest();
  const tensor::Inventory& inventory = *hold.directory().inventory();
  const std::vector<tensor::TensorDigest> wanted =
      digests_of ? WC_TRY(digests_of(manifest.version).With("the version that " + path + " claims"))
                 : manifest.digests;
  if (wanted.size() != inventory.size()) {
    return Error{Code::kConflict, path + ": has " + std::to_string(inventory.size()) +
                                      " tensors, to be compared with " +
                                      std::to_string(wanted.size())};
  }
  const tensor::MappedWeights weights =
      WC_TRY(tensor::MappedWeights::Map(world.fs, hold.directory(), /*writable=*/false));
  const std::vector<tensor::TensorDigest> found =
      WC_TRY(tensor::DigestAll(inventory, weights, threads, progress));
  VerifyReport report;
  report.root = tensor::ComputeRoot(inventory, found);
  report.claimed = digests_of ? tensor::ComputeRoot(inventory, wanted) : manifest.root;
  for (size_t t = 0; t < found.size(); ++t) {
    if (found[t] != wanted[t]) report.tensors_bad.push_back(inventory[t].name);
  }
  for (const WeightFileRow& row : manifest.weight_files) report.bytes += row.bytes;
  for (const catalog::SideFileRow& row : manifest.side_files) {
    report.bytes += row.bytes;
    if (!WC_TRY(IsSideFile(world.fs, os::JoinPath(path, row.name), row))) {
      report.side_files_bad.push_back(row.name);
    }
  }
  report.verified =
      report.root == report.claimed && report.tensors_bad.empty() && report.side_files_bad.empty();
  report.seconds = ToSeconds(world.clock.Now() - begin);
  return report;
}

}  // namespace weightcast::agent
