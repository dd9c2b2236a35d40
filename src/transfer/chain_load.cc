// Chain::Load: footers fetched and proven, chunks sorted by cell, overlaps and gaps refused.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "catalog/replay_plan.h"
#include "transfer/chain_state.h"

namespace weightcast::transfer {
namespace {

// Bounds what a wrong catalog row can make us allocate: an index of two million chunks.
constexpr int64_t kFooterBytesMax = 256 * kMiB;
// Raw footers held at a time.
constexpr int64_t kFooterGroupBytes = 64 * kMiB;

Error Invalid(std::string message) { return {Code::kInvalidData, std::move(message)}; }

std::string ObjectText(const catalog::Version& version, const catalog::ObjectRef& ref) {
  return catalog::VersionText(version) + ", object " + ref.key;
}

// Each step must be a change of the version before it.
Status CheckLineage(const catalog::ReplayPlan& plan) {
  if (plan.start == catalog::ReplayStart::kFull &&
      plan.start_version.kind != catalog::VersionKind::kFull) {
    return Invalid(catalog::VersionText(plan.start_version) + " is no full version to start with");
  }
  const catalog::Version* before = &plan.start_version;
  for (const catalog::Version& version : plan.steps) {
    if (version.base != before->uid) {
      return Invalid(catalog::VersionText(version) + " changes version " + version.base.brief() +
                     ", but is to be applied to " + catalog::VersionText(*before));
    }
    before = &version;
  }
  return Ok();
}

bool Needed(catalog::ObjectRole role, bool of_full_start) {
  return (role != catalog::ObjectRole::kDelta) == of_full_start;
}

// Every field of the part that is not what the catalog says. The object with the carried tensors is
// written once and named by later full versions, also of forks: there the catalog vouches for the
// footer's hash alone. The layout signature was checked with the footer.
Status CheckIdentity(const catalog::Version& version, catalog::ObjectRole role,
                     const delta::PartIdentity& found) {
  const bool delta = role == catalog::ObjectRole::kDelta;
  std::vector<std::string> wrong;
  auto check = [&](const char* field, const std::string& has, const std::string& expected) {
    if (has != expected)
      wrong.push_back(std::string(field) + " is " + has + ", expected " + expected);
  };
  auto kind_name = [](bool is_delta) { return std::string(is_delta ? "delta" : "full"); };
  check("kind", kind_name(found.kind == delta::PartKind::kDelta), kind_name(delta));
  check("base", found.base.hex(), (delta ? version.base : VersionUid{}).hex());
  if (role != catalog::ObjectRole::kCarried) {
    check("run", found.run.hex(), version.run.hex());
    check("version", found.version.hex(), version.uid.hex());
    check("epoch", std::to_string(found.epoch.value), std::to_string(version.epoch.value));
    check("plan", found.plan.hex(), version.plan.hex());
  }
  if (wrong.empty()) return Ok();
  return Error{Code::kDataLoss, "the part is not what the catalog names: " + JoinNames(wrong)};
}

bool HeaderComesWithFooter(const catalog::ObjectRef& ref) {
  return ref.bytes - ref.footer_bytes == delta::kPartHeaderBytes;
}

// `piece` ends with the footer.
Status ProveFooter(const catalog::ObjectRef& ref, ByteSpan piece) {
  const auto footer = piece.last(static_cast<size_t>(ref.footer_bytes));
  if (HeaderComesWithFooter(ref)) WC_TRY(ProveHeader(piece));
  const Sha256Digest found = Sha256::Of(footer);
  if (found == ref.footer_sha256) return Ok();
  return Error{Code::kDataLoss, "the footer's SHA-256 is " + found.brief() +
                                    "..., the catalog says " + ref.footer_sha256.brief() + "..."};
}

class Loader {
 public:
  Loader(const tensor::Inventory& inventory, Chain::State& chain)
      : inventory_(inventory), chain_(chain) {}

