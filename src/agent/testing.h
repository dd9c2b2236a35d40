// For tests of this floor and of those above it: a run of small versions with roots and side files,
// its seed as a directory, and a comparison of an image with one of them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "agent/image_dir.h"
#include "base/hash.h"
#include "base/json.h"
#include "tensor/root.h"
#include "transfer/testing.h"

namespace weightcast::agent {

using SideContents = std::map<std::string, std::string>;

// A few small tensors of several pages, and all that is odd; two weight files if cut at 32 KiB.
inline std::vector<tensor::TensorSpec> SmallModel() {
  return {{"a.weight", tensor::DType::kBf16, {60, 128}},
          {"b.bias", tensor::DType::kF32, {700}},
          {"c.empty", tensor::DType::kBf16, {0, 4}},
          {"d.scalar", tensor::DType::kF64, {}},
          {"e.weight", tensor::DType::kBf16, {90, 100}}};
}

// Versions of one run, with everything that a catalog would know of them.
class TestLine {
 public:
  explicit TestLine(std::vector<tensor::TensorSpec> specs = SmallModel(),
                    std::vector<int32_t> carried = {})
      : run_(std::move(specs), &store_, std::move(carried)) {
    info_.uid.value.fill(1);
    info_.name = "policy";
    info_.inventory = std::make_shared<const tensor::Inventory>(run_.inventory());
  }

  transfer::TestRun& run() { return run_; }
  store::MemoryStore& store() { return store_; }
  const tensor::Inventory& inventory() const { return run_.inventory(); }
  const catalog::Run& info() const { return info_; }

  void AddSeed(SideContents side = {{"config.json", "{}"}}) {
    run_.AddSeed(run_.RandomState(1));
    Complete(std::move(side));
  }
  // One byte in about `one_in` changed.
  void Publish(uint64_t one_in = 50, catalog::VersionKind kind = catalog::VersionKind::kDelta) {
    Publish(run_.Changed(versions_.size(), one_in), {.kind = kind}, side_.back());
  }
  void Publish(delta::State next, const transfer::TestPublish& how, SideContents side) {
    run_.Publish(std::move(next), how);
    Complete(std::move(side));
  }

  size_t size() const { return versions_.size(); }
  const catalog::Version& version(size_t number) const { return versions_[number]; }
  std::vector<catalog::Version>& versions() { return versions_; }
  const SideContents& side(size_t number) const { return side_[number]; }

  // The checkpoint that version 0 is, in files of at most `file_bytes_max`.
  void WriteSeed(os::Fs& fs, const std::string& path, int64_t file_bytes_max = 32 * kKiB) const {
    WC_CHECK(fs.MakeDirectories(path).ok());
    const auto files = tensor::PlanWeightFiles(inventory(), file_bytes_max);
    for (const tensor::PlannedFile& file : files) {
      tensor::SafetensorsHeader header;
      Bytes bytes =
          tensor::MakeSafetensorsHeader(file.tensors, {{"format", "pt"}}, &header).value();
      bytes.resize(static_cast<size_t>(header.file_bytes));
      for (const tensor::PlacedTensor& tensor : header.tensors) {
        const auto index = static_cast<size_t>(inventory().Find(tensor.spec.name));
        std::ranges::copy(run_.states()[0][index], bytes.begin() + tensor.offset);
      }
      WC_CHECK(WriteNew(fs, os::JoinPath(path, file.name), bytes, false).ok());
    }
    if (files.size() > 1) {
      const std::string index = tensor::IndexJson(files);
      WC_CHECK(WriteNew(fs, os::JoinPath(path, tensor::kIndexFile), AsBytes(index), false).ok());
    }
    for (const auto& [name, content] : side_[0]) {
      const std::string file = os::JoinPath(path, name);
      WC_CHECK(fs.MakeDirectories(os::ParentPath(file)).ok());
      WC_CHECK(WriteNew(fs, file, AsBytes(content), false).ok());
    }
  }

