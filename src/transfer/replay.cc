// Chain::Replay: payloads of a batch fetched in few ranges, then decoded cell by cell.
#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "layout/gather.h"
#include "transfer/chain_state.h"

namespace weightcast::transfer {

struct Chain::Scratch::State {
  Bytes payload;    // of the batch
  Bytes frames[2];  // packed cells, here and below
  Bytes box;
  delta::Scratch codec;
};
Chain::Scratch::Scratch() : state_(std::make_unique<State>()) {}
Chain::Scratch::~Scratch() = default;
Chain::Scratch::Scratch(Scratch&&) noexcept = default;

namespace {

// A piece is read and, where it does not verify, read again as a whole.
constexpr int64_t kPieceBytesMax = 16 * kMiB;
// Payloads of cells that are not wanted are read over up to this: cheaper than another request.
constexpr int64_t kGapBytesMax = 64 * kKiB;

// The first n bytes of a buffer that only grows.
MutableByteSpan Room(Bytes* buffer, int64_t n) {
  const auto size = static_cast<size_t>(n);
  if (buffer->size() < size) {
    buffer->clear();  // nothing to copy
    buffer->resize(size);
  }
  return MutableByteSpan(*buffer).first(size);
}

// The payload of one chunk of a batch: where it lies in its object, and in `payload` of the
// scratch.
struct Wanted {
  const ChainChunk* chunk = nullptr;
  const ReplayCell* cell = nullptr;
  int64_t begin = 0;  // in the object; of its first chunk 0, so that the header is proven too
  ByteSpan* payload = nullptr;

  int64_t end() const { return chunk->chunk->offset + chunk->chunk->payload_bytes; }
};

// Payloads that are read together.
struct Range {
  std::span<const Wanted> wanted;
  int64_t bytes() const { return wanted.back().end() - wanted.front().begin; }
};

// The payloads of a batch, sorted by where they lie. `payloads` has a place for each chunk of each
// cell, in order.
std::vector<Wanted> WantedOf(const std::vector<ChainObject>& objects, const ReplayBatch& batch,
                             std::vector<ByteSpan>* payloads) {
  size_t chunks = 0;
  for (const ReplayCell& cell : batch.cells) chunks += cell.chunks.size();
  payloads->resize(chunks);
  std::vector<Wanted> wanted;
  wanted.reserve(chunks);
  for (const ReplayCell& cell : batch.cells) {
    for (const ChainChunk& chunk : cell.chunks) {
      const auto& first = objects[static_cast<size_t>(chunk.object)].index.chunks.front();
      const int64_t begin = chunk.chunk == &first ? 0 : chunk.chunk->offset;
      wanted.push_back({&chunk, &cell, begin, &(*payloads)[wanted.size()]});
    }
  }
  std::ranges::sort(wanted, {},
                    [](const Wanted& w) { return std::pair(w.chunk->object, w.begin); });
  return wanted;
}

std::vector<Range> CutRanges(std::span<const Wanted> wanted) {
  std::vector<Range> ranges;
  for (size_t first = 0, last = 0; first < wanted.size(); first = last) {
    for (last = first + 1; last < wanted.size(); ++last) {
      if (wanted[last].chunk->object != wanted[first].chunk->object ||
          wanted[last].begin - wanted[last - 1].end() > kGapBytesMax ||
          wanted[last].end() - wanted[first].begin > kPieceBytesMax) {
        break;
      }
    }
    ranges.push_back({wanted.subspan(first, last - first)});
  }
  return ranges;
}

// The bytes of a chunk's payload among those of its range.
ByteSpan PayloadIn(const Range& range, const Wanted& wanted, ByteSpan bytes) {
  const delta::PartChunk& chunk = *wanted.chunk->chunk;
  return bytes.subspan(static_cast<size_t>(chunk.offset - range.wanted.front().begin),
                       static_cast<size_t>(chunk.payload_bytes));
}

Status ProveRange(const tensor::Inventory& inventory, const Range& range, ByteSpan bytes) {
  if (range.wanted.front().begin == 0) {
    WC_TRY(ProveHeader(bytes));
  }
  for (const Wanted& wanted : range.wanted) {
    WC_TRY(delta::ProvePayload(inventory[static_cast<size_t>(wanted.cell->tensor)],
                               *wanted.chunk->chunk, PayloadIn(range, wanted, bytes)));
  }
  return Ok();
}

// Brings the payloads of a batch into `buffer`: one span for each chunk of each cell, in order.
Result<std::vector<ByteSpan>> FetchPayloads(const Chain::State& chain, const ReplayBatch& batch,
                                            Bytes* buffer) {
  std::vector<ByteSpan> payloads;
  const std::vector<Wanted> wanted = WantedOf(chain.objects, batch, &payloads);
  const std::vector<Range> ranges = CutRanges(wanted);
  int64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.bytes();
  MutableByteSpan room = Room(buffer, bytes);

  std::map<Fetcher*, std::vector<Piece>> pieces;
  for (const Range& range : ranges) {
    const ChainObject& object = chain.objects[static_cast<size_t>(range.wanted[0].chunk->object)];
    const MutableByteSpan out = room.first(static_cast<size_t>(range.bytes()));
    room = room.subspan(out.size());
    for (const Wanted& w : range.wanted) *w.payload = PayloadIn(range, w, out);
    pieces[chain.steps[static_cast<size_t>(object.step)].fetcher].push_back(
        {object.ref.key, range.wanted[0].begin, out,
         [&](ByteSpan got) { return ProveRange(*chain.inventory, range, got); }});
  }
  for (auto& [fetcher, group] : pieces) WC_TRY(FetchListed(*fetcher, group));
  return payloads;
}

// A cell while its chunks are applied to it.
class CellReplay {
 public:
  CellReplay(const tensor::TensorSpec& spec, const layout::Box& box, Chain::Scratch::State* scratch)
      : spec_(spec), matrix_(spec.matrix()), box_(box), codec_(scratch->codec) {
    const int64_t bytes = box.units() * matrix_.unit_bytes;
    frame_ = Room(&scratch->frames[0], bytes);
    other_ = Room(&scratch->frames[1], bytes);
    packed_ = Room(&scratch->box, bytes);
  }