  Status AddStep(const catalog::Version& version, bool full_start,
                 const std::function<Result<Fetcher*>(const catalog::Version&)>& fetcher_for) {
    const auto step = static_cast<int32_t>(chain_.steps.size());
    chain_.steps.push_back({catalog::VersionText(version), nullptr});
    versions_.push_back(&version);
    for (const catalog::ObjectRef& ref : version.objects) {
      if (!Needed(ref.role, full_start)) continue;
      if (ref.footer_bytes < delta::kPartTrailerBytes || ref.footer_bytes > kFooterBytesMax ||
          ref.bytes < delta::kPartHeaderBytes + ref.footer_bytes) {
        return Invalid(ObjectText(version, ref) + ": a footer of " +
                       std::to_string(ref.footer_bytes) + " bytes in an object of " +
                       std::to_string(ref.bytes));
      }
      Fetcher*& fetcher = chain_.steps.back().fetcher;
      if (fetcher == nullptr) fetcher = WC_TRY(fetcher_for(version));
      chain_.objects.push_back({step, ref, {}});
    }
    return Ok();
  }

  // In groups of one fetcher and bounded size, so that all footers of a group come in parallel.
  Status LoadFooters() {
    for (size_t first = 0, last = 0; first < chain_.objects.size(); first = last) {
      int64_t bytes = 0;
      for (last = first; last < chain_.objects.size(); ++last) {
        if (FetcherOf(last) != FetcherOf(first)) break;
        if (last > first && bytes + FooterPieceBytes(last) > kFooterGroupBytes) break;
        bytes += FooterPieceBytes(last);
      }
      WC_TRY(LoadFooters(first, last, bytes));
    }
    return Ok();
  }

  Status IndexChunks();

 private:
  Fetcher* FetcherOf(size_t object) const {
    return chain_.steps[static_cast<size_t>(chain_.objects[object].step)].fetcher;
  }
  // A part without chunks is read whole: its header comes with the footer. Else with the first
  // chunk.
  int64_t FooterPieceBytes(size_t object) const {
    const catalog::ObjectRef& ref = chain_.objects[object].ref;
    return ref.footer_bytes + (HeaderComesWithFooter(ref) ? delta::kPartHeaderBytes : 0);
  }
  Status LoadFooters(size_t first, size_t last, int64_t bytes);
  const std::string& KeyOf(const ChainEntry& entry) const {
    return chain_.objects[static_cast<size_t>(entry.object)].ref.key;
  }
  void CheckCell(std::span<const ChainEntry> cell, std::vector<std::string>* faults) const;