  // "" if the checkpoint in `directory` is exactly version `number`, else what is not.
  std::string Compare(os::Fs& fs, const tensor::HfDirectory& directory, size_t number) const {
    const auto weights = tensor::MappedWeights::Map(fs, directory, /*writable=*/false);
    if (!weights.ok()) return weights.error().message;
    if (*directory.inventory() != inventory()) return "another inventory";
    for (size_t t = 0; t < inventory().size(); ++t) {
      if (!std::ranges::equal(weights->tensor(t), run_.states()[number][t])) {
        return inventory()[t].name + " is not that of version " + std::to_string(number);
      }
    }
    return "";
  }
  std::string CompareSide(os::Fs& fs, const std::string& path, size_t number) const {
    for (const auto& [name, content] : side_[number]) {
      const auto found = fs.ReadAll(os::JoinPath(path, name), kMiB);
      if (!found.ok()) return found.error().message;
      if (AsText(*found) != content) return name + ": " + std::string(AsText(*found));
    }
    for (const SideContents& other : side_) {
      for (const auto& [name, content] : other) {
        if (side_[number].contains(name)) continue;
        if (fs.Exists(os::JoinPath(path, name)).value()) return name + " is still there";
      }
    }
    return "";
  }
  // The image under a hold: its version's number, or what is wrong. Manifest, weights and side
  // files must be of one version.
  Result<size_t> NumberAt(os::World& world, const std::string& path) const {
    Image image(world, path);
    const Hold hold = WC_TRY(image.TakeHold(seconds(60)));
    const auto number = static_cast<size_t>(hold.manifest().number);
    if (hold.manifest().root != versions_[number].root) {
      return Error{Code::kInternal, "the manifest has another root"};
    }
    std::string wrong = Compare(world.fs, hold.directory(), number);
    if (wrong.empty()) wrong = CompareSide(world.fs, path, number);
    if (wrong.empty()) return number;
    return Error{Code::kInternal, wrong};
  }
  // What an open without a hold finds: "" if nothing, or one whole version; else what is wrong.
  std::string OpenWithoutHold(os::Fs& fs, const std::string& path) const {
    const auto directory = tensor::HfDirectory::Open(fs, path);
    if (!directory.ok()) return "";
    for (size_t number = 0; number < size(); ++number) {
      if (Compare(fs, *directory, number).empty()) return "";
    }
    return "an open without a hold finds a mix";
  }

 private:
  void Complete(SideContents side) {
    catalog::Version version = run_.versions().back();
    version.store_url = store_.url();
    version.root = tensor::ComputeRoot(inventory(), run_.Digests(versions_.size()));
    for (const auto& [name, content] : side) {
      const Sha256Digest sha256 = Sha256::Of(AsBytes(content));
      version.side_files.push_back({name, static_cast<int64_t>(content.size()), sha256});
      const Status put = store_.Put(catalog::SideFileKey(sha256), AsBytes(content));
      WC_CHECK(put.ok() || put.error().code == Code::kAlreadyExists);
    }
    versions_.push_back(std::move(version));
    side_.push_back(std::move(side));
  }

  transfer::FakeClock clock_;
  store::MemoryStore store_{clock_};
  transfer::TestRun run_;
  catalog::Run info_;
  std::vector<catalog::Version> versions_;
  std::vector<SideContents> side_;
};

// A line's version as a source, without a catalog; counts leases.
class LineSource final : public VersionSource {
 public:
  LineSource(TestLine& line, size_t number) : line_(line), number_(number) {}

  const catalog::Run& run() const override { return line_.info(); }
  const catalog::Version& target() const override { return line_.version(number_); }
  Result<std::vector<tensor::TensorDigest>> Digests(const VersionUid& version) override {
    for (size_t i = 0; i < line_.size(); ++i) {
      if (line_.version(i).uid == version) return line_.run().Digests(i);
    }
    return Error{Code::kNotFound, "no such version"};
  }
  Result<catalog::ReplayPlan> Plan(const catalog::ReplayRequest& request) override {
    catalog::ReplayPlan plan = WC_TRY(catalog::ChooseReplay(line_.versions(), request));
    plan.lease.value.fill(7);
    ++leases;
    return plan;
  }
  Status RenewLease(const LeaseId&, Duration) override { return Ok(); }
  Status EndLease(const LeaseId&) override {
    --leases;
    return Ok();
  }

  int leases = 0;

 private:
  TestLine& line_;
  const size_t number_;
};

// One thread, so that a failure can be run again.
inline AgentOptions TestOptions() {
  AgentOptions options;
  options.threads = 1;
  options.weight_file_bytes_max = 16 * kKiB;
  options.hold_timeout = seconds(1);
  return options;
}

inline Result<PullReport> Pull(os::World& world, TestLine& line, size_t number,
                               const std::string& path, const std::string& seed = "",
                               const AgentOptions& options = TestOptions()) {
  LineSource source(line, number);
  Agent agent(
      world, [&](const std::string&) -> Result<store::Store*> { return &line.store(); }, options);
  auto report = agent.Pull(source, path, seed);
  WC_CHECK(source.leases == 0);
  return report;
}

}  // namespace weightcast::agent
