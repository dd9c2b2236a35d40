// For tests: a tiny model of any family cut into Megatron shards by code of its own, written
// forward (canonical tensors -> interleave -> cut), so that it shares no arithmetic and no name
// with the rules it checks, but for one exception: which rank sits where and which decoder layers
// it has it asks layout::Topology (At, LayersOf). topology_test.cc and the coordinates that real
// ranks recorded check those. Facts: Megatron-Core's modules and the Hugging Face modelling files.
//
// Every canonical element has a number of its own, which fp32 parameters hold as bits. A bf16
// parameter holds its lower half in one world and its upper half in another, so that both worlds
// together tell it apart. Padded rows hold kPadding.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bridge/toy_models_testing.h"
#include "layout/topology.h"
#include "tensor/inventory.h"

namespace weightcast::bridge {

inline constexpr uint32_t kPadding = 0x7fc0dead;  // a NaN; its upper half too

enum class ToyValues : uint8_t {
  kBits,
  kGain,         // of a norm: 1 + n / 128
  kGainLessOne,  // as Megatron holds it
};

// Row-major. What is cut is the first dimension, or the last one of a matrix.
struct ToyTensor {
  tensor::Shape dims;
  std::vector<uint32_t> bits = {};
  tensor::DType dtype = tensor::DType::kF32;
  ToyValues values = ToyValues::kBits;

  const tensor::Shape& shape() const { return dims; }
  ToyTensor Rows(int64_t from, int64_t count) const;
  ToyTensor Cols(int64_t from, int64_t count) const;
  ToyTensor EachSecond(int64_t from) const;  // rows
  ToyTensor At(int64_t i) const;             // without the first dimension
  ToyTensor Transposed() const;
  void Append(const ToyTensor& below);
};

// As a file holds it; of a bf16 one the lower or the upper half.
Bytes BytesOf(const ToyTensor& t, bool upper_half = false);

using ToyTensors = std::map<std::string, ToyTensor>;

// The model's Hugging Face tensors.
ToyTensors CanonicalTensors(const ToyModel& m);

// What one rank holds, by shard key; `hf` are the model's canonical tensors.
ToyTensors ShardTensors(const ToyModel& m, const layout::Topology& t, int32_t rank,
                        const ToyTensors& hf);
inline ToyTensors ShardTensors(const ToyModel& m, const layout::Topology& t, int32_t rank) {
  return ShardTensors(m, t, rank, CanonicalTensors(m));
}

}  // namespace weightcast::bridge
