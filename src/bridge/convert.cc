#include "bridge/convert.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "base/task_pool.h"
#include "base/text.h"
#include "bridge/shard_dir.h"
#include "layout/gather.h"
#include "tensor/hf_directory.h"

namespace weightcast::bridge {
namespace {

constexpr int64_t kSideFileBytesMax = 256 * kMiB;  // tokenizers are some tens

// Everything that is read: shards by rank, and the reference.
struct Sources {
  std::vector<ShardFile> files;
  std::vector<std::vector<ByteSpan>> params;  // by rank, RankPlan::params
  std::optional<tensor::HfDirectory> reference;
  std::optional<tensor::MappedWeights> carried;
};

// Errors of all ranks at once, with the first's code.
Status MapRanks(os::Fs& fs, const ShardDir& dir, Sources* sources) {
  std::vector<std::string> faults;
  std::optional<Code> code;
  const auto note = [&](const Error& error) {
    faults.push_back(error.message);
    if (!code) code = error.code;
  };
  for (int32_t r = 0; r < dir.trainer.topology.world; ++r) {
    if (const Status record = CheckRecordOf(fs, dir, RankId{r}); !record.ok()) note(record.error());
    auto file = ShardFile::Open(fs, dir.weight_path(RankId{r}));
    if (!file.ok()) {
      note(file.error());
    } else {
      sources->files.push_back(std::move(file).value());
    }
  }
  if (code) return Error{*code, JoinNames(faults)};
  return Ok();
}

// Finds every parameter of every rank; errors of all ranks at once.
Status FindParams(const layout::Plan& plan, Sources* sources, std::vector<std::string>* ignored) {
  std::vector<std::string> faults;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    std::vector<std::string> names;
    auto params = sources->files[r].Params(plan.ranks[r], RankId{static_cast<int32_t>(r)}, &names);
    for (const std::string& name : names)
      ignored->push_back("rank " + std::to_string(r) + " " + name);
    if (params.ok()) {
      sources->params.push_back(std::move(params).value());
    } else {
      faults.push_back(params.error().message);
    }
  }
  if (faults.empty()) return Ok();
  return Error{Code::kInvalidData, JoinNames(faults)};
}

// Every pattern that was asked for covers something.
Status CheckIgnored(const std::vector<std::string>& patterns,
                    const std::vector<std::string>& ignored) {
  std::vector<std::string> idle;
  for (const std::string& pattern : patterns) {
    const auto covers = [&](const std::string& name) {
      return MatchesGlob("rank * " + pattern, name);
    };
    if (std::ranges::none_of(ignored, covers)) idle.push_back(Quoted(pattern));
  }
  if (idle.empty()) return Ok();
  return Error{Code::kInvalidArgument, "no shard has a key to --ignore " + JoinNames(idle)};
}

Status CheckReplicas(const CompiledPlan& compiled, const Sources& sources, int threads) {
  const std::vector<ReplicaSet>& sets = compiled.replicas;
  std::vector<std::vector<std::string>> faults(sets.size());
  const auto name = [&](const layout::Place& p) {
    const layout::RankPlan& rank = compiled.plan->ranks[static_cast<size_t>(p.rank)];
    return "rank " + std::to_string(p.rank) + " " + rank.params[static_cast<size_t>(p.param)].key;
  };
  const auto bytes = [&](const layout::Place& p) {
    return sources.params[static_cast<size_t>(p.rank)][static_cast<size_t>(p.param)];
  };
  WC_TRY(ParallelFor(sets.size(), threads, [&](size_t i, int) -> Status {
    const layout::Place& first = sets[i].places.front();
    for (const layout::Place& other : sets[i].places) {
      const auto n = static_cast<size_t>(sets[i].bytes);
      if (std::memcmp(bytes(first).data(), bytes(other).data(), n) == 0) continue;
      faults[i].push_back(name(other) + " differs from its replica " + name(first));
    }
    return Ok();
  }));
  std::vector<std::string> all;
  for (const auto& some : faults) all.insert(all.end(), some.begin(), some.end());
  if (all.empty()) return Ok();
  return Error{Code::kDataLoss, JoinNames(all)};
}

// For every produced tensor, the (rank, slice) pairs that fill it.
struct Filler {
  size_t rank;
  const layout::Slice* slice;
};
std::vector<std::vector<Filler>> FillersOf(const layout::Plan& plan) {
  std::vector<std::vector<Filler>> fillers(plan.inventory->size());
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const layout::Slice& slice : plan.ranks[r].slices) {
      fillers[static_cast<size_t>(slice.tensor)].push_back({r, &slice});
    }
  }
  return fillers;
}

