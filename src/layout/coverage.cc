// ProveCoverage: all boxes of a tensor are pairwise disjoint and their units add up to the
// tensor's.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>

#include "base/text.h"
#include "layout/plan.h"

namespace weightcast::layout {
namespace {

// Names listed in one message; the first offenders tell what is wrong.
constexpr size_t kNamesMax = 20;

struct Owned {
  const Slice* slice = nullptr;
  int32_t rank = 0;
};

// The places start, start + step, ... of one axis of a box.
struct Progression {
  int64_t start;
  int64_t step;
  int64_t count;
  int64_t last() const { return start + (count - 1) * step; }
};
Progression RowsOf(const Box& b) { return {b.row, b.row_step, b.rows}; }
Progression ColsOf(const Box& b) { return {b.col, b.col_step, b.cols}; }

// Whether two progressions share a place. O(smaller step): steps are 1 but for a handful of
// interleaved parts, so the remainders are simply tried.
bool Meet(const Progression& a, const Progression& b) {
  const int64_t low = std::max(a.start, b.start);
  const int64_t high = std::min(a.last(), b.last());
  if (low > high) return false;
  const int64_t gcd = std::gcd(a.step, b.step);
  if ((a.start - b.start) % gcd != 0) return false;
  const Progression& coarse = a.step >= b.step ? a : b;
  const Progression& fine = a.step >= b.step ? b : a;
  const int64_t first =
      coarse.start + (low - coarse.start + coarse.step - 1) / coarse.step * coarse.step;
  // Common places repeat every step(coarse) * step(fine) / gcd: after step(fine) / gcd tries none
  // is left.
  int64_t at = first;
  for (int64_t tries = fine.step / gcd; tries > 0 && at <= high; --tries, at += coarse.step) {
    if ((at - fine.start) % fine.step == 0) return true;
  }
  return false;
}

std::string Text(const Plan& plan, const Owned& o) {
  return "rank " + std::to_string(o.rank) + " " +
         plan.ranks[static_cast<size_t>(o.rank)].params[static_cast<size_t>(o.slice->param)].key +
         " " + tensor::BoxText(o.slice->box);
}

// Why a slice may not be there at all; empty if it may.
std::string Misfit(const Plan& plan, const RankPlan& rank, const Slice& s) {
  if (s.tensor < 0 || static_cast<size_t>(s.tensor) >= plan.inventory->size())
    return "no such tensor";
  if (s.param < 0 || static_cast<size_t>(s.param) >= rank.params.size()) return "no such parameter";
  const tensor::TensorSpec& spec = (*plan.inventory)[static_cast<size_t>(s.tensor)];
  const Param& param = rank.params[static_cast<size_t>(s.param)];
  if (!tensor::Inside(s.box, spec.matrix())) return "box outside the tensor";
  if (s.box.units() == 0) return "empty box";
  const tensor::DType from = param.dtype;
  const bool typed = s.map == ValueMap::kCopy ? from == spec.dtype
                     : s.map == ValueMap::kAddOneBf16
                         ? from == tensor::DType::kBf16 && spec.dtype == tensor::DType::kBf16
                         : from == tensor::DType::kBf16 && spec.dtype == tensor::DType::kF32;
  if (!typed) {
    return "parameter is " + std::string(tensor::DTypeName(from)) + ", tensor is " +
           std::string(tensor::DTypeName(spec.dtype));
  }
  // __int128: the numbers may be anything until this check has passed.
  __extension__ typedef __int128 Wide;
  const Wide last =
      Wide{s.source} + Wide{s.box.rows - 1} * s.row_stride + Wide{s.box.cols - 1} * s.col_stride;
  const int64_t units = tensor::TensorSpec{param.key, param.dtype, param.shape}.units();
  if (s.row_stride < 0 || s.col_stride < 0 || s.source < 0 || last >= units) {
    return "reads outside the parameter";
  }
  return "";
}

// Two slices of one tensor that share a unit, if there are any. Sweeps over the rows; `active`
// holds the boxes that may reach the current row, by first column.
std::optional<std::pair<Owned, Owned>> FindOverlap(std::vector<Owned>& slices) {
  std::ranges::sort(slices, {},
                    [](const Owned& o) { return std::pair(o.slice->box.row, o.slice->box.col); });
  int64_t widest = 0;
  for (const Owned& o : slices)
    widest = std::max(widest, ColsOf(o.slice->box).last() - o.slice->box.col);

  using Active = std::multimap<int64_t, const Owned*>;
  Active active;
  using Expiry = std::pair<int64_t, Active::iterator>;  // last row of a box
  const auto later = [](const Expiry& a, const Expiry& b) { return a.first > b.first; };
  std::priority_queue<Expiry, std::vector<Expiry>, decltype(later)> expiries(later);
  for (const Owned& o : slices) {
    const Box& box = o.slice->box;
    for (; !expiries.empty() && expiries.top().first < box.row; expiries.pop()) {
      active.erase(expiries.top().second);
    }
    const auto end = active.upper_bound(ColsOf(box).last());
    for (auto it = active.lower_bound(box.col - widest); it != end; ++it) {
      if (Overlap(it->second->slice->box, box)) return std::pair(*it->second, o);
    }
    expiries.emplace(RowsOf(box).last(), active.emplace(box.col, &o));
  }
  return std::nullopt;
}

}  // namespace

bool Overlap(const Box& a, const Box& b) {
  return Meet(RowsOf(a), RowsOf(b)) && Meet(ColsOf(a), ColsOf(b));
}

Status ProveCoverage(const Plan& plan) {
  std::vector<std::string> faults;
  std::vector<std::vector<Owned>> owned(plan.inventory->size());
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const Slice& s : plan.ranks[r].slices) {
      const std::string misfit = Misfit(plan, plan.ranks[r], s);
      if (misfit.empty()) {
        owned[static_cast<size_t>(s.tensor)].push_back({&s, static_cast<int32_t>(r)});
      } else {
        faults.push_back("rank " + std::to_string(r) + " slice of tensor " +
                         std::to_string(s.tensor) + ", parameter " + std::to_string(s.param) + " " +
                         tensor::BoxText(s.box) + ": " + misfit);
      }
    }
  }
  for (size_t t = 0; t < owned.size(); ++t) {
    const tensor::TensorSpec& spec = (*plan.inventory)[t];
    if (const auto twice = FindOverlap(owned[t])) {
      faults.push_back(spec.name + " is doubly covered: " + Text(plan, twice->first) + " and " +
                       Text(plan, twice->second));
      continue;
    }
    int64_t units = 0;
    for (const Owned& o : owned[t]) units += o.slice->box.units();
    if (units == spec.units()) continue;
    std::vector<std::string> places;
    for (const Owned& o : owned[t]) places.push_back(Text(plan, o));
    faults.push_back(spec.name + " is covered in " + std::to_string(units) + " of " +
                     std::to_string(spec.units()) + " units" +
                     (places.empty() ? std::string(": no owner") : ": " + JoinNames(places, 8)));
  }
  if (faults.empty()) return Ok();
  return Error{Code::kInvalidData,
               "plan does not cover the inventory exactly once: " + JoinNames(faults, kNamesMax)};
}

}  // namespace weightcast::layout
