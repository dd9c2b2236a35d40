#include "catalog/replay_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"

namespace weightcast::catalog {
namespace {

int64_t BytesOf(const Version& version, ObjectRole role) {
  int64_t bytes = 0;
  for (const ObjectRef& object : version.objects) {
    if (object.role == role) bytes += object.bytes;
  }
  return bytes;
}

struct Start {
  ReplayStart kind = ReplayStart::kImage;
  size_t behind = 0;  // how many steps lie between it and the target
  int64_t bytes = 0;  // with those steps
};

// The cheapest way to begin at `version`, given that the steps behind it cost `step_bytes`.
std::optional<Start> StartAt(const Version& version, const ReplayRequest& request, size_t behind,
                             int64_t step_bytes) {
  if (version.uid == request.have) return Start{ReplayStart::kImage, behind, step_bytes};
  if (version.state != VersionState::kReady) return std::nullopt;
  if (request.seed && version.root == *request.seed) {
    return Start{ReplayStart::kSeed, behind, step_bytes};
  }
  if (version.kind != VersionKind::kFull) return std::nullopt;
  const int64_t full = BytesOf(version, ObjectRole::kFull) + BytesOf(version, ObjectRole::kCarried);
  return Start{ReplayStart::kFull, behind, full + step_bytes};
}

// From a version to its bases. Foreign version.json files might name each other in a circle.
class Walk {
 public:
  explicit Walk(const FindVersionFn& find) : find_(find) {}

  // Null if it has none, or none that is known.
  Result<const Version*> BaseOf(const Version& version) {
    if (!seen_.insert(version.uid).second) {
      return Error{Code::kInvalidData, VersionText(version) + " is its own ancestor"};
    }
    if (version.base.empty()) return nullptr;
    return find_(version.base);
  }

 private:
  const FindVersionFn& find_;
  std::set<VersionUid> seen_;
};

// Says what was at hand, what would do, and what of the lineage is gone.
Result<ReplayPlan> Unreachable(const FindVersionFn& find, const ReplayRequest& request,
                               const Version& target) {
  Walk walk(find);
  std::vector<std::string> released;
  const Version* usable = &target;  // the oldest version of which an image would do
  const Version* origin = &target;
  for (const Version* at = &target; at != nullptr; at = WC_TRY(walk.BaseOf(*at))) {
    if (released.empty()) usable = at;
    if (at->state != VersionState::kReady) released.push_back(VersionText(*at));
    origin = at;
  }
  std::string text = VersionText(target) + " cannot be reached: the image at hand is " +
                     (request.have.empty() ? "none" : "version " + request.have.hex()) +
                     ", the seed at hand is " + (request.seed ? request.seed->hex() : "none") +
                     "; it needs ";
  if (released.empty() && origin->base.empty() && origin->kind == VersionKind::kSeed) {
    text += "the seed checkpoint of version " + std::to_string(origin->number) + " (root " +
            origin->root.hex() + "), or ";
  }
  if (usable != &target) text += "an image at " + VersionText(*usable) + " or later, or ";
  text += "a full version";
  if (!released.empty()) text += "; released: " + JoinNames(released);
  if (!origin->base.empty()) {
    text +=
        "; the base of " + VersionText(*origin) + ", " + origin->base.hex() + ", is not known here";
  }
  return Error{Code::kUnavailable, std::move(text)};
}

using ByUid = std::map<VersionUid, const Version*>;

// Which of these versions have a complete chain among them: from a full version or a seed. Each
// version is looked at once, however long the chains are.
std::map<VersionUid, bool> HaveChains(const ByUid& versions) {
  std::map<VersionUid, bool> known;
  for (const auto& [uid, version] : versions) {
    std::vector<VersionUid> path;
    bool complete = false;
    for (VersionUid at = uid;;) {
      const auto answered = known.find(at);
      const auto there = versions.find(at);
      if (answered != known.end()) complete = answered->second;
      if (answered != known.end() || there == versions.end()) break;
      known[at] = false;  // what a circle of forged versions finds
      path.push_back(at);
      const Version& v = *there->second;
      complete = v.kind == VersionKind::kFull || (v.kind == VersionKind::kSeed && v.base.empty());
      if (complete || v.base.empty()) break;
      at = v.base;
    }
    for (const VersionUid& passed : path) known[passed] = complete;
  }
  return known;
}

}  // namespace

std::string VersionText(const Version& version) {
  return "version " + std::to_string(version.number) + " (" + version.uid.brief() + ")";
}

Result<ReplayPlan> ChooseReplay(const FindVersionFn& find, const ReplayRequest& request) {
  const Version* target = WC_TRY(find(request.target));
  if (target == nullptr) {
    return Error{Code::kNotFound, "version " + request.target.hex() + " is not known here"};
  }
  if (target->state != VersionState::kReady) {
    return Error{Code::kConflict, VersionText(*target) + " is " +
                                      std::string(StateName(target->state)) +
                                      ", only READY versions can be replayed"};
  }
  std::vector<const Version*> walk = {target};  // newest first
  int64_t step_bytes = 0;
  std::optional<Start> best;
  Walk bases(find);
  for (const Version* at = target;;) {
    const std::optional<Start> start = StartAt(*at, request, walk.size() - 1, step_bytes);
    if (start && (!best || start->bytes < best->bytes)) best = start;
    if (best && best->bytes <= step_bytes) break;  // older starts cost at least the steps
    if (at->state != VersionState::kReady) break;  // its delta is gone
    step_bytes += BytesOf(*at, ObjectRole::kDelta);
    at = WC_TRY(bases.BaseOf(*at));
    if (at == nullptr) break;
    walk.push_back(at);
  }
  if (!best) return Unreachable(find, request, *target);

  ReplayPlan plan;
  plan.start = best->kind;
  plan.start_version = *walk[best->behind];
  plan.bytes = best->bytes;
  for (size_t i = best->behind; i-- > 0;) plan.steps.push_back(*walk[i]);
  return plan;
}

Result<ReplayPlan> ChooseReplay(const std::vector<Version>& versions,
                                const ReplayRequest& request) {
  ByUid by_uid;
  for (const Version& version : versions) by_uid[version.uid] = &version;
  return ChooseReplay(
      [&](const VersionUid& uid) -> Result<const Version*> {
        const auto it = by_uid.find(uid);
        return it == by_uid.end() ? nullptr : it->second;
      },
      request);
}

std::vector<const Version*> LostWithout(const std::vector<Version>& versions,
                                        const VersionUid& removed) {
  ByUid ready;
  for (const Version& version : versions) {
    if (version.state == VersionState::kReady) ready[version.uid] = &version;
  }
  const std::map<VersionUid, bool> before = HaveChains(ready);
  ready.erase(removed);
  const std::map<VersionUid, bool> after = HaveChains(ready);
  std::vector<const Version*> lost;
  for (const auto& [uid, version] : ready) {
    if (before.at(uid) && !after.at(uid)) lost.push_back(version);
  }
  return lost;
}

}  // namespace weightcast::catalog
