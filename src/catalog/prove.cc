#include "catalog/prove.h"

#include <algorithm>
#include <string>

#include "base/text.h"
#include "catalog/checks.h"
#include "catalog/replay_plan.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

std::string RankText(RankId rank) { return "rank " + std::to_string(rank.value); }

// Which roles a rank must announce: a full version with a base also carries its delta.
bool Expected(ObjectRole role, const Version& version) {
  const bool full = version.kind == VersionKind::kFull;
  if (role == ObjectRole::kDelta) return !full || !version.base.empty();
  return role == ObjectRole::kFull && full;
}

Status CheckObjects(const Announcement& announcement, const Version& version, bool carried) {
  std::vector<std::string> bad;
  int found[3] = {0, 0, 0};
  for (const ObjectRef& object : announcement.objects) {
    ++found[static_cast<size_t>(object.role)];
    const Status status = CheckObject(object);
    if (!status.ok()) bad.push_back(status.error().message);
    // Carried tensors' object may be an older version's; every other one is this attempt's own.
    const std::string prefix =
        PartKey(version.run, version.uid, version.epoch, announcement.rank, "", object.role);
    if (object.role != ObjectRole::kCarried && !object.key.starts_with(prefix)) {
      bad.push_back("object " + Quoted(object.key) + ": expected a key that begins with " + prefix);
    }
  }
  for (const ObjectRole role : {ObjectRole::kDelta, ObjectRole::kFull, ObjectRole::kCarried}) {
    const int count = found[static_cast<size_t>(role)];
    const bool optional =
        role == ObjectRole::kCarried && carried && version.kind == VersionKind::kFull;
    const int expected = Expected(role, version) ? 1 : 0;
    if (count == expected || (optional && count == 1)) continue;
    bad.push_back(std::to_string(count) + " " + std::string(RoleName(role)) +
                  " objects, expected " + std::to_string(expected) + " in a " +
                  std::string(KindName(version.kind)) + " version");
  }
  if (bad.empty()) return Ok();
  return Error{Code::kInvalidData, JoinNames(bad)};
}

std::string WhyBad(const TensorPartial& partial, int64_t above, int64_t tensors,
                   const std::vector<int32_t>& carried, bool has_base) {
  if (partial.tensor < 0 || partial.tensor >= tensors) {
    return "is not in the inventory of " + std::to_string(tensors);
  }
  if (partial.tensor <= above) return "is out of order or there twice";
  if (std::ranges::binary_search(carried, partial.tensor)) return "is carried: doubly covered";
  if (partial.next.units < 0 || partial.base.units < 0) return "has negative units";
  if (has_base && !partial.raw && partial.base.units != partial.next.units) {
    return "has " + std::to_string(partial.base.units) + " units before and " +
           std::to_string(partial.next.units) + " after";
  }
  return "";
}

Status CheckPartials(const Announcement& announcement, const Version& version, int64_t tensors,
                     const std::vector<int32_t>& carried) {
  std::vector<std::string> bad;
  int64_t above = -1;
  for (const TensorPartial& partial : announcement.partials) {
    const std::string why = WhyBad(partial, above, tensors, carried, !version.base.empty());
    if (!why.empty()) bad.push_back("tensor " + std::to_string(partial.tensor) + " " + why);
    above = partial.tensor;
  }
  if (bad.empty()) return Ok();
  return Error{Code::kInvalidData, JoinNames(bad)};
}

// Sums of one tensor over all ranks.
struct Sums {
  tensor::Partial base;
  tensor::Partial next;
  bool raw = false;
};

// Beyond `limit` a count is only known to be too large: so the sum of any numbers fits.
void AddUpTo(int64_t limit, const tensor::Partial& partial, tensor::Partial* sum) {
  sum->digest = sum->digest + partial.digest;
  if (sum->units <= limit && partial.units <= limit) {
    sum->units += partial.units;
  } else {
    sum->units = limit + 1;
  }
}

std::vector<Sums> SumAll(const tensor::Inventory& inventory,
                         const std::vector<Announcement>& announcements) {
  std::vector<Sums> sums(inventory.size());
  for (const Announcement& announcement : announcements) {
    for (const TensorPartial& partial : announcement.partials) {
      const auto tensor = static_cast<size_t>(partial.tensor);
      const int64_t units = inventory[tensor].units();
      AddUpTo(units, partial.next, &sums[tensor].next);
      AddUpTo(units, partial.base, &sums[tensor].base);
      sums[tensor].raw = sums[tensor].raw || partial.raw;
    }
  }
  return sums;
}

