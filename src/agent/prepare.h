// Preparing an in-place step while readers go on: a chain of deltas becomes one journal and the
// manifest of the next generation. Nothing that a reader sees changes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/journal.h"
#include "agent/manifest.h"
#include "agent/side_files.h"
#include "base/status.h"
#include "os/world.h"
#include "tensor/hf_directory.h"
#include "transfer/chain.h"

namespace weightcast::agent {

// How images keep their journals.
struct JournalRules {
  Durability durability = Durability::kHost;
  int64_t bytes_max = 0;  // of all journals of an image
  int sync_every = 8;
  int undo_kept = 1;
};

// The version that an image shall become, as the catalog has it.
struct Target {
  const catalog::Version& version;
  const std::vector<tensor::TensorDigest>& digests;
};

// The manifest of the generation after `from`, reached by a new journal, or by undoing the last
// `undone` journals of `from` to get back what `older` says.
Manifest NextManifest(const Manifest& from, const Target& target, const JournalRules& rules,
                      const std::string& boot_id);
Manifest UndoneManifest(const Manifest& from, const Manifest& older, size_t undone,
                        const JournalRules& rules, const std::string& boot_id);

// What the journal of a chain takes at most: known from the chunks' counts, before any payload is
// fetched.
int64_t JournalBytesMax(const tensor::Inventory& inventory,
                        const std::vector<transfer::ReplayBatch>& batches);

// Makes room for a journal of `bytes`: within the budget and on the disk, if need be by giving up
// kept journals (syncing the weight files first; `manifest` is rewritten to say so).
// Errors: kResourceExhausted.
Status MakeRoom(os::Fs& fs, const std::string& image, Manifest* manifest, int64_t bytes,
                const JournalRules& rules);

struct PrepareRequest {
  const std::string& image;
  std::shared_ptr<const tensor::Inventory> inventory;  // of the image
  const tensor::MappedWeights& weights;
  const Manifest& from;
  const Manifest& to;
  const transfer::Chain& chain;
  const std::vector<transfer::ReplayBatch>& batches;
  int threads = 0;
  std::function<void()> tick;                        // called between batches, from any thread
  std::function<Status(int64_t, int64_t)> progress;  // payload bytes done, in all; an error stops
};
struct Prepared {
  int64_t journal_bytes = 0;
  int64_t changed_units = 0;
};
// Replays the chain onto the image's bytes and writes the journal; each chunk is proven against
// what the image holds. Errors: as Chain::Replay; kResourceExhausted.
Result<Prepared> WriteJournal(os::World& world, const PrepareRequest& request);

}  // namespace weightcast::agent
