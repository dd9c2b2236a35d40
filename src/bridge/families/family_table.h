// The families as a table, made from their data: docs/families.md and `plan --families`.
#pragma once

#include <string>
#include <vector>

namespace weightcast::bridge {

struct FamilyRow {
  std::string family;
  std::vector<std::string> architectures;
  std::vector<std::string> experts;  // how checkpoints may have them, the family's usual way first
  std::vector<std::string> spellings;  // of the trainer's parameters
  std::vector<std::string> settings;   // "key = values" that it takes besides the usual ones
  std::vector<std::string> refused;    // flags of config.json for which it has no rules
};
std::vector<FamilyRow> FamilyRows();

std::string FamilyTable();  // Markdown

}  // namespace weightcast::bridge
