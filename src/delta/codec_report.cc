#include "delta/codec_report.h"

#include <algorithm>
#include <vector>

#include "delta/codec.h"
#include "delta/codec_baselines.h"
#include "delta/part.h"
#include "delta/scan.h"
#include "layout/cells.h"

namespace weightcast::delta {
namespace {

// The two states as one tensor whose cells are whole chunks.
class Bench {
 public:
  Bench(ByteSpan base, ByteSpan next, const CodecBenchOptions& options, os::Clock& clock)
      : base_(base), next_(next), options_(options), clock_(clock), restored_(base.size()) {
    const auto units = static_cast<int64_t>(base.size() / 2);
    spec_ = {"weights", tensor::DType::kBf16, {units}};
    const layout::CellGrid grid = layout::CellGrid::For(spec_.matrix());
    for (int64_t cell = 0; cell < grid.cells(); ++cell) boxes_.push_back(grid.CellBox(cell));
  }

  CodecReport Run() {
    report_.elements = spec_.units();
    Speeds();
    Encode(PartKind::kDelta, &report_.wire_bytes);
    Prove();
    Encode(PartKind::kFull, &report_.full_bytes);
    report_.density =
        static_cast<double>(report_.changed_elements) / static_cast<double>(report_.elements);
    report_.bytes_per_changed =
        static_cast<double>(report_.wire_bytes) / static_cast<double>(report_.changed_elements);
    const Bounds bounds = BoundsOf(Units(base_), Units(next_));
    report_.bound_l0 = bounds.l0;
    report_.bound_l1 = bounds.l1;
    if (options_.baselines) report_.baselines = BaselineBytes(Units(base_), Units(next_));
    return report_;
  }

 private:
  static std::span<const uint16_t> Units(ByteSpan bytes) {
    return {reinterpret_cast<const uint16_t*>(bytes.data()), bytes.size() / 2};
  }
  static ByteSpan At(ByteSpan of, const tensor::Box& box) {
    return of.subspan(static_cast<size_t>(2 * box.row), static_cast<size_t>(2 * box.units()));
  }

  template <typename Work>
  double BestSeconds(Work work) {
    double best = 1e30;
    for (int round = 0; round < std::max(1, options_.rounds); ++round) {
      const SteadyTime begin = clock_.Now();
      work();
      best = std::min(best, ToSeconds(clock_.Now() - begin));
    }
    return std::max(best, 1e-9);
  }
  template <typename Work>
  void Time(const char* name, Work work) {
    report_.gb_per_s[name] = static_cast<double>(base_.size()) / 1e9 / BestSeconds(work);
  }

  // What memory and the passes over it allow.
  void Speeds() {
    Time("memcpy", [&] { CopyBytes(base_, restored_); });
    uint64_t sum = 0;
    Time("xor_read", [&] {
      for (size_t i = 0; i + 8 <= base_.size(); i += 8) {
        sum |= LoadLe<uint64_t>(base_.data() + i) ^ LoadLe<uint64_t>(next_.data() + i);
      }
    });
    std::vector<uint64_t> mask(MaskWords(base_.size() / 2));
    size_t changed = 0;
    Time("diff", [&] { changed = DiffUnits(2, base_, next_, mask); });
    report_.changed_elements = static_cast<int64_t>(changed);
    WC_CHECK((sum != 0) == (changed != 0));
    Time("digest_full",
         [&] { DigestBox(spec_.matrix(), tensor::Box::All(spec_.matrix()), next_); });
  }

