// pipeline_model_parallel_layout, as another program wrote it.
#include "base/bytes.h"
#include "fuzz/accepted.h"
#include "layout/pipeline_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast;
  const auto chunks = layout::ParsePipelineLayout(AsText(ByteSpan{data, size}));
  if (!chunks.ok()) return 0;
  WC_CHECK(!chunks->empty());
  int32_t next = 0;
  int predicting = 0;
  for (const layout::PipelineChunk& chunk : *chunks) {
    WC_CHECK(chunk.first_layer == next && chunk.layers >= 0 && chunk.mtp_layers >= 0);
    next += chunk.layers;
    predicting += chunk.mtp_layers > 0 ? 1 : 0;
  }
  WC_CHECK(next <= layout::kLayoutModulesMax && predicting <= 1);
  fuzz::Accepted(data, size);
  return 0;
}
