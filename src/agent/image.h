// An image: a verified canonical checkpoint on an inference host; an ordinary Hugging Face
// directory with a generation, that moves from version to version without a reader ever seeing a
// mix.
//
//   IMAGE_DIR/
//     model.safetensors | model-0000k-of-0000n.safetensors + index, config.json, tokenizer...
//     .weightcast/
//       lock             flock: shared = a hold, exclusive = apply or recover
//       clean-<g>        the state is the name of this empty file; applying-<g>-<h> while it moves
//       manifest-<g>.json  version, root, tensor digests, files of generation g
//       journal-<g>-<h>  redo and undo of the step from generation g to h
//
// While applying, weight files and index wear dot names (".model.safetensors"), so that an open
// without a hold finds nothing, never a mix.
// Protocol and crash argument: docs/design/image.md. Formats: docs/formats/image.md, journal.md.
#pragma once

#include <memory>
#include <string>

#include "agent/manifest.h"
#include "base/status.h"
#include "base/units.h"
#include "os/world.h"
#include "tensor/hf_directory.h"

namespace weightcast::agent {

// A reader's lock on one generation. While it lives the image does not move.
class Hold {
 public:
  const Manifest& manifest() const { return manifest_; }
  const tensor::HfDirectory& directory() const { return directory_; }

 private:
  friend class Image;
  std::unique_ptr<os::File> lock_;
  Manifest manifest_;
  tensor::HfDirectory directory_;
};

// One image directory. Not thread-safe; many processes may each have one for the same directory.
class Image {
 public:
  // Nothing is opened yet; the directory may be missing.
  Image(os::World& world, std::string path);

  // What is there: nothing (missing or empty directory), an image, or something else
  // (kConflict: files that no image of ours put there).
  Result<bool> Exists();

  // Takes a shared hold. If the image is between generations (a process died in an apply), recovers
  // it first under the exclusive lock: redo from the journal; after a host restart, replay of all
  // kept journals. Errors: kNotFound (no image), kDeadlineExceeded (someone is applying), kDataLoss
  // (cannot be recovered: says which file, expected and found; lay it anew).
  Result<Hold> TakeHold(Duration timeout);

  const std::string& path() const { return path_; }

 private:
  os::World& world_;
  std::string path_;
};

}  // namespace weightcast::agent
