// A small dense model of one of the families, with its config: for the demo and the benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/inventory.h"

namespace weightcast::bridge {

// Dimensions of the decoder, as config.json names them.
struct ExampleDims {
  int64_t hidden = 768;
  int64_t intermediate = 2048;
  int64_t layers = 8;
  int64_t heads = 12;
  int64_t kv_heads = 4;
  int64_t head_dim = 64;
  int64_t vocabulary = 32000;
};

std::vector<tensor::TensorSpec> ExampleTensors(const ExampleDims& dims);
std::string ExampleConfig(const ExampleDims& dims);  // the text of config.json

}  // namespace weightcast::bridge
