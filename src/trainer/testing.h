// For tests of this floor: a small model cut over ranks by hand, weights that move, and a job that
// publishes all its ranks one after the other.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "layout/cells.h"
#include "layout/gather.h"
#include "layout/plan.h"
#include "os/world.h"
#include "store/store.h"
#include "tensor/root.h"
#include "trainer/publisher.h"
#include "trainer/seed.h"

namespace weightcast::trainer {

using tensor::DType;
using Weights = std::vector<Bytes>;  // canonical bytes, in inventory order

inline std::shared_ptr<const tensor::Inventory> SmallInventory() {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make({{"carried.tower", DType::kBf16, {5, 3}},
                               {"empty", DType::kBf16, {0, 4}},
                               {"model.bias", DType::kF32, {7}},
                               {"model.cols", DType::kBf16, {6, 12}},
                               {"model.norm", DType::kBf16, {12}},
                               {"model.rows", DType::kBf16, {12, 10}},
                               {"scale", DType::kF32, {}}})
          .value());
}

inline Weights RandomWeights(const tensor::Inventory& inventory, uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (const tensor::TensorSpec& spec : inventory.tensors()) {
    Bytes bytes(static_cast<size_t>(spec.bytes()));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    weights.push_back(std::move(bytes));
  }
  return weights;
}

// Changes about one unit in four of every tensor but the carried one (index 0).
inline Weights Moved(const tensor::Inventory& inventory, Weights weights, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t t = 1; t < weights.size(); ++t) {
    const auto unit = static_cast<size_t>(inventory[t].matrix().unit_bytes);
    for (size_t at = 0; at < weights[t].size(); at += unit) {
      if (random() % 4 == 0) weights[t][at] ^= static_cast<uint8_t>(1 + random() % 255);
    }
  }
  return weights;
}

inline std::vector<tensor::TensorDigest> DigestsOf(const Weights& weights) {
  std::vector<tensor::TensorDigest> digests;
  for (const Bytes& bytes : weights) digests.push_back(tensor::DigestRun(0, bytes));
  return digests;
}

// All tensors but the carried one: "rows" and "bias" cut by rows, "cols" by columns, the rest on
// rank 0 (and, for "norm", replicated, so that every rank holds it and one owns it).
inline std::shared_ptr<const layout::Plan> SmallPlan(const tensor::Inventory& run, int32_t ranks) {
  auto plan = std::make_shared<layout::Plan>();
  std::vector<tensor::TensorSpec> held(run.tensors().begin() + 1, run.tensors().end());
  plan->inventory =
      std::make_shared<const tensor::Inventory>(tensor::Inventory::Make(held).value());
  plan->family = "small";
  plan->ranks.resize(static_cast<size_t>(ranks));
  for (size_t t = 0; t < plan->inventory->size(); ++t) {
    const tensor::TensorSpec& spec = (*plan->inventory)[t];
    const tensor::Matrix m = spec.matrix();
    for (int32_t rank = 0; rank < ranks; ++rank) {
      layout::RankPlan& own = plan->ranks[static_cast<size_t>(rank)];
      layout::Box box = layout::Box::All(m);
      const bool by_cols = spec.name == "model.cols";
      const bool by_rows = spec.name == "model.rows" || spec.name == "model.bias";
      int64_t& begin = by_cols ? box.col : box.row;
      int64_t& count = by_cols ? box.cols : box.rows;
      if (by_cols || by_rows) {
        const int64_t all = count;
        begin = all * rank / ranks;
        count = all * (rank + 1) / ranks - begin;
      } else if (rank != 0 && spec.name != "model.norm") {
        continue;
      }
      tensor::Shape shape = spec.shape;
      if (by_rows) shape[0] = box.rows;
      if (by_cols) shape[1] = box.cols;
      const auto param = static_cast<int32_t>(own.params.size());
      own.params.push_back({"vp0/" + spec.name, spec.dtype, shape});
      if (box.units() == 0 || (spec.name == "model.norm" && rank != ranks - 1)) continue;
      own.slices.push_back({.tensor = static_cast<int32_t>(t),
                            .box = box,
                            .param = param,
                            .source = 0,
                            .row_stride = box.cols,
                            .col_stride = 1});
    }
  }
  WC_CHECK(layout::ProveCoverage(*plan).ok());
  return plan;
}

// The chunks of a rank in the run's own tensor indices (the carried tensor comes first).
inline layout::ChunkList SmallChunks(const layout::Plan& plan, RankId rank) {
  layout::ChunkList list =
      layout::CutIntoChunks(*plan.inventory, plan.ranks[static_cast<size_t>(rank.value)]);
  for (layout::Chunk& chunk : list.chunks) ++chunk.tensor;
  return list;
}

