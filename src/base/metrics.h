// Counters and timings of this process, shown by `--json`, by tests and in Prometheus' text format.
// prometheus-cpp stays behind this header. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace weightcast {

// Adds to a counter, created at its first use. Name as Prometheus wants it:
// weightcast_<what>_<unit>_total.
void CountMetric(std::string_view name, double add);

// The whole registry in Prometheus' text format.
std::string MetricsText();

}  // namespace weightcast
