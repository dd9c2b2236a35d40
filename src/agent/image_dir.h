// What lies in an image directory, by name: state, manifests, journals, the lock. No decisions.
// docs/formats/image.md
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/manifest.h"
#include "base/status.h"
#include "os/world.h"
#include "tensor/hf_directory.h"

namespace weightcast::agent {

// Names below, "PATH/.weightcast/...".
std::string MetaPath(const std::string& image);
std::string LockPath(const std::string& image);
std::string ManifestPath(const std::string& image, int64_t generation);
std::string JournalPath(const std::string& image, const Step& step);
std::string StagedPath(const std::string& image, const Sha256Digest& sha256);

// What the weight files are: generation `from`, or (from != to) anything between the two.
struct State {
  int64_t from = 0;
  int64_t to = 0;

  bool clean() const { return from == to; }
  bool operator==(const State&) const = default;
};
std::string StatePath(const std::string& image, const State& state);
// Errors: kDataLoss (none, or several).
Result<State> ReadState(os::Fs& fs, const std::string& image);
// One rename. Not durable by itself.
Status ChangeState(os::Fs& fs, const std::string& image, const State& from, const State& to);

// For an image that replaces the one at `image`. They grow as long as the state can be read.
Result<int64_t> NextGeneration(os::Fs& fs, const std::string& image);

// Errors: kDataLoss (missing, malformed, of another generation).
Result<Manifest> ReadManifest(os::Fs& fs, const std::string& image, int64_t generation);

// A file that nothing names yet; what lies there is overwritten. `durable`: its bytes are synced,
// its name is not.
Status WriteNew(os::Fs& fs, const std::string& path, ByteSpan bytes, bool durable);
// Replaces the manifest of a generation that a state may name.
Status ReplaceManifest(os::Fs& fs, const std::string& image, const Manifest& manifest);

// A lock on the directory that is at `image` now, even if it is exchanged while we wait. Held until
// the file is destroyed. Errors: kNotFound (no image), kDataLoss (its lock is missing or torn),
// kDeadlineExceeded.
Result<std::unique_ptr<os::File>> LockImage(os::World& world, const std::string& image,
                                            os::Lock kind, const os::Deadline& deadline);

// The weight files, under their own names or their dot names, being what `manifest` says: names,
// sizes, headers. Errors: kDataLoss.
Result<tensor::HfDirectory> OpenWeights(os::Fs& fs, const std::string& image,
                                        const Manifest& manifest, bool dotted);
// Size and hash of the bytes before the data of a weight file.
Result<WeightFileRow> DescribeWeightFile(os::Fs& fs, const std::string& path,
                                         const tensor::WeightFile& file);

// Gives weight files and index their dot names, or takes them off again. Files that have them
// already are left alone. An index goes first and comes last.
Status HideWeights(os::Fs& fs, const std::string& image, const Manifest& manifest);
Status ShowWeights(os::Fs& fs, const std::string& image, const Manifest& manifest);

Status SyncWeights(os::Fs& fs, const std::string& image, const Manifest& manifest, bool dotted);
// Every file and directory at or below `path`.
Status SyncTree(os::Fs& fs, const std::string& path);

// Names in the image's directory that are neither weights (of whatever version), nor among the side
// files of any manifest that is there, nor among `side_files`; but for directories without a file.
// None if one of these cannot be read: what a power loss has torn must not wait for somebody's
// help.
Result<std::vector<std::string>> ForeignNames(os::Fs& fs, const std::string& image,
                                              std::span<const catalog::SideFileRow> side_files);

// Removes from .weightcast what `manifest`, the current one, does not name.
Status RemoveUnnamed(os::Fs& fs, const std::string& image, const Manifest& manifest);

}  // namespace weightcast::agent