// One life of a trainer job on one machine.
class SmallJob {
 public:
  SmallJob(os::World& world, catalog::Catalog& catalog, store::Store& store, catalog::Run run,
           int32_t ranks, std::string baselines)
      : world_(world),
        catalog_(catalog),
        store_(store),
        run_(std::move(run)),
        plan_(SmallPlan(*run_.inventory, ranks)),
        baselines_(std::move(baselines)) {}

  const tensor::HfDirectory* seed = nullptr;
  int rebuilt = 0;  // baselines that had to be rebuilt so far
  const layout::Plan& plan() const { return *plan_; }

  Status Open(const std::string& token) {
    epoch_ = WC_TRY(catalog_.OpenEpoch({.run = run_.uid,
                                        .token = token,
                                        .number = {},
                                        .plan = plan_->Hash(),
                                        .participants = Participants(*plan_)}));
    return Ok();
  }

  std::string BaselineOf(int32_t rank) const {
    return baselines_ + "/" + plan_->Hash().brief() + "-" + std::to_string(rank);
  }

  Result<PublishReport> PublishOne(int32_t rank, int64_t number, const Weights& weights,
                                   bool full = false) {
    const RankId id{rank};
    const layout::RankPlan& own = plan_->ranks[static_cast<size_t>(rank)];
    std::vector<Bytes> params;
    for (const layout::Param& param : own.params) {
      params.emplace_back(
          static_cast<size_t>(tensor::TensorSpec{param.key, param.dtype, param.shape}.bytes()));
    }
    // What a rank holds: its slices, and replicas that another rank owns (left as zeros: not sent).
    for (const layout::Slice& slice : own.slices) {
      const auto tensor = static_cast<size_t>(slice.tensor) + 1;
      layout::GatherBox((*run_.inventory)[tensor].matrix(), slice.box, weights[tensor],
                        params[static_cast<size_t>(slice.param)]);
    }
    std::vector<ByteSpan> spans(params.begin(), params.end());
    const layout::ChunkList chunks = SmallChunks(*plan_, id);
    const std::string identity = run_.uid.hex() + plan_->Hash().hex() + std::to_string(rank);
    Baseline baseline = WC_TRY(Baseline::Open(world_, BaselineOf(rank), identity, chunks));
    const PublishRequest request{.epoch = epoch_,
                                 .number = number,
                                 .step_token = std::to_string(number),
                                 .full = full,
                                 .store_url = store_.url(),
                                 .labels = {},
                                 .side_files = {},
                                 .staging_timeout = seconds(3600),
                                 .wait_ready = {}};
    const ShardSet shards(std::move(spans));
    const PublisherOptions options{
        .threads = 1,
        .spool_bytes_max = kMiB,
        .seed = seed,
        .open_store = [&](const std::string&) -> Result<store::Store*> { return &store_; }};
    PublishReport report = WC_TRY(PublishRank(
        world_, catalog_, store_, {run_, *plan_, id, shards, chunks, baseline}, request, options));
    if (report.baseline_rebuilt) ++rebuilt;
    return report;
  }

  // Every rank in turn; the last one sees READY.
  Result<catalog::Version> Publish(int64_t number, const Weights& weights, bool full = false) {
    catalog::Version last;
    for (size_t rank = 0; rank < plan_->ranks.size(); ++rank) {
      last = WC_TRY(PublishOne(static_cast<int32_t>(rank), number, weights, full)).version;
    }
    return last;
  }

 private:
  os::World& world_;
  catalog::Catalog& catalog_;
  store::Store& store_;
  catalog::Run run_;
  std::shared_ptr<const layout::Plan> plan_;
  std::string baselines_;
  Epoch epoch_;
};

// Writes `weights` as a checkpoint directory.
inline Status WriteCheckpoint(os::Fs& fs, const std::string& path,
                              const tensor::Inventory& inventory, const Weights& weights) {
  WC_TRY(fs.MakeDirectories(path));
  tensor::SafetensorsHeader header;
  const Bytes head = WC_TRY(tensor::MakeSafetensorsHeader(inventory.tensors(), {}, &header));
  const auto file = WC_TRY(fs.OpenFile(path + "/model.safetensors", os::Open::kCreate));
  WC_TRY(file->Write(0, head));
  for (const tensor::PlacedTensor& placed : header.tensors) {
    const auto index = static_cast<size_t>(inventory.Find(placed.spec.name));
    WC_TRY(file->Write(placed.offset, weights[index]));
  }
  const auto config = WC_TRY(fs.OpenFile(path + "/config.json", os::Open::kCreate));
  WC_TRY(config->Write(0, AsBytes("{}")));
  return file->Sync();
}

}  // namespace weightcast::trainer