class Writer {
 public:
  Writer(os::Fs& fs, const layout::Plan& plan, const Sources& sources,
         const ConvertOptions& options)
      : fs_(fs), plan_(plan), sources_(sources), options_(options), fillers_(FillersOf(plan)) {}

  // Fills `directory` with the weight files of `inventory`: what the plan produces and what is
  // carried.
  Result<int64_t> WriteWeights(const std::string& directory, const tensor::Inventory& inventory) {
    total_ = inventory.bytes();
    const auto files = tensor::PlanWeightFiles(inventory, options_.file_bytes_max);
    for (const tensor::PlannedFile& file : files) {
      WC_TRY(WriteFile(os::JoinPath(directory, file.name), file.tensors));
    }
    if (files.size() > 1) {
      const std::string index = tensor::IndexJson(files);
      WC_TRY(
          fs_.WriteAtomically(os::JoinPath(directory, tensor::kIndexFile), AsBytes(index), false));
    }
    return total_;
  }

 private:
  Status WriteFile(const std::string& path, const std::vector<tensor::TensorSpec>& tensors) {
    tensor::SafetensorsHeader header;
    const Bytes head = WC_TRY(tensor::MakeSafetensorsHeader(tensors, {{"format", "pt"}}, &header));
    const std::unique_ptr<os::File> file = WC_TRY(fs_.OpenFile(path, os::Open::kCreateNew));
    WC_TRY(file->Allocate(header.file_bytes));
    WC_TRY(file->Write(0, head));
    const std::unique_ptr<os::Mapping> mapping = WC_TRY(file->Map(/*writable=*/true));
    return ParallelFor(header.tensors.size(), options_.threads, [&](size_t i, int) -> Status {
      const tensor::PlacedTensor& placed = header.tensors[i];
      mapping->Update(placed.offset, placed.spec.bytes(),
                      [&](MutableByteSpan out) { Fill(placed.spec, out); });
      const int64_t done = done_ += placed.spec.bytes();
      if (options_.progress) options_.progress(done, total_);
      return Ok();
    });
  }

  void Fill(const tensor::TensorSpec& spec, MutableByteSpan out) const {
    const int64_t produced = plan_.inventory->Find(spec.name);
    if (produced < 0) {  // carried
      const auto at = static_cast<size_t>(sources_.reference->inventory()->Find(spec.name));
      CopyBytes(sources_.carried->tensor(at), out);
      return;
    }
    const tensor::Matrix matrix = spec.matrix();
    for (const Filler& filler : fillers_[static_cast<size_t>(produced)]) {
      const auto param = static_cast<size_t>(filler.slice->param);
      layout::ScatterSlice(matrix, *filler.slice, sources_.params[filler.rank][param], out);
    }
  }

  os::Fs& fs_;
  const layout::Plan& plan_;
  const Sources& sources_;
  const ConvertOptions& options_;
  std::vector<std::vector<Filler>> fillers_;
  int64_t total_ = 0;
  std::atomic<int64_t> done_ = 0;
};

// config, tokenizer and the like: the files of `from` that hold no weights.
Status CopySideFiles(os::Fs& fs, const std::string& from, const std::string& to) {
  for (const std::string& name : WC_TRY(fs.List(from))) {
    if (name.starts_with('.') || name.ends_with(".safetensors") || name == tensor::kIndexFile)
      continue;
    const std::string path = os::JoinPath(from, name);
    if (WC_TRY(fs.StatPath(path)).is_directory) continue;
    const Bytes bytes = WC_TRY(fs.ReadAll(path, kSideFileBytesMax));
    WC_TRY(fs.WriteAtomically(os::JoinPath(to, name), bytes, false));
  }
  return Ok();
}