  // All chunks as a part that is not kept; `bytes` is the object's size.
  void Encode(PartKind kind, int64_t* bytes) {
    chunks_.clear();
    payloads_.clear();
    const bool full = kind == PartKind::kFull;
    for (const tensor::Box& box : boxes_) {
      const ByteSpan base = full ? ByteSpan() : At(base_, box);
      Bytes payload;
      const ChunkInfo info = EncodeChunk(spec_.dtype, base, At(next_, box), scratch_, &payload);
      if (info.method == Method::kAbsent) continue;
      PartChunk chunk{.box = box, .method = info.method, .without_base = full};
      chunk.changed_units = info.changed_units;
      chunk.payload_bytes = static_cast<int64_t>(payload.size());
      chunk.sha256 = Sha256::Of(payload);
      if (!full) chunk.base_digest = DigestBox(spec_.matrix(), box, base);
      chunk.next_digest = DigestBox(spec_.matrix(), box, At(next_, box));
      chunks_.push_back(chunk);
      payloads_.push_back(std::move(payload));
    }
    PartIdentity identity{.kind = kind};
    if (!full) identity.base.value.fill(1);
    PartWriter writer(identity, [](ByteSpan) { return Ok(); });
    for (size_t i = 0; i < chunks_.size(); ++i) {
      WC_CHECK(writer.Add(chunks_[i], payloads_[i]).ok());
    }
    const Result<PartSeal> seal = writer.Finish();
    *bytes = seal.ok() ? seal.value().object_bytes : 0;
    if (full) return;
    Bytes payload;
    Time("encode", [&] {
      for (const tensor::Box& box : boxes_) {
        payload.clear();
        EncodeChunk(spec_.dtype, At(base_, box), At(next_, box), scratch_, &payload);
      }
    });
  }

  // Decodes what was encoded: exactly, and as fast as it goes.
  void Prove() {
    CopyBytes(base_, restored_);
    Time("decode_verify_apply", [&] {
      for (size_t i = 0; i < chunks_.size(); ++i) {
        const tensor::Box& box = chunks_[i].box;
        const auto next = MutableByteSpan(restored_).subspan(static_cast<size_t>(2 * box.row),
                                                             static_cast<size_t>(2 * box.units()));
        WC_CHECK(
            DecodeVerified(spec_, chunks_[i], payloads_[i], At(base_, box), scratch_, next).ok());
      }
    });
    WC_CHECK(std::ranges::equal(restored_, next_));
    if (chunks_.empty()) return;
    const tensor::Box& box = chunks_.back().box;
    const std::vector<uint32_t> changed = scratch_.changed();
    const double seconds = BestSeconds(
        [&] { DigestChange(spec_.matrix(), box, At(base_, box), At(next_, box), changed); });
    report_.digest_update_per_s = static_cast<double>(changed.size()) / seconds;
  }

  const ByteSpan base_;
  const ByteSpan next_;
  const CodecBenchOptions& options_;
  os::Clock& clock_;
  tensor::TensorSpec spec_;
  std::vector<tensor::Box> boxes_;
  std::vector<PartChunk> chunks_;
  std::vector<Bytes> payloads_;
  Bytes restored_;
  Scratch scratch_;
  CodecReport report_;
};

}  // namespace

Result<CodecReport> MeasureCodec(ByteSpan base, ByteSpan next, const CodecBenchOptions& options,
                                 os::Clock& clock) {
  WC_CHECK(base.size() == next.size() && base.size() % 2 == 0);
  if (std::ranges::equal(base, next)) {
    return Error{Code::kInvalidArgument, "the two states are equal: nothing to measure"};
  }
  return Bench(base, next, options, clock).Run();
}

Result<CodecReport> RunCodecBench(const CodecBenchOptions& options, os::Clock& clock) {
  if (options.units < 1 || options.steps < 0) {
    return Error{Code::kInvalidArgument, "a codec bench of " + std::to_string(options.units) +
                                             " units and " + std::to_string(options.steps) +
                                             " steps"};
  }
  AdamSim sim(options.training, static_cast<size_t>(options.units));
  for (int i = 0; i < options.steps; ++i) sim.Step();
  const std::vector<uint16_t> base = sim.weights();
  sim.Step();
  const auto bytes = [](const std::vector<uint16_t>& units) {
    return ByteSpan(reinterpret_cast<const uint8_t*>(units.data()), 2 * units.size());
  };
  return MeasureCodec(bytes(base), bytes(sim.weights()), options, clock);
}

}  // namespace weightcast::delta
