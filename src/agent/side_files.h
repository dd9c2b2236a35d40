// Side files of an image (config, tokenizer, ...): contents wait under their hash in .weightcast
// and are put in place by link and rename, which needs no space.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "agent/manifest.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "os/fs.h"
#include "store/store.h"

namespace weightcast::agent {

// Names come from a catalog. Relative, '/' between parts, no hidden part, no weight file, no way
// out of the directory. Errors: kInvalidData, listing all that are not.
Status CheckSideNames(std::span<const catalog::SideFileRow> rows);

// Whether a file is there and is exactly `row`.
Result<bool> IsSideFile(os::Fs& fs, const std::string& path, const catalog::SideFileRow& row);

// Where contents may be found, in this order.
struct SideSources {
  std::vector<std::string> directories;  // checkpoints or images, by name and hash
  std::vector<std::string> stores;       // URLs; by hash
  std::function<Result<store::Store*>(const std::string& url)> open_store;
  std::function<void(int64_t)> from_store;  // told the bytes that a store gave
};
// Brings the contents of `row` to `path`, in bounded memory, proven by size and hash. `durable`:
// the bytes are synced. Errors: kDataLoss, kNotFound: naming the file and each source's answer.
Status BringSideFile(os::Fs& fs, const catalog::SideFileRow& row, const SideSources& sources,
                     const std::string& path, bool durable);

// Brings back those of `manifest`'s side files that are gone. Errors: kDataLoss, listing those that
// are there with other content (they are left alone); as BringSideFile.
Status MendSideFiles(os::Fs& fs, const std::string& image, const Manifest& manifest,
                     const SideSources& sources, bool durable);

// Makes ready what InstallSideFiles needs to go from one manifest to the other and back.
// Errors: kDataLoss (a file to be replaced is not what the manifest says), as BringSideFile.
Status StageSideFiles(os::Fs& fs, const std::string& image, const Manifest& from,
                      const Manifest& to, const SideSources& sources, bool durable);
// Whether everything is there to put `to`'s side files in place of `from`'s.
Result<bool> SideFilesStaged(os::Fs& fs, const std::string& image, const Manifest& from,
                             const Manifest& to);
// Does a step add or take away a name among the side files?
bool SideNamesDiffer(const Manifest& from, const Manifest& to);
// Puts `to`'s side files in place and removes those that only `from` has. May be repeated. Names
// are synced if `durable`, or if SideNamesDiffer. Errors: kDataLoss (contents neither in place nor
// staged).
Status InstallSideFiles(os::Fs& fs, const std::string& image, const Manifest& from,
                        const Manifest& to, bool durable);

}  // namespace weightcast::agent
