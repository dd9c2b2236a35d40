#include "tensor/safetensors.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "os/fs.h"

namespace weightcast::tensor {
namespace {

constexpr int64_t kLengthBytes = 8;  // of the header length in front of the header
constexpr size_t kDataAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

Error Bad(std::string message) { return {Code::kInvalidData, std::move(message)}; }

std::string RangeText(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

Result<std::map<std::string, std::string>> ParseMetadata(const Json& value) {
  if (!value.is_object()) {
    return Bad(std::string(kMetadataKey) + ": expected an object, found " + value.type_name());
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return Bad(std::string(kMetadataKey) + ": " + Quoted(key) + ": expected a string, found " +
                 text.type_name());
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The elements of an array of non-negative integers of 63 bits.
Result<std::vector<int64_t>> ParseInts(const Json& object, std::string_view field, size_t max) {
  const Json* array = WC_TRY(JsonArray(object, field));
  if (array->size() > max) {
    return Bad("field " + Quoted(field) + ": " + std::to_string(array->size()) +
               " numbers, at most " + std::to_string(max));
  }
  std::vector<int64_t> numbers;
  for (const Json& number : *array) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() >> 63 != 0) {
      return Bad("field " + Quoted(field) + ": expected integers in [0, 2^63), found " +
                 number.dump());
    }
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

// The offset of the result counts from the start of the data.
Result<PlacedTensor> ParseTensor(const std::string& name, const Json& value, int64_t data_bytes) {
  const std::string dtype_name = WC_TRY(JsonString(value, "dtype"));
  const auto dtype = DTypeFromName(dtype_name);
  if (!dtype) return Bad("unknown dtype " + Quoted(dtype_name));
  PlacedTensor tensor;
  const Shape shape = WC_TRY(ParseInts(value, "shape", kDimsMax));
  tensor.spec = {name, *dtype, shape};
  const auto range = WC_TRY(ParseInts(value, "data_offsets", 2));
  for (const auto& [field, unused] : value.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      return Bad("unknown field " + Quoted(field));
    }
  }
  WC_TRY(CheckSpec(tensor.spec));
  if (range.size() != 2) return Bad("data_offsets: expected two numbers");
  const auto [begin, end] = std::pair(range[0], range[1]);
  if (begin > end || end > data_bytes) {
    return Bad("data_offsets " + RangeText(begin, end) + " outside the data " +
               RangeText(0, data_bytes));
  }
  if (end - begin != tensor.spec.bytes()) {
    return Bad("data_offsets " + RangeText(begin, end) + ": " + std::to_string(end - begin) +
               " bytes, but " + SpecText(tensor.spec) + " has " +
               std::to_string(tensor.spec.bytes()));
  }
  tensor.offset = begin;
  return tensor;
}

// Sorts, and proves that the tensors cover the data without gap or overlap.
Status CheckCover(std::vector<PlacedTensor>* tensors, int64_t data_bytes) {
  std::ranges::sort(*tensors, {}, [](const PlacedTensor& t) {
    return std::tuple(t.offset, t.spec.bytes(), std::string_view(t.spec.name));
  });
  std::vector<std::string> bad;
  std::string before = "the start";
  int64_t covered = 0;
  for (const PlacedTensor& tensor : *tensors) {
    if (tensor.offset != covered) {
      bad.push_back(std::string(tensor.offset < covered ? "overlap" : "gap") + " between " +
                    before + ", which ends at " + std::to_string(covered) + ", and " +
                    Quoted(tensor.spec.name) + " at " + std::to_string(tensor.offset));
    }
    covered = std::max(covered, tensor.offset + tensor.spec.bytes());
    before = Quoted(tensor.spec.name);
  }
  if (covered != data_bytes) {
    bad.push_back("data of " + std::to_string(data_bytes) + " bytes, but the tensors end at " +
                  std::to_string(covered));
  }
  if (bad.empty()) return Ok();
  return Bad(JoinNames(bad));
}

// The header's text, still unparsed.
Result<std::string_view> HeaderText(ByteSpan prefix, int64_t file_bytes) {
  const int64_t header_end = WC_TRY(SafetensorsPrefixBytes(prefix, file_bytes));
  if (static_cast<int64_t>(prefix.size()) < header_end) {
    return Bad("header cut: " + std::to_string(prefix.size()) + " bytes of " +
               std::to_string(header_end));
  }
  const std::string_view text =
      AsText(prefix.subspan(kLengthBytes, static_cast<size_t>(header_end - kLengthBytes)));
  // Some writers pad with NULs where the format asks for spaces; name that rather than "bad JSON".
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return Bad("NUL in the header at byte " +
               std::to_string(static_cast<int64_t>(nul) + kLengthBytes) +
               " of the file; a header is padded with spaces");
  }
  if (!text.starts_with('{')) return Bad("header does not begin with '{'");
  return text;
}

Status CheckWritable(const std::vector<TensorSpec>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  std::vector<std::string> bad;
  for (const TensorSpec& spec : tensors) {
    if (const Status status = CheckSpec(spec); !status.ok()) bad.push_back(status.error().message);
    if (!names.insert(spec.name).second) bad.push_back(Quoted(spec.name) + ": more than once");
  }
  for (const auto& [key, value] : metadata) {
    if (!ValidUtf8(key) || !ValidUtf8(value)) {
      bad.push_back("metadata " + Hex(AsBytes(key)) + " (hexadecimal): not UTF-8");
    }
  }
  if (bad.empty()) return Ok();
  return Bad(JoinNames(bad));
}

std::string JsonText(const std::string& text) { return Json(text).dump(); }

// The header as text, padded so that the data after it is aligned. Offsets still count from the
// start of the data.
std::string HeaderJson(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (!header.metadata.empty()) {
    members.push_back(JsonText(kMetadataKey) + ":" + Json(header.metadata).dump());
  }
  for (const auto& [spec, offset] : header.tensors) {
    const Json value = {{"dtype", DTypeName(spec.dtype)},
                        {"shape", spec.shape},
                        {"data_offsets", {offset, offset + spec.bytes()}}};
    members.push_back(JsonText(spec.name) + ":" + value.dump());
  }
  std::string text = "{";
  for (const std::string& member : members) text += (text.size() > 1 ? "," : "") + member;
  text += "}";
  text.append((kDataAlignment - text.size() % kDataAlignment) % kDataAlignment, ' ');
  return text;
}

}  // namespace

Result<int64_t> SafetensorsPrefixBytes(ByteSpan first8, int64_t file_bytes) {
  if (file_bytes < kLengthBytes || first8.size() < static_cast<size_t>(kLengthBytes)) {
    return Bad("file of " + std::to_string(file_bytes) + " bytes: no room for a header length");
  }
  const auto length = LoadLe<uint64_t>(first8.data());
  if (length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax)) {
    return Bad("header length " + std::to_string(length) + ", at most " +
               std::to_string(kSafetensorsHeaderBytesMax));
  }
  const int64_t end = kLengthBytes + static_cast<int64_t>(length);
  if (end > file_bytes) {
    return Bad("header length " + std::to_string(length) + " reaches past the end of a file of " +
               std::to_string(file_bytes) + " bytes");
  }
  return end;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(ByteSpan prefix, int64_t file_bytes) {
  const std::string_view text = WC_TRY(HeaderText(prefix, file_bytes));
  const Json json = WC_TRY(ParseJson(
      text, {.bytes_max = static_cast<size_t>(kSafetensorsHeaderBytesMax), .depth_max = 4}));
  SafetensorsHeader header;
  header.data_start = kLengthBytes + static_cast<int64_t>(text.size());
  header.file_bytes = file_bytes;
  const int64_t data_bytes = file_bytes - header.data_start;
  std::vector<std::string> bad;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      header.metadata = WC_TRY(ParseMetadata(value));
      continue;
    }
    Result<PlacedTensor> tensor = ParseTensor(name, value, data_bytes);
    if (tensor.ok()) {
      header.tensors.push_back(std::move(*tensor));
    } else {
      bad.push_back(Quoted(name) + ": " + tensor.error().message);
    }
  }
  if (!bad.empty()) return Bad(JoinNames(bad));
  WC_TRY(CheckCover(&header.tensors, data_bytes));
  for (PlacedTensor& tensor : header.tensors) tensor.offset += header.data_start;
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(os::File& file) {
  const int64_t file_bytes = WC_TRY(file.Size());
  Bytes prefix(static_cast<size_t>(std::min(file_bytes, kLengthBytes)));
  WC_TRY(file.Read(0, prefix));
  const int64_t prefix_bytes = WC_TRY(SafetensorsPrefixBytes(prefix, file_bytes).With(file.path()));
  prefix.resize(static_cast<size_t>(prefix_bytes));
  WC_TRY(file.Read(kLengthBytes, MutableByteSpan(prefix).subspan(kLengthBytes)));
  return ParseSafetensorsHeader(prefix, file_bytes).With(file.path());
}

Result<Bytes> MakeSafetensorsHeader(const std::vector<TensorSpec>& tensors,
                                    const std::map<std::string, std::string>& metadata,
                                    SafetensorsHeader* header) {
  WC_TRY(CheckWritable(tensors, metadata));
  *header = {};
  header->metadata = metadata;
  int64_t end = 0;
  for (const TensorSpec& spec : tensors) {
    header->tensors.push_back({spec, end});
    if (__builtin_add_overflow(end, spec.bytes(), &end)) return Bad("data of 2^63 bytes and more");
  }
  const std::string text = HeaderJson(*header);
  if (static_cast<int64_t>(text.size()) > kSafetensorsHeaderBytesMax) {
    return Bad("header of " + std::to_string(text.size()) + " bytes, at most " +
               std::to_string(kSafetensorsHeaderBytesMax));
  }
  header->data_start = kLengthBytes + static_cast<int64_t>(text.size());
  if (__builtin_add_overflow(header->data_start, end, &header->file_bytes)) {
    return Bad("file of 2^63 bytes and more");
  }
  for (PlacedTensor& tensor : header->tensors) tensor.offset += header->data_start;
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.Put(uint64_t{text.size()});
  writer.PutBytes(AsBytes(text));
  return bytes;
}

}  // namespace weightcast::tensor