  const tensor::Inventory& inventory_;
  Chain::State& chain_;
  std::vector<const catalog::Version*> versions_;  // by step
};

Status Loader::LoadFooters(size_t first, size_t last, int64_t bytes) {
  Bytes footers(static_cast<size_t>(bytes));
  std::vector<Piece> pieces;
  size_t at = 0;
  for (size_t i = first; i < last; ++i) {
    const catalog::ObjectRef& ref = chain_.objects[i].ref;
    const int64_t size = FooterPieceBytes(i);
    pieces.push_back({ref.key, ref.bytes - size,
                      MutableByteSpan(footers).subspan(at, static_cast<size_t>(size)),
                      [&ref](ByteSpan piece) { return ProveFooter(ref, piece); }});
    at += static_cast<size_t>(size);
  }
  WC_TRY(FetchListed(*FetcherOf(first), pieces));
  for (size_t i = first; i < last; ++i) {
    ChainObject& object = chain_.objects[i];
    const catalog::Version& version = *versions_[static_cast<size_t>(object.step)];
    const auto load = [&]() -> Status {
      const delta::PartSeal seal{object.ref.bytes, object.ref.footer_bytes,
                                 object.ref.footer_sha256};
      const ByteSpan footer = pieces[i - first].out.last(static_cast<size_t>(seal.footer_bytes));
      object.index = WC_TRY(delta::ParsePartFooter(footer, seal, inventory_));
      return CheckIdentity(version, object.ref.role, object.index.identity);
    };
    WC_TRY(load().With(ObjectText(version, object.ref)));
  }
  return Ok();
}

// The chunks of one cell: those of one version must not share a unit, and a full start has every
// unit.
void Loader::CheckCell(std::span<const ChainEntry> cell, std::vector<std::string>* faults) const {
  const tensor::TensorSpec& spec = inventory_[static_cast<size_t>(cell[0].tensor)];
  const tensor::Box box = layout::CellGrid::For(spec.matrix()).CellBox(cell[0].cell);
  auto fault = [&](int32_t step, const std::string& what) {
    faults->push_back(spec.name + " cell " + std::to_string(cell[0].cell) + " " +
                      tensor::BoxText(box) + " in " + chain_.steps[static_cast<size_t>(step)].text +
                      ": " + what);
  };
  for (size_t first = 0, last = 0; first < cell.size(); first = last) {
    const int32_t step = cell[first].step;
    int64_t units = 0;
    for (last = first; last < cell.size() && cell[last].step == step; ++last) {
      const tensor::Box& added = cell[last].chunk->box;
      units += added.units();
      for (size_t i = first; i < last; ++i) {
        if (!layout::Overlap(cell[i].chunk->box, added)) continue;
        return fault(step, "doubly covered by " + KeyOf(cell[i]) + " and " + KeyOf(cell[last]));
      }
    }
    if (step == 0 && units != box.units()) {
      fault(0, std::to_string(units) + " of " + std::to_string(box.units()) + " units are there");
    }
  }
  if (chain_.starts_full && cell[0].step != 0) fault(0, "missing");
}

Status Loader::IndexChunks() {
  std::vector<layout::CellGrid> grids;
  for (const tensor::TensorSpec& spec : inventory_.tensors()) {
    grids.push_back(layout::CellGrid::For(spec.matrix()));
  }
  std::vector<ChainEntry>& entries = chain_.entries;
  for (size_t o = 0; o < chain_.objects.size(); ++o) {
    const ChainObject& object = chain_.objects[o];
    for (const delta::PartChunk& chunk : object.index.chunks) {
      const int64_t cell =
          grids[static_cast<size_t>(chunk.tensor)].CellAt(chunk.box.row, chunk.box.col);
      entries.push_back({cell, chunk.tensor, object.step, static_cast<int32_t>(o), &chunk});
    }
  }
  std::ranges::sort(entries, {}, [](const ChainEntry& e) {
    return std::tuple(e.tensor, e.cell, e.step, e.chunk->box.row, e.chunk->box.col);
  });

  std::vector<std::string> faults;
  std::vector<int64_t> cells(inventory_.size());
  for (size_t first = 0, last = 0; first < entries.size(); first = last) {
    auto same = [&](const ChainEntry& e) {
      return e.tensor == entries[first].tensor && e.cell == entries[first].cell;
    };
    while (last < entries.size() && same(entries[last])) ++last;
    ++cells[static_cast<size_t>(entries[first].tensor)];
    CheckCell(std::span(entries).subspan(first, last - first), &faults);
  }
  for (size_t t = 0; chain_.starts_full && t < cells.size(); ++t) {
    if (cells[t] == grids[t].cells()) continue;
    faults.push_back(inventory_[t].name + ": " + std::to_string(grids[t].cells() - cells[t]) +
                     " of " + std::to_string(grids[t].cells()) + " cells are missing in " +
                     chain_.steps[0].text);
  }
  if (faults.empty()) return Ok();
  return Invalid("the chunks do not fit together: " + JoinNames(faults));
}

}  // namespace

Result<Chain> Chain::Load(
    const tensor::Inventory& inventory, const catalog::ReplayPlan& plan,
    const std::function<Result<Fetcher*>(const catalog::Version&)>& fetcher_for) {
  WC_TRY(CheckLineage(plan));
  auto state = std::make_unique<State>();
  state->inventory = &inventory;
  state->starts_full = plan.start == catalog::ReplayStart::kFull;
  Loader loader(inventory, *state);
  const catalog::Version nothing;  // an image or a seed brings no objects
  WC_TRY(loader.AddStep(state->starts_full ? plan.start_version : nothing, true, fetcher_for));
  for (const catalog::Version& version : plan.steps) {
    WC_TRY(loader.AddStep(version, false, fetcher_for));
  }
  WC_TRY(loader.LoadFooters());
  WC_TRY(loader.IndexChunks());
  return Chain(std::move(state));
}

}  // namespace weightcast::transfer
