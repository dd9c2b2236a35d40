// Rows that would be large as JSON: a format byte, then little-endian fields.
#include "catalog/row_format.h"

namespace weightcast::catalog {
namespace {

constexpr uint8_t kFormat = 1;
constexpr size_t kKeyBytesMax = 1024;  // of an object; checked when it was announced
constexpr size_t kDigestBytes = 16;

Error Malformed(const ByteReader& reader, const char* what) {
  return {Code::kInvalidData, std::string(what) + " at byte " + std::to_string(reader.position()) +
                                  ": cut, too long, or out of bounds"};
}

Status ReadFormat(ByteReader& reader) {
  const auto format = reader.Get<uint8_t>();
  if (!reader.ok()) return Malformed(reader, "format byte");
  if (format == kFormat) return Ok();
  return Error{Code::kInvalidData, "format version " + std::to_string(format) +
                                       "; this release reads format version 1"};
}

// How many records follow, each of at least `bytes_min`: never more than could be there.
size_t ReadCount(ByteReader& reader, size_t bytes_min) {
  const uint64_t count = reader.GetVarint();
  if (count > reader.remaining() / bytes_min) reader.Fail();
  return reader.ok() ? static_cast<size_t>(count) : 0;
}

int64_t ReadCount63(ByteReader& reader) {
  const uint64_t value = reader.GetVarint();
  if (value >> 63 != 0) reader.Fail();
  return reader.ok() ? static_cast<int64_t>(value) : 0;
}

template <typename Id>
void ReadId(ByteReader& reader, Id* id) {
  const ByteSpan bytes = reader.GetBytes(id->value.size());
  if (reader.ok()) *id = Id::From(bytes);
}

void WriteDigest(ByteWriter& writer, const tensor::TensorDigest& digest) {
  uint8_t bytes[kDigestBytes];
  digest.Store(bytes);
  writer.PutBytes(bytes);
}

void ReadDigest(ByteReader& reader, tensor::TensorDigest* digest) {
  const ByteSpan bytes = reader.GetBytes(kDigestBytes);
  if (!reader.ok()) return;
  const Result<tensor::TensorDigest> loaded = tensor::TensorDigest::Load(bytes.data());
  if (loaded.ok()) {
    *digest = *loaded;
  } else {
    reader.Fail();
  }
}

void WriteCount(ByteWriter& writer, int64_t value) {
  writer.PutVarint(static_cast<uint64_t>(value));
}

void WritePartial(ByteWriter& writer, const tensor::Partial& partial) {
  WriteDigest(writer, partial.digest);
  WriteCount(writer, partial.units);
}

void ReadPartial(ByteReader& reader, tensor::Partial* partial) {
  ReadDigest(reader, &partial->digest);
  partial->units = ReadCount63(reader);
}

void ReadObject(ByteReader& reader, ObjectRef* object) {
  const auto role = reader.Get<uint8_t>();
  if (role > static_cast<uint8_t>(ObjectRole::kCarried)) reader.Fail();
  object->role = static_cast<ObjectRole>(reader.ok() ? role : 0);
  object->key = std::string(reader.GetString(kKeyBytesMax));
  object->bytes = ReadCount63(reader);
  object->footer_bytes = ReadCount63(reader);
  ReadId(reader, &object->footer_sha256);
}

void ReadTensorPartial(ByteReader& reader, TensorPartial* partial) {
  partial->tensor = reader.Get<int32_t>();
  const auto raw = reader.Get<uint8_t>();
  if (partial->tensor < 0 || raw > 1) reader.Fail();
  partial->raw = raw == 1;
  ReadPartial(reader, &partial->base);
  ReadPartial(reader, &partial->next);
}

void ReadStats(ByteReader& reader, PublishStats* stats) {
  stats->elements = ReadCount63(reader);
  stats->changed_elements = ReadCount63(reader);
  stats->payload_bytes = ReadCount63(reader);
  stats->wire_bytes = ReadCount63(reader);
}

}  // namespace

Bytes Encode(const Announcement& row) {
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.Put(kFormat);
  writer.PutBytes(row.version.bytes());
  writer.Put(row.epoch.value);
  writer.Put(row.rank.value);
  writer.PutBytes(row.plan.bytes());
  WriteCount(writer, row.stats.elements);
  WriteCount(writer, row.stats.changed_elements);
  WriteCount(writer, row.stats.payload_bytes);
  WriteCount(writer, row.stats.wire_bytes);
  writer.PutVarint(row.objects.size());
  for (const ObjectRef& object : row.objects) {
    writer.Put(static_cast<uint8_t>(object.role));
    writer.PutString(object.key);
    WriteCount(writer, object.bytes);
    WriteCount(writer, object.footer_bytes);
    writer.PutBytes(object.footer_sha256.bytes());
  }
  writer.PutVarint(row.partials.size());
  for (const TensorPartial& partial : row.partials) {
    writer.Put(partial.tensor);
    writer.Put(uint8_t{partial.raw});
    WritePartial(writer, partial.base);
    WritePartial(writer, partial.next);
  }
  return bytes;
}

Status Decode(ByteSpan bytes, Announcement* row) {
  constexpr size_t kObjectBytesMin = 1 + 1 + 1 + 1 + 32;
  constexpr size_t kPartialBytesMin = 4 + 1 + 2 * (kDigestBytes + 1);
  ByteReader reader(bytes);
  WC_TRY(ReadFormat(reader));
  ReadId(reader, &row->version);
  row->epoch.value = reader.Get<int64_t>();
  row->rank.value = reader.Get<int32_t>();
  if (row->epoch.value < 0 || row->rank.value < 0) reader.Fail();
  ReadId(reader, &row->plan);
  ReadStats(reader, &row->stats);
  row->objects.resize(ReadCount(reader, kObjectBytesMin));
  for (ObjectRef& object : row->objects) ReadObject(reader, &object);
  if (!reader.ok()) return Malformed(reader, "objects");
  row->partials.resize(ReadCount(reader, kPartialBytesMin));
  for (TensorPartial& partial : row->partials) ReadTensorPartial(reader, &partial);
  if (!reader.done()) return Malformed(reader, "partials");
  return Ok();
}

Bytes Encode(const std::vector<tensor::TensorDigest>& row) {
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.Put(kFormat);
  for (const tensor::TensorDigest& digest : row) WriteDigest(writer, digest);
  return bytes;
}

Status Decode(ByteSpan bytes, std::vector<tensor::TensorDigest>* row) {
  ByteReader reader(bytes);
  WC_TRY(ReadFormat(reader));
  row->resize(reader.remaining() / kDigestBytes);
  for (tensor::TensorDigest& digest : *row) ReadDigest(reader, &digest);
  if (!reader.done()) return Malformed(reader, "digest");
  return Ok();
}

Bytes Encode(const tensor::Inventory& row) {
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.Put(kFormat);
  for (const tensor::TensorSpec& spec : row.tensors()) {
    writer.PutString(spec.name);
    writer.Put(static_cast<uint8_t>(spec.dtype));
    writer.Put(static_cast<uint8_t>(spec.shape.size()));
    for (const int64_t dim : spec.shape) WriteCount(writer, dim);
  }
  return bytes;
}

Status Decode(ByteSpan bytes, tensor::Inventory* row) {
  ByteReader reader(bytes);
  WC_TRY(ReadFormat(reader));
  std::vector<tensor::TensorSpec> specs;
  while (reader.ok() && !reader.done()) {
    tensor::TensorSpec spec;
    spec.name = std::string(reader.GetString(tensor::kNameBytesMax));
    const auto dtype = tensor::DTypeFromWire(reader.Get<uint8_t>());
    const auto dims = reader.Get<uint8_t>();
    if (!dtype || dims > tensor::kDimsMax) reader.Fail();
    for (size_t i = 0; reader.ok() && i < dims; ++i) spec.shape.push_back(ReadCount63(reader));
    if (!reader.ok()) return Malformed(reader, "tensor");
    spec.dtype = *dtype;
    if (!specs.empty() && !(specs.back().name < spec.name)) {
      return Error{Code::kInvalidData, "tensors are not sorted by name"};
    }
    specs.push_back(std::move(spec));
  }
  *row = WC_TRY(tensor::Inventory::Make(std::move(specs)));
  return Ok();
}

}  // namespace weightcast::catalog
