#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace weightcast {
namespace {

prometheus::Registry& Registry() {
  static prometheus::Registry registry;
  return registry;
}

}  // namespace

void CountMetric(std::string_view name, double add) {
  prometheus::BuildCounter().Name(std::string(name)).Register(Registry()).Add({}).Increment(add);
}

std::string MetricsText() { return prometheus::TextSerializer().Serialize(Registry().Collect()); }

}  // namespace weightcast
