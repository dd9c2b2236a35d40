#include "apps/demo_table.h"

#include <cstdio>

#include "apps/command.h"

namespace weightcast::apps {
namespace {

double Ratio(int64_t a, int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
}

}  // namespace

std::string DemoTable::ToText() const {
  std::string text =
      "version kind   density  B/changed  wire       stall    publish  fetch    prepare  apply\n";
  for (const VersionRow& row : rows_) {
    char line[256];
    std::snprintf(line, sizeof line,
                  "%7lld %-6s %7.3f%% %9.3f  %-9s %6.3f s %6.3f s %6.3f s %6.3f s %6.3f s\n",
                  static_cast<long long>(row.number), row.kind.c_str(),
                  100 * Ratio(row.changed_elements, row.elements),
                  Ratio(row.payload_bytes, row.changed_elements), BytesText(row.wire_bytes).c_str(),
                  row.stall, row.publish, row.fetch, row.prepare, row.apply);
    text += line;
  }
  return text;
}

Json DemoTable::ToJson() const {
  Json rows = Json::array();
  for (const VersionRow& row : rows_) {
    rows.push_back({{"number", row.number},
                    {"kind", row.kind},
                    {"elements", row.elements},
                    {"changed_elements", row.changed_elements},
                    {"density", Ratio(row.changed_elements, row.elements)},
                    {"bytes_per_changed", Ratio(row.payload_bytes, row.changed_elements)},
                    {"wire_bytes", row.wire_bytes},
                    {"seconds",
                     {{"stall", row.stall},
                      {"publish", row.publish},
                      {"fetch", row.fetch},
                      {"prepare", row.prepare},
                      {"apply", row.apply}}}});
  }
  return rows;
}

}  // namespace weightcast::apps
