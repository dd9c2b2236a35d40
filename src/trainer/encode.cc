#include "trainer/encode.h"

#include "base/ordered.h"
#include "base/task_pool.h"
#include "layout/gather.h"
#include "trainer/redo.h"

namespace weightcast::trainer {
namespace {

// Above this share of changed units one digest pass is cheaper than the terms one by one
// (docs/formats/digest.md, measurements: about 140 M changes/s against 6 GB/s).
constexpr int64_t kDigestPassShare = 16;

struct Worker {
  delta::Scratch scratch;
  Bytes packed;
  Bytes delta_payload;
  Bytes full_payload;
  Bytes redo;
  Duration diff{};
  Duration encode{};
};

struct Encoded {
  delta::PartChunk delta;
  delta::PartChunk full;
  delta::ChunkInfo info;
  tensor::TensorDigest base;
  tensor::TensorDigest next;
};

class Pass {
 public:
  Pass(os::World& world, const EncodeJob& job) : world_(world), job_(job) {}

  Result<EncodeResult> Run() {
    const auto& chunks = job_.chunks.chunks;
    const int threads = ThreadCount(job_.threads);
    std::vector<Worker> workers(static_cast<size_t>(threads));
    WC_TRY(ParallelFor(chunks.size(), threads, [&](size_t item, int index) -> Status {
      Worker& worker = workers[static_cast<size_t>(index)];
      const Encoded encoded = Encode(item, worker);
      return order_.Turn(item, [&] { return Write(chunks[item], encoded, worker); });
    }));
    for (auto& [tensor, partial] : partials_) result_.partials.push_back(partial);
    for (const Worker& worker : workers) {
      result_.seconds_diff += ToSeconds(worker.diff) / threads;
      result_.seconds_encode += ToSeconds(worker.encode) / threads;
    }
    return std::move(result_);
  }

 private:
  bool has_base() const { return !job_.baseline.version().empty(); }

  Encoded Encode(size_t item, Worker& worker) {
    const layout::Chunk& chunk = job_.chunks.chunks[item];
    const tensor::TensorSpec& spec = (*job_.run.inventory)[static_cast<size_t>(chunk.tensor)];
    const tensor::Matrix matrix = spec.matrix();
    const int64_t bytes = chunk.box.units() * matrix.unit_bytes;
    worker.delta_payload.clear();
    worker.full_payload.clear();

    const SteadyTime start = world_.clock.Now();
    const ByteSpan next = layout::GatherChunk(spec, chunk, job_.shards.params(), &worker.packed);
    const ByteSpan base = has_base() ? job_.baseline.chunk(chunk, bytes) : ByteSpan();
    Encoded out;
    if (has_base()) out.base = tensor::DigestBox(matrix, chunk.box, base);
    const SteadyTime mid = world_.clock.Now();

    if (job_.delta != nullptr) {
      out.info = delta::EncodeChunk(spec.dtype, base, next, worker.scratch, &worker.delta_payload);
      out.next = NextDigest(matrix, chunk.box, base, next, worker.scratch, out);
      out.delta = Describe(chunk, out.info, base.empty(), out);
    }
    if (has_base()) {
      EncodeRedo(item, matrix.unit_bytes, next, worker.scratch.changed(), &worker.redo);
    } else {
      job_.baseline.Write(chunk.at, next);
    }
    if (job_.full != nullptr) {
      const delta::ChunkInfo info =
          delta::EncodeChunk(spec.dtype, {}, next, worker.scratch, &worker.full_payload);
      if (job_.delta == nullptr) {
        out.info = info;
        out.next = tensor::DigestBox(matrix, chunk.box, next);
      }
      out.full = Describe(chunk, info, /*without_base=*/true, out);
    }
    worker.diff += mid - start;
    worker.encode += world_.clock.Now() - mid;
    return out;
  }

  static tensor::TensorDigest NextDigest(const tensor::Matrix& matrix, const tensor::Box& box,
                                         ByteSpan base, ByteSpan next,
                                         const delta::Scratch& scratch, const Encoded& out) {
    if (!base.empty() && out.info.method == delta::Method::kAbsent) return out.base;
    if (base.empty() || out.info.changed_units > box.units() / kDigestPassShare) {
      return tensor::DigestBox(matrix, box, next);
    }
    return out.base + tensor::DigestChange(matrix, box, base, next, scratch.changed());
  }

  static delta::PartChunk Describe(const layout::Chunk& chunk, const delta::ChunkInfo& info,
                                   bool without_base, const Encoded& out) {
    return {.tensor = chunk.tensor,
            .box = chunk.box,
            .method = info.method,
            .without_base = without_base,
            .changed_units = info.changed_units,
            .base_digest = without_base ? tensor::TensorDigest{} : out.base,
            .next_digest = out.next};
  }

  Status Write(const layout::Chunk& chunk, const Encoded& encoded, const Worker& worker) {
    if (job_.delta != nullptr && encoded.info.method != delta::Method::kAbsent) {
      WC_TRY(job_.delta->Add(encoded.delta, worker.delta_payload));
    }
    if (job_.full != nullptr) WC_TRY(job_.full->Add(encoded.full, worker.full_payload));
    if (has_base()) WC_TRY(job_.baseline.AppendRedo(worker.redo));
    const int64_t units = chunk.box.units();
    catalog::TensorPartial& partial = partials_[chunk.tensor];
    partial.tensor = chunk.tensor;
    partial.raw = !has_base();
    if (has_base()) partial.base += {encoded.base, units};
    partial.next += {encoded.next, units};
    result_.elements += units;
    result_.changed_elements += encoded.info.changed_units;
    return Ok();
  }

  os::World& world_;
  const EncodeJob& job_;
  InOrder order_;
  std::map<int32_t, catalog::TensorPartial> partials_;
  EncodeResult result_;
};

}  // namespace

Result<EncodeResult> EncodeChunks(os::World& world, const EncodeJob& job) {
  return Pass(world, job).Run();
}

Result<std::map<int32_t, tensor::Partial>> DigestShards(const catalog::Run& run,
                                                        const layout::ChunkList& chunks,
                                                        const ShardSet& shards, int threads) {
  threads = ThreadCount(threads);
  std::vector<Bytes> buffers(static_cast<size_t>(threads));
  std::vector<tensor::TensorDigest> digests(chunks.chunks.size());
  WC_TRY(ParallelFor(chunks.chunks.size(), threads, [&](size_t item, int worker) -> Status {
    const layout::Chunk& chunk = chunks.chunks[item];
    const tensor::TensorSpec& spec = (*run.inventory)[static_cast<size_t>(chunk.tensor)];
    const ByteSpan units =
        layout::GatherChunk(spec, chunk, shards.params(), &buffers[static_cast<size_t>(worker)]);
    digests[item] = tensor::DigestBox(spec.matrix(), chunk.box, units);
    return Ok();
  }));
  std::map<int32_t, tensor::Partial> sums;
  for (size_t i = 0; i < digests.size(); ++i) {
    sums[chunks.chunks[i].tensor] += {digests[i], chunks.chunks[i].box.units()};
  }
  return sums;
}

}  // namespace weightcast::trainer
