// diff and inspect: looking at weights and parts without changing anything.
#include <cinttypes>

#include "apps/command.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "delta/part.h"
#include "tensor/hf_directory.h"

namespace weightcast::apps {
namespace {

int64_t CountChanged(int unit_bytes, ByteSpan a, ByteSpan b) {
  int64_t changed = 0;
  const auto step = static_cast<size_t>(unit_bytes);
  for (size_t at = 0; at < a.size(); at += step) {
    if (std::memcmp(a.data() + at, b.data() + at, step) != 0) ++changed;
  }
  return changed;
}

Status Diff(App& app, const std::string& path_a, const std::string& path_b) {
  WC_TRY(app.CheckInputs({{"DIR_A", path_a}, {"DIR_B", path_b}}));
  os::Fs& fs = app.world().fs;
  const tensor::HfDirectory a = WC_TRY(tensor::HfDirectory::Open(fs, path_a).With(path_a));
  const tensor::HfDirectory b = WC_TRY(tensor::HfDirectory::Open(fs, path_b).With(path_b));
  if (!(*a.inventory() == *b.inventory())) {
    return Error{Code::kInvalidData, "different inventories: " +
                                         tensor::DifferenceText(*a.inventory(), *b.inventory())};
  }
  const auto weights_a = WC_TRY(tensor::MappedWeights::Map(fs, a, false));
  const auto weights_b = WC_TRY(tensor::MappedWeights::Map(fs, b, false));
  const tensor::Inventory& inventory = *a.inventory();
  std::vector<int64_t> changed(inventory.size());
  WC_TRY(ParallelFor(inventory.size(), 0, [&](size_t i, int) -> Status {
    changed[i] =
        CountChanged(inventory[i].matrix().unit_bytes, weights_a.tensor(i), weights_b.tensor(i));
    return Ok();
  }));
  int64_t total = 0;
  Json tensors = Json::array();
  std::string text;
  for (size_t i = 0; i < inventory.size(); ++i) {
    total += changed[i];
    tensors.push_back(
        {{"name", inventory[i].name}, {"changed", changed[i]}, {"elements", inventory[i].units()}});
    if (changed[i] == 0) continue;
    text += "  " + inventory[i].name + ": " + std::to_string(changed[i]) + " of " +
            std::to_string(inventory[i].units()) + "\n";
  }
  const int64_t elements = inventory.units();
  const double density =
      elements > 0 ? static_cast<double>(total) / static_cast<double>(elements) : 0.0;
  app.Emit({{"elements", elements},
            {"changed_elements", total},
            {"density", density},
            {"tensors", tensors}},
           text + std::to_string(total) + " of " + std::to_string(elements) +
               " elements differ in their bits (" + PercentText(density) + ")\n");
  return Ok();
}

const char* MethodName(delta::Method method) {
  constexpr const char* kNames[delta::kMethods] = {"absent", "class-gaps", "bitmap", "xor-planes",
                                                   "raw"};
  return kNames[static_cast<size_t>(method)];
}

// What the tensor numbers in a part mean: said by a checkpoint directory, else by the version.json
// that lies beside the part in its store.
Result<std::shared_ptr<const tensor::Inventory>> InventoryOf(os::Fs& fs, const std::string& part,
                                                             const std::string& model) {
  if (!model.empty()) return WC_TRY(tensor::HfDirectory::Open(fs, model).With(model)).inventory();
  const std::string path = os::JoinPath(os::ParentPath(part), "version.json");
  const Result<Bytes> text = fs.ReadAll(path, 256 * kMiB);
  if (!text.ok()) {
    return Error{Code::kUnavailable,
                 path + " is not there, so what is in " + part +
                     " has no names: say a checkpoint directory with the run's tensors (--model)"};
  }
  return WC_TRY(catalog::ParseVersionJson(AsText(*text)).With(path)).run.inventory;
}

Status Inspect(App& app, const std::string& path, const std::string& model) {
  WC_TRY(app.CheckInputs({{"PART_FILE", path}, {"--model", model}}));
  os::Fs& fs = app.world().fs;
  const std::unique_ptr<os::File> file = WC_TRY(fs.OpenFile(path, os::Open::kRead));
  const int64_t size = WC_TRY(file->Size());
  if (size < delta::kPartTrailerBytes) {
    return Error{Code::kInvalidData,
                 path + ": too short for a part: " + std::to_string(size) + " bytes"};
  }
  Bytes trailer(static_cast<size_t>(delta::kPartTrailerBytes));
  WC_TRY(file->Read(size - delta::kPartTrailerBytes, trailer));
  delta::PartSeal seal = WC_TRY(delta::SealFromTrailer(trailer, size).With(path));
  // Only a part is asked what its tensors are called.
  const auto shared = WC_TRY(InventoryOf(fs, path, model));
  const tensor::Inventory& inventory = *shared;
  Bytes footer(static_cast<size_t>(seal.footer_bytes));
  WC_TRY(file->Read(size - seal.footer_bytes, footer));
  seal.footer_sha256 = Sha256::Of(footer);
  const delta::PartIndex index = WC_TRY(delta::ParsePartFooter(footer, seal, inventory).With(path));

  const delta::PartIdentity& id = index.identity;
  Json chunks = Json::array();
  std::string text = path + ": " + (id.kind == delta::PartKind::kFull ? "full" : "delta") +
                     " part of version " + id.version.hex() + ", epoch " +
                     std::to_string(id.epoch.value) + ", rank " + std::to_string(id.rank.value) +
                     ", " + std::to_string(index.chunks.size()) + " chunks, index of " +
                     BytesText(seal.footer_bytes) + "\n";
  for (const delta::PartChunk& chunk : index.chunks) {
    const std::string& name = inventory[static_cast<size_t>(chunk.tensor)].name;
    chunks.push_back({{"tensor", name},
                      {"box", tensor::BoxText(chunk.box)},
                      {"method", MethodName(chunk.method)},
                      {"elements", chunk.box.units()},
                      {"changed_elements", chunk.changed_units},
                      {"payload_bytes", chunk.payload_bytes},
                      {"offset", chunk.offset},
                      {"sha256", chunk.sha256.hex()}});
    text += "  " + name + " " + tensor::BoxText(chunk.box) + ": " + MethodName(chunk.method) +
            ", " + std::to_string(chunk.changed_units) + " of " +
            std::to_string(chunk.box.units()) + " changed, " + std::to_string(chunk.payload_bytes) +
            " bytes\n";
  }
  app.Emit({{"kind", id.kind == delta::PartKind::kFull ? "full" : "delta"},
            {"run", id.run.hex()},
            {"version", id.version.hex()},
            {"base", id.base.hex()},
            {"epoch", id.epoch.value},
            {"rank", id.rank.value},
            {"plan_hash", id.plan.hex()},
            {"layout", id.layout.hex()},
            {"footer_bytes", seal.footer_bytes},
            {"footer_sha256", seal.footer_sha256.hex()},
            {"chunks", chunks}},
           text);
  return Ok();
}

}  // namespace

std::vector<Command> DiffCommands() {
  return {
      {"diff", "count the elements in which two checkpoint directories differ, as bits",
       "  weightcast diff step_100 step_101\n",
       [](Flags& f) {
         auto v = std::make_shared<std::pair<std::string, std::string>>();
         f.Argument("DIR_A", &v->first, "a checkpoint directory")
             .Argument("DIR_B", &v->second, "another with the same tensors");
         return [v](App& app) { return Diff(app, v->first, v->second); };
       }},
      {"inspect", "show what is in a part file",
       "  weightcast inspect bytes/runs/RUN/UID/e1-r0-delta-3fe1\n",
       [](Flags& f) {
         auto v = std::make_shared<std::pair<std::string, std::string>>();
         f.Argument("PART_FILE", &v->first, "an object of a version")
             .Text(
                 "--model", &v->second,
                 "a checkpoint directory with the run's tensors, where version.json is not beside");
         return [v](App& app) { return Inspect(app, v->first, v->second); };
       }},
  };
}

}  // namespace weightcast::apps
