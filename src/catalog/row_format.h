// The rows of the catalog: values, keys and bytes. Table of rows: docs/design/catalog_rows.md.
//
// Pure. Small rows are JSON with a format field "v"; partials, digests and inventories are compact
// binary with a format byte. Decoders take untrusted bytes and bound what they allocate.
// Errors of Decode: kInvalidData naming the field; a format of another number is named.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "tensor/digest.h"
#include "tensor/inventory.h"

namespace weightcast::catalog {

// Counts in a row above are how the loss of a row below is noticed: a row whose key is damaged is
// found by nobody, but then the count does not fit.
struct CatalogRow {
  std::string incarnation;
  int64_t runs = 0;
  int64_t leases = 0;
  int64_t rounds = 0;
};

struct RunRow {
  RunUid uid;
  std::string name;
  int64_t tensors = 0;  // of the inventory, which has a row of its own
  std::vector<int32_t> carried;
  VersionUid forked_from;
  int64_t created_unix_ms = 0;
};

// What moves in a run.
struct HeadRow {
  VersionUid latest;  // empty: nothing is READY
  int64_t latest_number = -1;
  VersionUid seed;     // v0, empty if there is none
  VersionUid staging;  // the one STAGING attempt, or empty
  RoundUid round;      // the one that began last, or empty
  Epoch epoch;         // the current one
  int64_t versions = 0;
  int64_t epochs = 0;
  std::map<std::string, VersionUid> aliases;
};

// The n-th version that was created in a run.
struct ListRow {
  VersionUid uid;
  int64_t number = 0;
};

struct VersionRow {
  Version version;
  bool pinned = false;
  int64_t announced = 0;  // announcement rows
};

struct EpochRow {
  Epoch epoch;
  std::string token;  // empty: opened by number
  PlanHash plan;
  std::vector<int32_t> participants;
  bool closed = false;  // put back by a rebuild: its sessions belong to the lost catalog
};

struct LeaseRow {
  std::string holder;
  int64_t expires_unix_ms = 0;
  std::vector<VersionUid> versions;
};

struct RoundRow {
  Round round;
  int64_t position = 0;  // it was the n-th round of the catalog
  int64_t lease_ms = 0;  // by which an update renews it
};

Bytes Encode(const CatalogRow& row);
Bytes Encode(const RunRow& row);
Bytes Encode(const HeadRow& row);
Bytes Encode(const ListRow& row);
Bytes Encode(const VersionRow& row);
Bytes Encode(const EpochRow& row);
Bytes Encode(const LeaseRow& row);
Bytes Encode(const RoundRow& row);
Bytes Encode(const Announcement& row);
Bytes Encode(const std::vector<tensor::TensorDigest>& row);
Bytes Encode(const tensor::Inventory& row);

Status Decode(ByteSpan bytes, CatalogRow* row);
Status Decode(ByteSpan bytes, RunRow* row);
Status Decode(ByteSpan bytes, HeadRow* row);
Status Decode(ByteSpan bytes, ListRow* row);
Status Decode(ByteSpan bytes, VersionRow* row);
Status Decode(ByteSpan bytes, EpochRow* row);
Status Decode(ByteSpan bytes, LeaseRow* row);
Status Decode(ByteSpan bytes, RoundRow* row);
Status Decode(ByteSpan bytes, Announcement* row);
Status Decode(ByteSpan bytes, std::vector<tensor::TensorDigest>* row);
Status Decode(ByteSpan bytes, tensor::Inventory* row);

// Keys. Those with a second part sort by it.
inline constexpr const char* kCatalogKey = "catalog";
inline constexpr const char* kRunPrefix = "run/";
inline constexpr const char* kLeasePrefix = "lease/";
inline constexpr const char* kRoundPrefix = "round/";
std::string RunKey(const RunUid& run);
std::string InventoryKey(const RunUid& run);
std::string HeadKey(const RunUid& run);
std::string ListPrefix(const RunUid& run);
std::string ListKey(const RunUid& run, int64_t position);
std::string VersionKey(const VersionUid& version);
std::string DigestsKey(const VersionUid& version);
std::string AnnouncementPrefix(const VersionUid& version);
std::string AnnouncementKey(const VersionUid& version, RankId rank);
std::string EpochPrefix(const RunUid& run);
std::string EpochKey(const RunUid& run, Epoch epoch);
std::string LeaseKey(const LeaseId& lease);
std::string RoundKey(const RoundUid& round);

}  // namespace weightcast::catalog