Status CheckFree(os::Fs& fs, const std::string& out) {
  if (!WC_TRY(fs.Exists(out))) return Ok();
  const os::Stat stat = WC_TRY(fs.StatPath(out));
  if (stat.is_directory && WC_TRY(fs.List(out)).empty()) return Ok();
  return Error{Code::kConflict, out + ": is there already; give a new or empty directory"};
}

// The plan; padding of the vocabulary is told by the shards.
Result<CompiledPlan> CompileFor(Mode mode, const ShardDir& dir,
                                const std::vector<ShardFile>& shards, CompileOptions options) {
  for (const ShardFile& shard : shards) {
    if (options.vocab_rows > 0) break;
    options.vocab_rows = WC_TRY(VocabRowsOf(mode, dir.model, dir.trainer, shard.specs()));
  }
  return Compile(mode, dir.model, dir.trainer, options);
}

// Writes everything to a sibling first, then gives it its name.
Result<int64_t> WriteDirectory(os::Fs& fs, const std::string& out, const std::string& side_files,
                               const tensor::Inventory& inventory, Writer& writer) {
  const std::string partial =
      os::JoinPath(os::ParentPath(out), "." + os::BaseName(out) + ".partial");
  WC_TRY(fs.RemoveTree(partial));
  WC_TRY(fs.MakeDirectories(partial));
  const auto write = [&]() -> Result<int64_t> {
    const int64_t bytes = WC_TRY(writer.WriteWeights(partial, inventory));
    WC_TRY(CopySideFiles(fs, side_files, partial));
    WC_TRY(fs.Rename(partial, out));
    return bytes;
  };
  Result<int64_t> bytes = write();
  if (!bytes.ok()) WC_TRY(fs.RemoveTree(partial).With(bytes.error().message));
  return bytes;
}

}  // namespace

Result<ConvertReport> ConvertShards(os::Fs& fs, const std::string& shards, const std::string& out,
                                    const ConvertOptions& options) {
  WC_TRY(CheckFree(fs, out));
  ShardDir dir = WC_TRY(OpenShardDir(fs, shards, options.config));
  if (options.reference.empty()) WC_TRY(CheckPlainWeights(dir));
  Sources sources;
  WC_TRY(MapRanks(fs, dir, &sources));
  for (const ShardFile& file : sources.files) dir.trainer.spelling.Learn(file.specs());
  CompileOptions compile{.reference = nullptr, .carry = options.carry, .ignore = options.ignore};
  compile.expert_layout = options.expert_layout;
  if (!options.reference.empty()) {
    sources.reference =
        WC_TRY(tensor::HfDirectory::Open(fs, options.reference).With(options.reference));
    sources.carried =
        WC_TRY(tensor::MappedWeights::Map(fs, *sources.reference, /*writable=*/false));
    compile.reference = sources.reference->inventory();
  }
  ConvertReport report;
  report.compiled = WC_TRY(CompileFor(options.mode, dir, sources.files, compile).With(shards));
  const layout::Plan& plan = *report.compiled.plan;
  WC_TRY(FindParams(plan, &sources, &report.ignored));
  WC_TRY(CheckIgnored(options.ignore, report.ignored));
  if (options.check_replicas) WC_TRY(CheckReplicas(report.compiled, sources, options.threads));
  Writer writer(fs, plan, sources, options);
  // With a reference, what is produced and carried is exactly what it holds: CompilePlan saw to it.
  const tensor::Inventory& inventory = compile.reference ? *compile.reference : *plan.inventory;
  const std::string side_files =
      options.reference.empty() ? os::ParentPath(dir.config_path) : options.reference;
  report.bytes = WC_TRY(WriteDirectory(fs, out, side_files, inventory, writer));
  return report;
}

}  // namespace weightcast::bridge
