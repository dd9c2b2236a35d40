#include "catalog/tables.h"

#include <algorithm>
#include <utility>

namespace weightcast::catalog {
namespace {

template <typename Row>
Result<Row> DecodeRow(std::string_view key, ByteSpan bytes) {
  Row row;
  const Status status = Decode(bytes, &row);
  if (status.ok()) return row;
  return Error{Code::kDataLoss, "catalog row " + std::string(key) + ": " + status.error().message};
}

Error Missing(const std::string& key) {
  return {Code::kDataLoss, "catalog row " + key + " is missing"};
}

Status Counted(const std::string& prefix, size_t found, int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return Ok();
  return Error{Code::kDataLoss, "catalog rows " + prefix + ": expected " +
                                    std::to_string(expected) + ", found " + std::to_string(found)};
}

}  // namespace

template <typename Row>
Result<std::optional<Row>> Tables::Find(const std::string& key) {
  const std::optional<Bytes> bytes = WC_TRY(txn_.Get(key));
  if (!bytes) return std::optional<Row>();
  return std::optional<Row>(WC_TRY(DecodeRow<Row>(key, *bytes)));
}

template <typename Row>
Result<Row> Tables::Must(const std::string& key) {
  std::optional<Row> row = WC_TRY(Find<Row>(key));
  if (!row) return Missing(key);
  return std::move(*row);
}

template <typename Row>
Result<std::vector<std::pair<std::string, Row>>> Tables::All(const std::string& prefix,
                                                             int64_t expected) {
  std::vector<std::pair<std::string, Row>> rows;
  const Txn::Visit add = [&](std::string_view key, ByteSpan value) -> Status {
    rows.emplace_back(key, WC_TRY(DecodeRow<Row>(key, value)));
    return Ok();
  };
  WC_TRY(txn_.Scan(prefix, add));
  WC_TRY(Counted(prefix, rows.size(), expected));
  return rows;
}

Result<CatalogRow> Tables::Catalog() { return Must<CatalogRow>(kCatalogKey); }

Result<std::vector<RunRow>> Tables::Runs() {
  const CatalogRow catalog = WC_TRY(Catalog());
  std::vector<RunRow> runs;
  for (auto& [key, row] : WC_TRY(All<RunRow>(kRunPrefix, catalog.runs))) {
    runs.push_back(std::move(row));
  }
  return runs;
}

Result<std::optional<RunRow>> Tables::RunByName(const std::string& name) {
  for (RunRow& row : WC_TRY(Runs())) {
    if (row.name == name) return std::optional<RunRow>(std::move(row));
  }
  return std::optional<RunRow>();
}

Result<RunRow> Tables::RunByUid(const RunUid& uid) {
  std::optional<RunRow> row = WC_TRY(Find<RunRow>(RunKey(uid)));
  if (row) return std::move(*row);
  WC_TRY(Runs());  // none is missing
  return Error{Code::kNotFound, "run " + uid.hex() + " is not in this catalog"};
}

Status Tables::Create(const RunRow& row, const tensor::Inventory& inventory) {
  CatalogRow catalog = WC_TRY(Catalog());
  ++catalog.runs;
  WC_TRY(Save(catalog));
  WC_TRY(txn_.Put(RunKey(row.uid), Encode(row)));
  WC_TRY(txn_.Put(InventoryKey(row.uid), Encode(inventory)));
  return Save(row.uid, HeadRow{});
}

Result<std::shared_ptr<const tensor::Inventory>> Tables::Inventory(const RunUid& run) {
  return std::shared_ptr<const tensor::Inventory>(
      std::make_shared<tensor::Inventory>(WC_TRY(Must<tensor::Inventory>(InventoryKey(run)))));
}

Result<Run> Tables::Whole(const RunRow& row) {
  Run run;
  run.uid = row.uid;
  run.name = row.name;
  run.inventory = WC_TRY(Inventory(row.uid));
  run.carried = row.carried;
  run.forked_from = row.forked_from;
  run.created_unix_ms = row.created_unix_ms;
  return run;
}

Result<HeadRow> Tables::Head(const RunUid& run) {
  std::optional<HeadRow> head = WC_TRY(Find<HeadRow>(HeadKey(run)));
  if (head) return std::move(*head);
  WC_TRY(RunByUid(run));  // kNotFound
  return Missing(HeadKey(run));
}

Result<std::optional<VersionRow>> Tables::FindVersion(const VersionUid& uid) {
  std::optional<VersionRow> row = WC_TRY(Find<VersionRow>(VersionKey(uid)));
  if (row) return row;
  // Was it ever there? No list has it, and no list has lost anything.
  for (const RunRow& run : WC_TRY(Runs())) {
    const HeadRow head = WC_TRY(Head(run.uid));
    for (const ListRow& listed : WC_TRY(List(run.uid, head))) {
      if (listed.uid == uid) return Missing(VersionKey(uid));
    }
  }
  return row;
}

Result<VersionRow> Tables::Version(const VersionUid& uid) {
  std::optional<VersionRow> row = WC_TRY(FindVersion(uid));
  if (row) return std::move(*row);
  return Error{Code::kNotFound, "version " + uid.hex() + " is not in this catalog"};
}

Status Tables::Create(const VersionRow& row, HeadRow* head) {
  const ListRow listed{row.version.uid, row.version.number};
  WC_TRY(txn_.Put(ListKey(row.version.run, head->versions), Encode(listed)));
  ++head->versions;
  return Save(row);
}

Result<std::vector<ListRow>> Tables::List(const RunUid& run, const HeadRow& head) {
  std::vector<ListRow> list;
  for (auto& [key, row] : WC_TRY(All<ListRow>(ListPrefix(run), head.versions))) {
    list.push_back(row);
  }
  return list;
}

Result<std::vector<catalog::Version>> Tables::AllVersions() {
  std::vector<catalog::Version> versions;
  for (const RunRow& run : WC_TRY(Runs())) {
    const HeadRow head = WC_TRY(Head(run.uid));
    for (const ListRow& listed : WC_TRY(List(run.uid, head))) {
      versions.push_back(WC_TRY(Must<VersionRow>(VersionKey(listed.uid))).version);
    }
  }
  return versions;
}

Result<std::vector<tensor::TensorDigest>> Tables::Digests(const VersionUid& version) {
  return Must<std::vector<tensor::TensorDigest>>(DigestsKey(version));
}

Result<std::optional<Announcement>> Tables::FindAnnouncement(const VersionUid& version,
                                                             RankId rank) {
  return Find<Announcement>(AnnouncementKey(version, rank));
}

Result<std::vector<Announcement>> Tables::Announcements(const VersionRow& row) {
  std::vector<Announcement> announcements;
  for (auto& [key, announcement] :
       WC_TRY(All<Announcement>(AnnouncementPrefix(row.version.uid), row.announced))) {
    announcements.push_back(std::move(announcement));
  }
  return announcements;
}

Result<std::vector<EpochRow>> Tables::Epochs(const RunUid& run, const HeadRow& head) {
  std::vector<EpochRow> epochs;
  for (auto& [key, row] : WC_TRY(All<EpochRow>(EpochPrefix(run), head.epochs))) {
    epochs.push_back(std::move(row));
  }
  return epochs;
}

Result<EpochRow> Tables::CurrentEpoch(const RunUid& run, const HeadRow& head) {
  return Must<EpochRow>(EpochKey(run, head.epoch));
}

Status Tables::Create(const RunUid& run, const EpochRow& row, HeadRow* head) {
  ++head->epochs;
  return txn_.Put(EpochKey(run, row.epoch), Encode(row));
}

Result<std::vector<std::pair<LeaseId, LeaseRow>>> Tables::Leases() {
  const CatalogRow catalog = WC_TRY(Catalog());
  std::vector<std::pair<LeaseId, LeaseRow>> leases;
  const size_t prefix = std::string_view(kLeasePrefix).size();
  for (auto& [key, row] : WC_TRY(All<LeaseRow>(kLeasePrefix, catalog.leases))) {
    leases.emplace_back(WC_TRY(LeaseId::Parse(key.substr(prefix))), std::move(row));
  }
  return leases;
}

Result<LeaseRow> Tables::Lease(const LeaseId& lease) {
  std::optional<LeaseRow> row = WC_TRY(Find<LeaseRow>(LeaseKey(lease)));
  if (row) return std::move(*row);
  WC_TRY(Leases());  // none is missing
  return Error{Code::kNotFound, "lease " + lease.hex() + " is not in this catalog, or has expired"};
}

Status Tables::Create(const LeaseId& lease, const LeaseRow& row) {
  CatalogRow catalog = WC_TRY(Catalog());
  ++catalog.leases;
  WC_TRY(Save(catalog));
  return Save(lease, row);
}

Status Tables::Delete(const std::vector<LeaseId>& leases) {
  if (leases.empty()) return Ok();
  CatalogRow catalog = WC_TRY(Catalog());
  catalog.leases -= static_cast<int64_t>(leases.size());
  for (const LeaseId& lease : leases) WC_TRY(txn_.Delete(LeaseKey(lease)));
  return Save(catalog);
}

Result<std::vector<RoundRow>> Tables::Rounds() {
  const CatalogRow catalog = WC_TRY(Catalog());
  std::vector<RoundRow> rounds;
  for (auto& [key, row] : WC_TRY(All<RoundRow>(kRoundPrefix, catalog.rounds))) {
    rounds.push_back(std::move(row));
  }
  std::ranges::sort(rounds, {}, &RoundRow::position);
  return rounds;
}

Result<RoundRow> Tables::Round(const RoundUid& uid) {
  std::optional<RoundRow> row = WC_TRY(Find<RoundRow>(RoundKey(uid)));
  if (row) return std::move(*row);
  WC_TRY(Rounds());  // none is missing
  return Error{Code::kNotFound, "round " + uid.hex() + " is not in this catalog"};
}

Status Tables::Create(RoundRow* row, HeadRow* head) {
  CatalogRow catalog = WC_TRY(Catalog());
  row->position = catalog.rounds++;
  WC_TRY(Save(catalog));
  head->round = row->round.uid;
  return Save(*row);
}

}  // namespace weightcast::catalog
