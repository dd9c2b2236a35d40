// The demo's table: one row a version.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace weightcast::apps {

struct VersionRow {
  int64_t number = 0;
  std::string kind;
  int64_t elements = 0;
  int64_t changed_elements = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  double stall = 0;    // of the slowest rank, seconds
  double publish = 0;  // until READY
  double fetch = 0;    // of the slowest warm host
  double prepare = 0;
  double apply = 0;
};

class DemoTable {
 public:
  void Add(const VersionRow& row) { rows_.push_back(row); }
  std::string ToText() const;
  Json ToJson() const;

 private:
  std::vector<VersionRow> rows_;
};

}  // namespace weightcast::apps
