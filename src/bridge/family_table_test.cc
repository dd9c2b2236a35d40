// docs/families.md is what the families' data say. UPDATE=1 writes it anew.
#include "bridge/families/family_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "bridge/families/families.h"

namespace weightcast::bridge {
namespace {

TEST(FamilyTable, ThePageHoldsIt) {
  const char* const path = "docs/families.md";
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  std::string text = page.str();
  const std::string begin = "| family |";
  const size_t at = text.find(begin);
  ASSERT_NE(at, std::string::npos) << path;
  size_t end = at;
  while (end < text.size() && text[end] == '|') end = text.find('\n', end) + 1;
  if (std::getenv("UPDATE") != nullptr) {
    text.replace(at, end - at, FamilyTable());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(at, end - at), FamilyTable())
      << path << " is old: UPDATE=1 bridge_test --gtest_filter=FamilyTable.*";
}

TEST(FamilyTable, HasARowForEachFamilyInTheirOrder) {
  const std::vector<FamilyRow> rows = FamilyRows();
  ASSERT_EQ(rows.size(), std::size(kFamilies));
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].family, kFamilies[i]->name);
}

}  // namespace
}  // namespace weightcast::bridge
