#include "engine/proof.h"

#include <algorithm>
#include <map>

#include "base/text.h"

namespace weightcast::engine {
namespace {

// One tensor, as all workers see it.
struct Sum {
  How how = How::kLive;
  std::map<std::string, tensor::Partial> spans;
  bool replicas_differ = false;

  void Add(const TensorProof& proof) {
    how = std::max(how, proof.how);
    const auto [it, is_new] = spans.emplace(proof.span, proof.partial);
    if (!is_new && it->second != proof.partial) replicas_differ = true;
  }
  tensor::Partial Total() const {
    tensor::Partial total;
    for (const auto& [span, partial] : spans) total += partial;
    return total;
  }
};

// Why the sum is not the tensor; empty if it is.
std::string Fault(const Sum& sum, const tensor::TensorSpec& spec,
                  const tensor::TensorDigest& digest) {
  if (sum.replicas_differ) return "workers that hold the same units differ";
  const tensor::Partial total = sum.Total();
  if (total.units != spec.units()) {
    return "workers hold " + std::to_string(total.units) + " units, expected " +
           std::to_string(spec.units());
  }
  if (total.digest == digest) return "";
  return "digest " + total.digest.hex() + ", expected " + digest.hex();
}

}  // namespace

Status CheckVersion(const std::vector<WorkerProof>& workers, const VersionUid& version) {
  for (const WorkerProof& worker : workers) {
    if (worker.version == version) continue;
    return Error{Code::kAborted,
                 "a worker serves version " + worker.version.hex() + ", expected " + version.hex()};
  }
  return Ok();
}

Status Verdict::Check() const {
  if (!bad.empty()) {
    std::vector<std::string> texts;
    for (const BadTensor& tensor : bad) texts.push_back(tensor.name + ": " + tensor.why);
    return Error{Code::kDataLoss, "not what it should be: " + JoinNames(texts)};
  }
  if (unproven.empty()) return Ok();
  return Error{Code::kInvalidData, "unproven: " + JoinNames(unproven)};
}

Verdict Compare(const tensor::Inventory& inventory, std::span<const tensor::TensorDigest> digests,
                std::span<const int32_t> wanted, const std::vector<WorkerProof>& workers) {
  WC_CHECK(digests.size() == inventory.size());
  std::map<std::string, Sum> sums;
  for (const WorkerProof& worker : workers) {
    for (const TensorProof& proof : worker.tensors) sums[proof.name].Add(proof);
  }
  Verdict verdict;
  for (const int32_t index : wanted) {
    const tensor::TensorSpec& spec = inventory[static_cast<size_t>(index)];
    if (!sums.contains(spec.name) && spec.units() > 0) verdict.unproven.push_back(spec.name);
  }
  for (const auto& [name, sum] : sums) {
    const int64_t index = inventory.Find(name);
    if (index < 0) {
      verdict.bad.push_back({name, "the version has no such tensor"});
      continue;
    }
    if (sum.how == How::kUnproven) {
      verdict.unproven.push_back(name);
      continue;
    }
    const auto i = static_cast<size_t>(index);
    const std::string fault = Fault(sum, inventory[i], digests[i]);
    if (!fault.empty()) {
      verdict.bad.push_back({name, fault});
    } else {
      ++(sum.how == How::kLive       ? verdict.live
         : sum.how == How::kRepacked ? verdict.repacked
                                     : verdict.probed);
    }
  }
  std::ranges::sort(verdict.unproven);
  return verdict;
}

}  // namespace weightcast::engine
