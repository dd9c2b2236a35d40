// Inside of the chain: what chain_load.cc makes and chain.cc and replay.cc use.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transfer/chain.h"

namespace weightcast::transfer {

struct ChainStep {
  std::string text;  // "version 7 (1a2b3c4d)"
  Fetcher* fetcher = nullptr;
};

struct ChainObject {
  int32_t step = 0;
  catalog::ObjectRef ref;
  delta::PartIndex index;
};

// A chunk in the order of replay: by (tensor, cell, step, box.row, box.col).
struct ChainEntry {
  int64_t cell = 0;
  int32_t tensor = 0;
  int32_t step = 0;
  int32_t object = 0;
  const delta::PartChunk* chunk = nullptr;
};

// The header at the start of `bytes`. In an object that is named by a sealed footer a wrong one is
// damage: kDataLoss.
inline Status ProveHeader(ByteSpan bytes) {
  const Status header = delta::CheckPartHeader(bytes.first(delta::kPartHeaderBytes));
  if (header.ok()) return Ok();
  return Error{Code::kDataLoss, header.error().message};
}

// Fetches ranges of objects that the catalog lists. One that no source has is a missing source of
// the chain, which may come back (kUnavailable), and not a wrong question (kNotFound).
inline Status FetchListed(Fetcher& fetcher, std::span<Piece> pieces) {
  const Status fetched = fetcher.Fetch(pieces);
  if (fetched.ok() || fetched.error().code != Code::kNotFound) return fetched;
  return Error{Code::kUnavailable, fetched.error().message};
}

struct Chain::State {
  const tensor::Inventory* inventory = nullptr;
  bool starts_full = false;
  std::vector<ChainStep> steps;  // [0]: the start
  std::vector<ChainObject> objects;
  std::vector<ChainEntry> entries;
};

}  // namespace weightcast::transfer
