// Typed rows of one transaction, and the rules by which their loss is noticed. Lives as long as the
// Txn. Errors: as Txn; kDataLoss for a row that must be there and is not, or does not decode: the
// message names its key.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/row_format.h"
#include "catalog/rows.h"

namespace weightcast::catalog {

class Tables {
 public:
  explicit Tables(Txn& txn) : txn_(txn) {}

  int64_t now() { return txn_.NowUnixMillis(); }

  Result<CatalogRow> Catalog();
  Status Save(const CatalogRow& row) { return txn_.Put(kCatalogKey, Encode(row)); }

  // Errors: kNotFound if there is no such run, and nothing hints that there was.
  Result<RunRow> RunByUid(const RunUid& uid);
  Result<std::optional<RunRow>> RunByName(const std::string& name);
  Result<std::vector<RunRow>> Runs();
  // A new run: its row, inventory, empty head; counted.
  Status Create(const RunRow& row, const tensor::Inventory& inventory);
  Result<std::shared_ptr<const tensor::Inventory>> Inventory(const RunUid& run);
  Result<Run> Whole(const RunRow& row);

  Result<HeadRow> Head(const RunUid& run);
  Status Save(const RunUid& run, const HeadRow& row) { return txn_.Put(HeadKey(run), Encode(row)); }

  // Empty if there is no such version (kDataLoss if a list has it).
  Result<std::optional<VersionRow>> FindVersion(const VersionUid& uid);
  // Errors: kNotFound.
  Result<VersionRow> Version(const VersionUid& uid);
  Status Save(const VersionRow& row) { return txn_.Put(VersionKey(row.version.uid), Encode(row)); }
  // A new version: its row and its place in the run's list; `head` is changed, not saved.
  Status Create(const VersionRow& row, HeadRow* head);
  // By creation.
  Result<std::vector<ListRow>> List(const RunUid& run, const HeadRow& head);
  Result<std::vector<catalog::Version>> AllVersions();

  Result<std::vector<tensor::TensorDigest>> Digests(const VersionUid& version);
  Status SaveDigests(const VersionUid& version, const std::vector<tensor::TensorDigest>& digests) {
    return txn_.Put(DigestsKey(version), Encode(digests));
  }

  Result<std::optional<Announcement>> FindAnnouncement(const VersionUid& version, RankId rank);
  Result<std::vector<Announcement>> Announcements(const VersionRow& row);
  Status Save(const Announcement& row) {
    return txn_.Put(AnnouncementKey(row.version, row.rank), Encode(row));
  }

  Result<std::vector<EpochRow>> Epochs(const RunUid& run, const HeadRow& head);
  Result<EpochRow> CurrentEpoch(const RunUid& run, const HeadRow& head);
  // A new epoch, counted in `head`, which is not saved.
  Status Create(const RunUid& run, const EpochRow& row, HeadRow* head);

  // All leases, also expired ones.
  Result<std::vector<std::pair<LeaseId, LeaseRow>>> Leases();
  // Errors: kNotFound.
  Result<LeaseRow> Lease(const LeaseId& lease);
  Status Create(const LeaseId& lease, const LeaseRow& row);
  Status Save(const LeaseId& lease, const LeaseRow& row) {
    return txn_.Put(LeaseKey(lease), Encode(row));
  }
  Status Delete(const std::vector<LeaseId>& leases);

  // By creation, of every run.
  Result<std::vector<RoundRow>> Rounds();
  // Errors: kNotFound.
  Result<RoundRow> Round(const RoundUid& uid);
  // A new round: counted, its position set, and the head's last; `head` is changed, not saved.
  Status Create(RoundRow* row, HeadRow* head);
  Status Save(const RoundRow& row) { return txn_.Put(RoundKey(row.round.uid), Encode(row)); }

 private:
  template <typename Row>
  Result<std::optional<Row>> Find(const std::string& key);
  template <typename Row>
  Result<Row> Must(const std::string& key);
  template <typename Row>
  Result<std::vector<std::pair<std::string, Row>>> All(const std::string& prefix, int64_t expected);

  Txn& txn_;
};

}  // namespace weightcast::catalog