  // What the cell is before the first chunk, unless the first version brings every unit.
  void SetBase(ByteSpan base) {
    WC_CHECK(std::cmp_equal(base.size(), box_.units() * matrix_.unit_bytes));
    now_ = base;
  }
  ByteSpan now() const { return now_; }

  // Was one chunk, with a base, all that made the cell?
  bool IsOneChunk(const ReplayCell& cell) const {
    return cell.chunks.size() == 1 && cell.chunks[0].chunk->box == box_ &&
           !cell.chunks[0].chunk->without_base;
  }

  // Puts the chunk on top; returns what the tensor's digest gains. `fresh`: nothing lies below,
  // since the chain starts with the chunk's version.
  Result<tensor::Partial> Apply(const delta::PartChunk& chunk, bool fresh, ByteSpan payload) {
    const bool whole = chunk.box == box_;
    tensor::Partial gained{chunk.next_digest, fresh ? chunk.box.units() : 0};
    const tensor::TensorDigest below =
        WC_TRY(whole ? ApplyWhole(chunk, fresh, payload) : ApplyPartial(chunk, fresh, payload));
    gained.digest = gained.digest - below;
    return gained;
  }

 private:
  // Both return the digest of what lay below.
  Result<tensor::TensorDigest> ApplyWhole(const delta::PartChunk& chunk, bool fresh,
                                          ByteSpan payload) {
    const ByteSpan below = fresh ? ByteSpan() : now_;
    const MutableByteSpan next = now_.data() == frame_.data() ? other_ : frame_;
    WC_TRY(Decode(chunk, payload, below, next));
    now_ = next;
    return DigestBelow(chunk, below);
  }

  Result<tensor::TensorDigest> ApplyPartial(const delta::PartChunk& chunk, bool fresh,
                                            ByteSpan payload) {
    const MutableByteSpan mine = now_.data() == other_.data() ? other_ : frame_;
    const MutableByteSpan gathered = mine.data() == frame_.data() ? other_ : frame_;
    if (!now_.empty() && now_.data() != mine.data()) CopyBytes(now_, mine);
    now_ = mine;
    const auto bytes = static_cast<size_t>(chunk.box.units() * matrix_.unit_bytes);
    ByteSpan below;
    if (!fresh) {
      below = gathered.first(bytes);
      layout::GatherFromFrame(matrix_, chunk.box, box_, now_, gathered.first(bytes));
    }
    const MutableByteSpan next = packed_.first(bytes);
    WC_TRY(Decode(chunk, payload, below, next));
    layout::ScatterBox(matrix_, chunk.box, next, box_, mine);
    return DigestBelow(chunk, below);
  }

  Status Decode(const delta::PartChunk& chunk, ByteSpan payload, ByteSpan below,
                MutableByteSpan next) {
    return delta::DecodeProven(spec_, chunk, payload, chunk.without_base ? ByteSpan() : below,
                               codec_, next);
  }

  tensor::TensorDigest DigestBelow(const delta::PartChunk& chunk, ByteSpan below) const {
    if (!chunk.without_base) return chunk.base_digest;  // proven while decoding
    return below.empty() ? tensor::TensorDigest() : tensor::DigestBox(matrix_, chunk.box, below);
  }

  const tensor::TensorSpec& spec_;
  const tensor::Matrix matrix_;
  const layout::Box box_;
  delta::Scratch& codec_;
  MutableByteSpan frame_;
  MutableByteSpan other_;
  MutableByteSpan packed_;  // a chunk that is not the whole cell
  ByteSpan now_;            // the base, frame_ or other_; empty before the first fresh chunk
};

}  // namespace

Status Chain::Replay(const ReplayBatch& batch, Scratch& scratch, const BaseReader& base,
                     const CellSink& sink, std::vector<tensor::Partial>* gained) const {
  WC_CHECK(gained->size() == state_->inventory->size());
  const std::vector<ByteSpan> payloads =
      WC_TRY(FetchPayloads(*state_, batch, &scratch.state().payload));
  auto payload = payloads.begin();
  for (const ReplayCell& cell : batch.cells) {
    const auto tensor = static_cast<size_t>(cell.tensor);
    CellReplay replay((*state_->inventory)[tensor], cell.box, &scratch.state());
    ReplayedCell result;
    if (!state_->starts_full) {
      result.base = WC_TRY(base(cell));
      replay.SetBase(result.base);
    }
    for (const ChainChunk& chunk : cell.chunks) {
      const bool fresh = state_->starts_full && chunk.step == 0;
      Result<tensor::Partial> applied = replay.Apply(*chunk.chunk, fresh, *payload++);
      if (!applied.ok()) {
        return applied.error().With(state_->steps[static_cast<size_t>(chunk.step)].text +
                                    ", object " +
                                    state_->objects[static_cast<size_t>(chunk.object)].ref.key);
      }
      (*gained)[tensor] += *applied;
    }
    result.next = replay.now();
    if (replay.IsOneChunk(cell)) {
      result.chunk = cell.chunks.front().chunk;
      result.changed = scratch.state().codec.changed();
    }
    WC_TRY(sink(cell, result));
  }
  return Ok();
}

}  // namespace weightcast::transfer
