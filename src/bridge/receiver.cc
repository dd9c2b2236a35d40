#include "bridge/receiver.h"

#include <algorithm>
#include <iterator>

#include "base/json.h"
#include "base/text.h"

namespace weightcast::bridge {
namespace {

using tensor::Inventory;
using tensor::TensorSpec;

Result<std::vector<std::string>> NamesOfJson(std::string_view text) {
  const Json json = WC_TRY(ParseJson(text, {.bytes_max = static_cast<size_t>(kNamesBytesMax)}));
  std::vector<std::string> names;
  if (json.is_object()) {
    const Json* map = WC_TRY(JsonObject(json, "weight_map"));
    for (const auto& [name, file] : map->items()) names.push_back(name);
    return names;
  }
  for (const Json& name : json) {
    if (!json.is_array() || !name.is_string()) {
      return Error{Code::kInvalidData, "expected an index with a weight_map, or a list of names"};
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::string> NamesOfLines(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) names.emplace_back(line);
  }
  return names;
}

// What the carry patterns match, and which of them match nothing.
struct Carried {
  std::vector<std::string> names;
  std::vector<std::string> idle;
};
Carried MatchCarry(const std::vector<std::string>& patterns,
                   const std::vector<std::string>& declared) {
  Carried carried;
  std::vector<bool> used(patterns.size());
  for (const std::string& name : declared) {
    bool matched = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!MatchesGlob(patterns[i], name)) continue;
      used[i] = matched = true;
    }
    if (matched) carried.names.push_back(name);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) carried.idle.push_back(Quoted(patterns[i]));
  }
  return carried;
}

Status CompareNames(const std::vector<std::string>& made,
                    const std::vector<std::string>& declared) {
  std::vector<std::string> missing, unexpected;
  std::ranges::set_difference(declared, made, std::back_inserter(missing));
  std::ranges::set_difference(made, declared, std::back_inserter(unexpected));
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back("missing: " + JoinNames(missing));
  if (!unexpected.empty()) faults.push_back("unexpected: " + JoinNames(unexpected));
  if (faults.empty()) return Ok();
  return Error{Code::kInvalidData,
               "what the trainer produces, with what is carried, is not what the receiver lists: " +
                   JoinNames(faults)};
}

// Reference = produced + carried, exactly.
Status CompareReference(const Inventory& produced, const std::vector<std::string>& carried,
                        const Inventory& reference, ExpertLayout asked) {
  std::vector<TensorSpec> all = produced.tensors();
  for (const std::string& name : carried) {
    all.push_back(reference[static_cast<size_t>(reference.Find(name))]);
  }
  const Inventory made = WC_TRY(Inventory::Make(std::move(all)));
  if (made == reference) return Ok();
  const std::string experts = asked == ExpertLayout::kAuto
                                  ? ""
                                  : std::string(" and experts ") +
                                        kExpertLayouts[static_cast<size_t>(asked)] +
                                        " as asked for";
  return Error{Code::kInvalidData,
               "what the trainer produces, with what is carried" + experts +
                   ", is not what the reference holds: " + tensor::DifferenceText(reference, made)};
}

}  // namespace

Result<std::vector<std::string>> ParseNames(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  std::vector<std::string> names = json ? WC_TRY(NamesOfJson(text)) : NamesOfLines(text);
  std::ranges::sort(names);
  if (names.empty()) return Error{Code::kInvalidData, "expected names, found none"};
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return names;
  return Error{Code::kInvalidData, "lists " + Quoted(*twice) + " twice"};
}

std::vector<std::string> DeclaredNames(const CompileOptions& options) {
  std::vector<std::string> names = options.names;
  if (options.reference) {
    names.clear();
    for (const TensorSpec& spec : options.reference->tensors()) names.push_back(spec.name);
  }
  std::ranges::sort(names);
  return names;
}

Result<std::vector<std::string>> CompareWithReceiver(const Inventory& produced,
                                                     const CompileOptions& options) {
  if (!options.reference && options.names.empty()) {
    if (options.carry.empty()) return std::vector<std::string>();
    return Error{Code::kInvalidArgument,
                 "tensors to carry (" + JoinNames(options.carry) +
                     ") need a seed or reference checkpoint that holds them"};
  }
  if (options.reference && !options.names.empty()) {
    return Error{Code::kInvalidArgument,
                 "a reference checkpoint and a list of names are given: expected one of them"};
  }
  const std::vector<std::string> declared = DeclaredNames(options);
  Carried carried = MatchCarry(options.carry, declared);
  std::vector<std::string> clashes;
  for (const std::string& name : carried.names) {
    if (produced.Find(name) >= 0) clashes.push_back(name);
  }
  if (!clashes.empty()) {
    return Error{Code::kInvalidArgument,
                 "the trainer produces what is to be carried: " + JoinNames(clashes)};
  }
  if (!carried.idle.empty()) {
    return Error{Code::kInvalidArgument,
                 "nothing that the receiver lists matches --carry " + JoinNames(carried.idle)};
  }
  if (options.reference) {
    WC_TRY(CompareReference(produced, carried.names, *options.reference, options.expert_layout));
  } else {
    std::vector<std::string> made = carried.names;
    for (const TensorSpec& spec : produced.tensors()) made.push_back(spec.name);
    std::ranges::sort(made);
    WC_TRY(CompareNames(made, declared));
  }
  return std::move(carried.names);
}

}  // namespace weightcast::bridge