Status CheckCoverage(const Run& run, const std::vector<Sums>& sums) {
  std::vector<std::string> missing;
  std::vector<std::string> twice;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (std::ranges::binary_search(run.carried, static_cast<int32_t>(i))) continue;
    const tensor::TensorSpec& spec = (*run.inventory)[i];
    const int64_t units = sums[i].next.units;
    if (units < spec.units()) {
      missing.push_back(spec.name + " (" + std::to_string(units) + " of " +
                        std::to_string(spec.units()) + " units)");
    }
    if (units > spec.units()) twice.push_back(spec.name);
  }
  std::string text;
  if (!missing.empty()) text += "not fully covered: " + JoinNames(missing);
  if (!twice.empty()) text += (text.empty() ? "" : "; ") + ("doubly covered: " + JoinNames(twice));
  if (text.empty()) return Ok();
  return Error{Code::kInvalidData, std::move(text)};
}

Status CheckBase(const Run& run, const Version& version, const std::vector<Sums>& sums,
                 const std::vector<tensor::TensorDigest>& base) {
  if (base.empty()) return Ok();
  std::vector<std::string> wrong;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].raw || std::ranges::binary_search(run.carried, static_cast<int32_t>(i))) continue;
    if (sums[i].base.digest == base[i]) continue;
    wrong.push_back((*run.inventory)[i].name + " (expected " + base[i].hex() + ", found " +
                    sums[i].base.digest.hex() + ")");
  }
  if (wrong.empty()) return Ok();
  return Error{Code::kDataLoss, std::string(kWrongBase) + version.base.hex() +
                                    ", a rank has another baseline: " + JoinNames(wrong)};
}

void Add(const PublishStats& stats, PublishStats* sum) {
  sum->elements += stats.elements;
  sum->changed_elements += stats.changed_elements;
  sum->payload_bytes += stats.payload_bytes;
  sum->wire_bytes += stats.wire_bytes;
}

}  // namespace

Status CheckAnnouncement(const Announcement& announcement, const Version& version, int64_t tensors,
                         const std::vector<int32_t>& carried) {
  const std::string who = RankText(announcement.rank) + " of " + VersionText(version);
  if (!std::ranges::binary_search(version.participants, announcement.rank.value)) {
    return Error{
        Code::kConflict,
        who + ": not among its " + std::to_string(version.participants.size()) + " participants"};
  }
  if (announcement.plan != version.plan) {
    return Error{Code::kConflict, who + ": expected plan " + version.plan.hex() + ", found " +
                                      announcement.plan.hex()};
  }
  const PublishStats& stats = announcement.stats;
  constexpr int64_t kStatMax = int64_t{1} << 56;  // so that ranks' sums fit
  for (const int64_t value :
       {stats.elements, stats.changed_elements, stats.payload_bytes, stats.wire_bytes}) {
    if (value < 0 || value > kStatMax) {
      return Error{Code::kInvalidData, who + ": statistics out of bounds"};
    }
  }
  WC_TRY(CheckObjects(announcement, version, !carried.empty()).With(who));
  return CheckPartials(announcement, version, tensors, carried).With(who);
}

Result<Proof> Prove(const Run& run, const Version& version,
                    const std::vector<Announcement>& announcements,
                    const std::vector<tensor::TensorDigest>& base) {
  WC_CHECK(base.empty() == version.base.empty() || run.inventory->size() == 0);
  const std::vector<Sums> sums = SumAll(*run.inventory, announcements);
  WC_TRY(CheckCoverage(run, sums).With(VersionText(version)));
  WC_TRY(CheckBase(run, version, sums, base).With(VersionText(version)));

  Proof proof;
  for (const Sums& sum : sums) proof.digests.push_back(sum.next.digest);
  for (const int32_t index : run.carried) {
    proof.digests[static_cast<size_t>(index)] = base[static_cast<size_t>(index)];
  }
  int64_t carried_objects = 0;
  for (const Announcement& announcement : announcements) {
    Add(announcement.stats, &proof.stats);
    for (const ObjectRef& object : announcement.objects) {
      proof.objects.push_back(object);
      carried_objects += object.role == ObjectRole::kCarried ? 1 : 0;
    }
  }
  if (version.kind == VersionKind::kFull && !run.carried.empty() && carried_objects != 1) {
    return Error{Code::kInvalidData, VersionText(version) + ": " + std::to_string(carried_objects) +
                                         " objects of carried tensors, expected 1"};
  }
  proof.root = tensor::ComputeRoot(*run.inventory, proof.digests);
  return proof;
}

}  // namespace weightcast::catalog
