#include "catalog/row_catalog.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "catalog/attempts.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "catalog/transaction.h"

namespace weightcast::catalog {
namespace {

std::string TensorNames(const std::vector<int32_t>& indices, const tensor::Inventory& inventory) {
  std::vector<std::string> names;
  for (const int32_t index : indices) names.push_back(inventory[static_cast<size_t>(index)].name);
  return names.empty() ? "none" : JoinNames(names);
}

Status SameRun(const Run& run, const RunRequest& request) {
  if (*run.inventory != *request.inventory) {
    return Error{Code::kConflict, "run " + run.name + " has another inventory: " +
                                      tensor::DifferenceText(*run.inventory, *request.inventory)};
  }
  if (run.carried != request.carried) {
    return Error{Code::kConflict, "run " + run.name + " has other carried tensors: expected " +
                                      TensorNames(run.carried, *run.inventory) + "; found " +
                                      TensorNames(request.carried, *run.inventory)};
  }
  return Ok();
}

bool AllOf(std::string_view text, std::string_view among) {
  return text.find_first_not_of(among) == std::string_view::npos;
}

Result<Version> ByNumber(Tables& tables, const RunUid& run, const HeadRow& head,
                         const std::string& text) {
  constexpr size_t kDigitsMax = 18;  // of what surely fits an int64_t
  if (text.size() > kDigitsMax) return Error{Code::kNotFound, "no version has the number " + text};
  VersionRow row = WC_TRY(VersionOfNumber(tables, run, head, std::stoll(text)));
  if (row.version.state == VersionState::kReady) return std::move(row.version);
  return Error{Code::kNotFound, VersionText(row.version) + " of run " + run.hex() + " is " +
                                    std::string(StateName(row.version.state))};
}

Result<Version> ByUid(Tables& tables, const RunUid& run, const std::string& text) {
  const VersionUid uid = WC_TRY(VersionUid::Parse(text));
  VersionRow row = WC_TRY(tables.Version(uid));
  if (row.version.run == run) return std::move(row.version);
  return Error{Code::kNotFound, VersionText(row.version) + " belongs to run " +
                                    row.version.run.hex() + ", not to " + run.hex()};
}

}  // namespace

Result<std::unique_ptr<Catalog>> RowCatalog::Open(std::unique_ptr<Rows> rows, os::Random& random) {
  const auto has_rows = [](Txn& txn) -> Status {
    return txn.Scan("", [](std::string_view, ByteSpan) -> Status {
      return Error{Code::kDataLoss, std::string("catalog row ") + kCatalogKey + " is missing"};
    });
  };
  bool empty = false;
  const Rows::Work look = [&](Txn& txn) -> Status {
    empty = !WC_TRY(txn.Get(kCatalogKey)).has_value();
    return empty ? has_rows(txn) : Ok();
  };
  const Rows::Work put_first = [&](Txn& txn) -> Status {
    if (WC_TRY(txn.Get(kCatalogKey))) return Ok();  // another process was first
    CatalogRow row;
    row.incarnation = os::NewId<RunUid>(random).hex();
    return txn.Put(kCatalogKey, Encode(row));
  };
  WC_TRY(rows->Read(look));
  if (empty) WC_TRY(rows->Write(put_first));
  return std::unique_ptr<Catalog>(new RowCatalog(std::move(rows), random));
}

Result<std::string> RowCatalog::Incarnation() {
  return InRead(*rows_,
                [](Tables& t) -> Result<std::string> { return WC_TRY(t.Catalog()).incarnation; });
}

Result<Run> RowCatalog::OpenRun(const RunRequest& request) {
  WC_TRY(CheckName("run", request.name));
  if (request.inventory == nullptr) {
    return Error{Code::kInvalidArgument, "run " + request.name + ": no inventory"};
  }
  WC_TRY(CheckCarried(request.carried, *request.inventory));
  return InWrite(*rows_, [&](Tables& t) -> Result<Run> {
    const std::optional<RunRow> found = WC_TRY(t.RunByName(request.name));
    if (found) {
      Run run = WC_TRY(t.Whole(*found));
      WC_TRY(SameRun(run, request));
      return run;
    }
    RunRow row;
    row.uid = os::NewId<RunUid>(random_);
    row.name = request.name;
    row.tensors = static_cast<int64_t>(request.inventory->size());
    row.carried = request.carried;
    row.created_unix_ms = t.now();
    WC_TRY(t.Create(row, *request.inventory));
    return t.Whole(row);
  });
}

Result<Run> RowCatalog::FindRun(const std::string& name) {
  return InRead(*rows_, [&](Tables& t) -> Result<Run> {
    const std::optional<RunRow> row = WC_TRY(t.RunByName(name));
    if (row) return t.Whole(*row);
    std::vector<std::string> names;
    for (const RunRow& known : WC_TRY(t.Runs())) names.push_back(known.name);
    return Error{Code::kNotFound, "no run " + Quoted(name) +
                                      "; runs: " + (names.empty() ? "none" : JoinNames(names))};
  });
}

Result<Run> RowCatalog::GetRun(const RunUid& uid) {
  return InRead(*rows_, [&](Tables& t) -> Result<Run> { return t.Whole(WC_TRY(t.RunByUid(uid))); });
}

Result<std::vector<Run>> RowCatalog::ListRuns() {
  return InRead(*rows_, [](Tables& t) -> Result<std::vector<Run>> {
    std::vector<Run> runs;
    for (const RunRow& row : WC_TRY(t.Runs())) runs.push_back(WC_TRY(t.Whole(row)));
    std::ranges::sort(runs, {}, &Run::name);
    return runs;
  });
}

Result<Version> RowCatalog::GetVersion(const VersionUid& uid) {
  bool overdue = false;
  const auto read = [&](Tables& t) -> Result<Version> {
    Version version = WC_TRY(t.Version(uid)).version;
    overdue = Overdue(t, version);
    return version;
  };
  Version version = WC_TRY(InRead(*rows_, read));
  if (!overdue) return version;
  return InWrite(*rows_, [&](Tables& t) -> Result<Version> {
    HeadRow head = WC_TRY(t.Head(version.run));
    WC_TRY(FailOverdue(t, version.run, &head));
    return read(t);
  });
}

Result<std::vector<Version>> RowCatalog::ListVersions(const RunUid& run) {
  bool overdue = false;
  const auto read = [&](Tables& t) -> Result<std::vector<Version>> {
    overdue = false;
    std::vector<Version> versions;
    const HeadRow head = WC_TRY(t.Head(run));
    for (const ListRow& listed : WC_TRY(t.List(run, head))) {
      versions.push_back(WC_TRY(t.Version(listed.uid)).version);
      overdue = overdue || Overdue(t, versions.back());
    }
    std::ranges::stable_sort(versions, {}, &Version::number);
    return versions;
  };
  std::vector<Version> versions = WC_TRY(InRead(*rows_, read));
  if (!overdue) return versions;
  return InWrite(*rows_, [&](Tables& t) -> Result<std::vector<Version>> {
    HeadRow head = WC_TRY(t.Head(run));
    WC_TRY(FailOverdue(t, run, &head));
    return read(t);
  });
}

Result<Version> RowCatalog::FindVersion(const RunUid& run, const std::string& text) {
  return InRead(*rows_, [&](Tables& t) -> Result<Version> {
    const HeadRow head = WC_TRY(t.Head(run));
    if (text == "latest") {
      if (!head.latest.empty()) return WC_TRY(t.Version(head.latest)).version;
      return Error{Code::kNotFound, "run " + run.hex() + " has no READY version"};
    }
    if (!text.empty() && AllOf(text, "0123456789") && text.size() != 32) {
      return ByNumber(t, run, head, text);
    }
    if (text.size() == 32 && AllOf(text, "0123456789abcdefABCDEF")) return ByUid(t, run, text);
    const auto alias = head.aliases.find(text);
    if (alias != head.aliases.end()) return WC_TRY(t.Version(alias->second)).version;
    return Error{Code::kNotFound, "run " + run.hex() + " has no version " + Quoted(text) +
                                      ": expected a number, a uid, \"latest\" or an alias"};
  });
}

Result<std::vector<tensor::TensorDigest>> RowCatalog::GetDigests(const VersionUid& uid) {
  return InRead(*rows_, [&](Tables& t) -> Result<std::vector<tensor::TensorDigest>> {
    const Version version = WC_TRY(t.Version(uid)).version;
    if (!version.root.empty()) return t.Digests(uid);
    return Error{Code::kConflict, VersionText(version) + " is " +
                                      std::string(StateName(version.state)) +
                                      " and has no digests"};
  });
}

Result<std::vector<Announcement>> RowCatalog::GetAnnouncements(const VersionUid& uid) {
  return InRead(*rows_, [&](Tables& t) -> Result<std::vector<Announcement>> {
    return t.Announcements(WC_TRY(t.Version(uid)));
  });
}

Status RowCatalog::SetAlias(const RunUid& run, const std::string& alias,
                            const VersionUid& version) {
  WC_TRY(CheckAlias(alias));
  return InWrite(*rows_, [&](Tables& t) -> Status {
    HeadRow head = WC_TRY(t.Head(run));
    const VersionRow row = WC_TRY(t.Version(version));
    if (row.version.run != run || row.version.state != VersionState::kReady) {
      return Error{Code::kConflict, "alias " + alias + ": " + VersionText(row.version) + " is " +
                                        std::string(StateName(row.version.state)) + " in run " +
                                        row.version.run.hex() + ", expected READY in run " +
                                        run.hex()};
    }
    head.aliases[alias] = version;
    return t.Save(run, head);
  });
}

Status RowCatalog::RemoveAlias(const RunUid& run, const std::string& alias) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    HeadRow head = WC_TRY(t.Head(run));
    if (head.aliases.erase(alias) == 0) {
      return Error{Code::kNotFound, "run " + run.hex() + " has no alias " + Quoted(alias)};
    }
    return t.Save(run, head);
  });
}

Result<std::map<std::string, VersionUid>> RowCatalog::ListAliases(const RunUid& run) {
  return InRead(*rows_, [&](Tables& t) -> Result<std::map<std::string, VersionUid>> {
    return WC_TRY(t.Head(run)).aliases;
  });
}

Status RowCatalog::SetPin(const VersionUid& version, bool pinned) {
  return InWrite(*rows_, [&](Tables& t) -> Status {
    VersionRow row = WC_TRY(t.Version(version));
    if (pinned && row.version.state != VersionState::kReady) {
      return Error{Code::kConflict, VersionText(row.version) + " is " +
                                        std::string(StateName(row.version.state)) +
                                        ", only READY versions can be pinned"};
    }
    row.pinned = pinned;
    return t.Save(row);
  });
}

}  // namespace weightcast::catalog
