#include "bridge/families/family_table.h"

#include <algorithm>

#include "base/text.h"
#include "bridge/families/families.h"

namespace weightcast::bridge {
namespace {

bool AnyStack(const Family& family, Holder holder) {
  return std::ranges::count(family.stacks, holder, &Stack::holder) > 0;
}

std::vector<std::string> ExpertsOf(const Family& family) {
  if (!AnyRule(family, [](const Rule& r) { return r.per_expert(); })) return {};
  if (!AnyRule(family, [](const Rule& r) { return r.when == When::kPerName; })) {
    if (!AnyRule(family, [](const Rule& r) { return r.outputs[0].packed; })) return {"per-name"};
    return {AnyRule(family, [](const Rule& r) { return r.transposed; }) ? "packed-in-out"
                                                                        : "packed-out-in"};
  }
  std::vector<std::string> ways = {"per-name", "packed-out-in", "packed-in-out"};
  if (family.packed_by_default) std::ranges::rotate(ways, ways.begin() + 1);
  if (family.in_out_before_5) ways.emplace_back("packed before transformers 5: in-out");
  return ways;
}

std::vector<std::string> SpellingsOf(const Family& family) {
  std::vector<std::string> spellings = {"te"};
  if (AnyRule(family, [](const Rule& r) { return r.local_name != nullptr; })) {
    spellings.emplace_back("local");
  }
  if (AnyRule(family, [](const Rule& r) { return r.sequential_name != nullptr; })) {
    spellings.emplace_back("sequential experts");
  }
  if (AnyStack(family, Holder::kMtpLayers)) spellings.emplace_back("prediction modules");
  if (AnyStack(family, Holder::kVisionLayers)) spellings.emplace_back("vision tower");
  if (std::ranges::count(family.stacks, When::kKeptTower, &Stack::when) > 0) {
    spellings.emplace_back("kept vision tower");
  }
  return spellings;
}

std::string Cell(const std::vector<std::string>& words) {
  std::string text = JoinNames(words, words.size());
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return " " + text + " |";
}

}  // namespace

std::vector<FamilyRow> FamilyRows() {
  std::vector<FamilyRow> rows;
  for (const Family* family : kFamilies) {
    FamilyRow row;
    row.family = family->name;
    row.architectures.assign(family->architectures.begin(), family->architectures.end());
    row.experts = ExpertsOf(*family);
    row.spellings = SpellingsOf(*family);
    for (const Setting& s : family->settings) {
      row.settings.push_back(std::string(s.key) +
                             (s.values == "*" ? "" : " = " + std::string(s.values)));
    }
    row.refused.assign(family->refused.begin(), family->refused.end());
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string FamilyTable() {
  std::string text =
      "| family | architectures | experts | spellings | settings | refused |\n"
      "|---|---|---|---|---|---|\n";
  for (const FamilyRow& row : FamilyRows()) {
    text += "| `" + row.family + "` |" + Cell(row.architectures) + Cell(row.experts) +
            Cell(row.spellings) + Cell(row.settings) + Cell(row.refused) + "\n";
  }
  return text;
}

}  // namespace weightcast::bridge
