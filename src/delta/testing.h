// For tests of this floor and of those above it: small models and parts of them in memory.
#pragma once

#include <utility>
#include <vector>

#include "delta/codec.h"
#include "delta/part.h"
#include "delta/part_format.h"

namespace weightcast::delta {

// One state of a model: the canonical bytes of each tensor.
using State = std::vector<Bytes>;

inline Bytes PackBox(const tensor::Matrix& matrix, const tensor::Box& box, ByteSpan bytes) {
  const auto unit = static_cast<size_t>(matrix.unit_bytes);
  Bytes packed;
  for (int64_t i = 0; i < box.rows; ++i) {
    for (int64_t j = 0; j < box.cols; ++j) {
      const int64_t at = (box.row + i * box.row_step) * matrix.cols + box.col + j * box.col_step;
      ByteWriter(&packed).PutBytes(bytes.subspan(static_cast<size_t>(at) * unit, unit));
    }
  }
  return packed;
}

struct Piece {
  int32_t tensor = 0;
  tensor::Box box;
  bool without_base = false;
};

struct BuiltPart {
  Bytes object;
  PartSeal seal;

  ByteSpan footer() const { return ByteSpan(object).last(static_cast<size_t>(seal.footer_bytes)); }
  ByteSpan payload(const PartChunk& chunk) const {
    return ByteSpan(object).subspan(static_cast<size_t>(chunk.offset),
                                    static_cast<size_t>(chunk.payload_bytes));
  }
};

// Index and trailer were edited: makes check and seal fit again, so that only the edit is wrong.
inline void Reseal(BuiltPart* part) {
  const size_t index = part->object.size() - static_cast<size_t>(part->seal.footer_bytes);
  const size_t trailer = part->object.size() - kPartTrailerBytes;
  const uint64_t check = IndexCheck(ByteSpan(part->object).subspan(index, trailer - index));
  StoreLe(part->object.data() + trailer, static_cast<uint64_t>(part->seal.footer_bytes));
  StoreLe(part->object.data() + trailer + 8, check);
  part->seal.object_bytes = static_cast<int64_t>(part->object.size());
  part->seal.footer_sha256 = Sha256::Of(part->footer());
}

// The model of the goldens: each tensor makes the encoder choose another method.
inline std::vector<tensor::TensorSpec> GoldenSpecs() {
  using tensor::DType;
  return {{"classes.bf16", DType::kBf16, {60, 64}}, {"empty.bf16", DType::kBf16, {0, 3}},
          {"few.f8", DType::kF8E4M3, {15, 20}},     {"flips.i16", DType::kI16, {2000}},
          {"low_bytes.u32", DType::kU32, {25, 40}}, {"scalar.i64", DType::kI64, {}},
          {"steps.f32", DType::kF32, {300}},        {"unchanged.bool", DType::kBool, {7}},
          {"whole.f64", DType::kF64, {12}}};
}

// What chunk_payload_fuzz reads: a record's numbers, then the payload.
struct FuzzedPayload {
  Method method = Method::kRaw;
  uint8_t dtype = 0;
  bool without_base = false;
  uint16_t units = 0;
  uint16_t changed_units = 0;
  ByteSpan payload = {};

  static FuzzedPayload Parse(ByteSpan input) {
    ByteReader in(input);
    FuzzedPayload chunk;
    const auto method = in.Get<uint8_t>();
    chunk.method = static_cast<Method>(method & 0x7f);
    chunk.without_base = (method & 0x80) != 0;
    chunk.dtype = in.Get<uint8_t>();
    chunk.units = in.Get<uint16_t>();
    chunk.changed_units = in.Get<uint16_t>();
    chunk.payload = in.GetBytes(in.remaining());
    return chunk;
  }
  Bytes Store() const {
    Bytes out;
    ByteWriter writer(&out);
    writer.Put(static_cast<uint8_t>(static_cast<uint8_t>(method) | (without_base ? 0x80 : 0)));
    writer.Put(dtype);
    writer.Put(units);
    writer.Put(changed_units);
    writer.PutBytes(payload);
    return out;
  }
  // The base of every fuzzed chunk: bits of all kinds, with zeros among them.
  static Bytes Base(size_t size) {
    Bytes base(size);
    for (size_t i = 0; i < size; ++i) base[i] = static_cast<uint8_t>(i * i / 5 + i * 89);
    return base;
  }
};

// Encodes the pieces that changed (all of those without base) and writes them as a part.
inline BuiltPart BuildPart(const PartIdentity& identity, const tensor::Inventory& inventory,
                           const State& base, const State& next, const std::vector<Piece>& pieces) {
  BuiltPart part;
  PartWriter writer(identity, [&part](ByteSpan bytes) {
    ByteWriter(&part.object).PutBytes(bytes);
    return Ok();
  });
  Scratch scratch;
  for (const Piece& piece : pieces) {
    const auto t = static_cast<size_t>(piece.tensor);
    const tensor::Matrix matrix = inventory[t].matrix();
    const Bytes old_units = piece.without_base ? Bytes() : PackBox(matrix, piece.box, base[t]);
    const Bytes new_units = PackBox(matrix, piece.box, next[t]);
    Bytes payload;
    const ChunkInfo info = EncodeChunk(inventory[t].dtype, old_units, new_units, scratch, &payload);
    if (info.method == Method::kAbsent) continue;
    PartChunk chunk;
    chunk.tensor = piece.tensor;
    chunk.box = piece.box;
    chunk.method = info.method;
    chunk.without_base = piece.without_base;
    chunk.changed_units = info.changed_units;
    if (!piece.without_base) chunk.base_digest = DigestBox(matrix, piece.box, old_units);
    chunk.next_digest = DigestBox(matrix, piece.box, new_units);
    WC_CHECK(writer.Add(chunk, payload).ok());
  }
  part.seal = writer.Finish().value();
  return part;
}

}  // namespace weightcast::delta
