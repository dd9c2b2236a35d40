// Where things lie: keys of rows in the database, keys of objects in a store.
#include <cstdio>

#include "catalog/row_format.h"

namespace weightcast::catalog {
namespace {

// Fixed width, so that the order of keys is that of numbers.
std::string Sortable(int64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

std::string RunKey(const RunUid& run) { return kRunPrefix + run.hex(); }
std::string InventoryKey(const RunUid& run) { return "inventory/" + run.hex(); }
std::string HeadKey(const RunUid& run) { return "head/" + run.hex(); }
std::string ListPrefix(const RunUid& run) { return "list/" + run.hex() + "/"; }
std::string ListKey(const RunUid& run, int64_t position) {
  return ListPrefix(run) + Sortable(position);
}
std::string VersionKey(const VersionUid& version) { return "version/" + version.hex(); }
std::string DigestsKey(const VersionUid& version) { return "digests/" + version.hex(); }
std::string AnnouncementPrefix(const VersionUid& version) {
  return "announcement/" + version.hex() + "/";
}
std::string AnnouncementKey(const VersionUid& version, RankId rank) {
  return AnnouncementPrefix(version) + Sortable(rank.value);
}
std::string EpochPrefix(const RunUid& run) { return "epoch/" + run.hex() + "/"; }
std::string EpochKey(const RunUid& run, Epoch epoch) {
  return EpochPrefix(run) + Sortable(epoch.value);
}
std::string LeaseKey(const LeaseId& lease) { return kLeasePrefix + lease.hex(); }
std::string RoundKey(const RoundUid& round) { return kRoundPrefix + round.hex(); }

std::string VersionJsonKey(const RunUid& run, const VersionUid& version) {
  return "runs/" + run.hex() + "/" + version.hex() + "/version.json";
}

std::string PartKey(const RunUid& run, const VersionUid& version, Epoch epoch, RankId rank,
                    const std::string& put_id, ObjectRole role) {
  return "runs/" + run.hex() + "/" + version.hex() + "/e" + std::to_string(epoch.value) + "-r" +
         std::to_string(rank.value) + "-" + std::string(RoleName(role)) + "-" + put_id;
}

std::string SideFileKey(const Sha256Digest& sha256) { return "side/" + sha256.hex(); }

}  // namespace weightcast::catalog
