#include "agent/image.h"

#include <algorithm>

#include "agent/apply.h"
#include "agent/image_dir.h"
#include "base/text.h"

namespace weightcast::agent {

Image::Image(os::World& world, std::string path) : world_(world), path_(std::move(path)) {}

Result<bool> Image::Exists() {
  const Result<os::Stat> stat = world_.fs.StatPath(path_);
  if (!stat.ok()) {
    if (stat.error().code == Code::kNotFound) return false;
    return stat.error();
  }
  if (!stat->is_directory) return Error{Code::kConflict, path_ + ": is a file, not an image"};
  const std::vector<std::string> names = WC_TRY(world_.fs.List(path_));
  if (names.empty()) return false;
  if (std::ranges::find(names, os::BaseName(MetaPath(path_))) != names.end()) return true;
  return Error{Code::kConflict,
               path_ + ": holds files that no image of ours put there: " + JoinNames(names, 5)};
}

Result<Hold> Image::TakeHold(Duration timeout) {
  const os::Deadline deadline(world_.clock, timeout);
  for (;;) {
    Hold hold;
    hold.lock_ = WC_TRY(LockImage(world_, path_, os::Lock::kShared, deadline));
    if (!WC_TRY(NeedsRecovery(world_, path_))) {
      const State state = WC_TRY(ReadState(world_.fs, path_));
      hold.manifest_ = WC_TRY(ReadManifest(world_.fs, path_, state.from));
      hold.directory_ = WC_TRY(OpenWeights(world_.fs, path_, hold.manifest_, false));
      return hold;
    }
    hold.lock_.reset();  // changing its kind would not be atomic: what we saw may be over by then
    const auto lock = WC_TRY(LockImage(world_, path_, os::Lock::kExclusive, deadline));
    WC_TRY(Recover(world_, path_, /*threads=*/0));
  }
}

}  // namespace weightcast::agent
