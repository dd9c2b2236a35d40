#include "layout/plan.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/text.h"

namespace weightcast::layout {
namespace {

constexpr std::string_view kMagic = "weightcast plan 1\n";

void PutSlice(const Slice& s, ByteWriter& out) {
  for (const int64_t v :
       {int64_t{s.tensor}, s.box.row, s.box.rows, s.box.row_step, s.box.col, s.box.cols,
        s.box.col_step, int64_t{s.param}, s.source, s.row_stride, s.col_stride}) {
    out.Put(v);
  }
  out.Put(static_cast<uint8_t>(s.map));
}

void PutRank(const RankPlan& rank, ByteWriter& out) {
  out.PutVarint(rank.params.size());
  for (const Param& p : rank.params) {
    out.PutString(p.key);
    out.Put(static_cast<uint8_t>(p.dtype));
    out.PutVarint(p.shape.size());
    for (const int64_t n : p.shape) out.Put(n);
  }
  out.PutVarint(rank.ignored.size());
  for (const std::string& pattern : rank.ignored) out.PutString(pattern);
  out.PutVarint(rank.slices.size());
  for (const Slice& s : rank.slices) PutSlice(s, out);
}

std::string ParamText(const Param& p) { return tensor::SpecText({p.key, p.dtype, p.shape}); }

}  // namespace

PlanHash Plan::Hash() const {
  Bytes encoded;
  ByteWriter out(&encoded);
  Sha256 sha;
  out.PutBytes(AsBytes(kMagic));
  out.PutString(family);
  out.PutBytes(inventory->signature().bytes());
  out.PutVarint(ranks.size());
  for (const RankPlan& rank : ranks) {
    PutRank(rank, out);
    sha.Update(encoded);  // rank by rank: the encoding is never held whole
    encoded.clear();
  }
  sha.Update(encoded);
  return PlanHash::From(sha.Finish().bytes());
}

Plan IdentityPlan(std::shared_ptr<const tensor::Inventory> inventory) {
  Plan plan;
  plan.family = "hf";
  RankPlan& rank = plan.ranks.emplace_back();
  for (size_t i = 0; i < inventory->size(); ++i) {
    const tensor::TensorSpec& spec = (*inventory)[i];
    rank.params.push_back({spec.name, spec.dtype, spec.shape});
    const tensor::Matrix matrix = spec.matrix();
    if (matrix.units() == 0) continue;  // nothing to own
    Slice slice;
    slice.tensor = slice.param = static_cast<int32_t>(i);
    slice.box = Box::All(matrix);
    slice.row_stride = matrix.cols;
    rank.slices.push_back(slice);
  }
  plan.inventory = std::move(inventory);
  return plan;
}

Result<std::vector<std::string>> CheckShardKeys(const RankPlan& plan,
                                                const std::vector<tensor::TensorSpec>& shard,
                                                RankId rank) {
  std::vector<const tensor::TensorSpec*> found;
  for (const tensor::TensorSpec& spec : shard) found.push_back(&spec);
  std::ranges::sort(found, {},
                    [](const tensor::TensorSpec* s) { return std::string_view(s->name); });

  std::vector<std::string> ignored, unknown, missing, different;
  auto param = plan.params.begin();
  const auto miss_below = [&](std::string_view name) {
    for (; param != plan.params.end() && param->key < name; ++param) missing.push_back(param->key);
  };
  for (const tensor::TensorSpec* spec : found) {
    miss_below(spec->name);
    if (param != plan.params.end() && param->key == spec->name) {
      if (param->dtype != spec->dtype || param->shape != spec->shape) {
        different.push_back(spec->name + " is " + tensor::SpecText(*spec) + ", expected " +
                            ParamText(*param));
      }
      ++param;
    } else if (std::ranges::any_of(plan.ignored, [&](const std::string& pattern) {
                 return MatchesGlob(pattern, spec->name);
               })) {
      ignored.push_back(spec->name);
    } else {
      unknown.push_back(spec->name);
    }
  }
  for (; param != plan.params.end(); ++param) missing.push_back(param->key);

  std::vector<std::string> faults;
  if (!unknown.empty()) faults.push_back("unknown: " + JoinNames(unknown));
  if (!missing.empty()) faults.push_back("missing: " + JoinNames(missing));
  if (!different.empty()) faults.push_back("different: " + JoinNames(different));
  if (faults.empty()) return ignored;
  std::string text =
      "shard of rank " + std::to_string(rank.value) + " is not what the plan expects";
  for (const std::string& fault : faults) text += "; " + fault;
  return Error{Code::kInvalidData, text};
}

}  // namespace weightcast::layout
