#include "tensor/inventory.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"

namespace weightcast::tensor {
namespace {

// safetensors keeps this key for itself.
constexpr std::string_view kReservedName = "__metadata__";

constexpr std::string_view kSignatureMagic("WCINV\0\0\x01", 8);

// False if a dimension is negative or the bytes reach 2^62. Zero dimensions count as one, which
// also bounds rows and columns of empty tensors.
bool BoundedSize(const TensorSpec& spec) {
  constexpr int64_t kBytesMax = (int64_t{1} << 62) - 1;
  int64_t bytes = UnitBytes(spec.dtype);
  for (const int64_t dim : spec.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes)) return false;
  }
  return bytes <= kBytesMax;
}

int64_t Product(Shape::const_iterator from, Shape::const_iterator to) {
  int64_t product = 1;
  for (; from != to; ++from) product *= *from;
  return product;
}

int64_t ElementsOf(const TensorSpec& spec) { return Product(spec.shape.begin(), spec.shape.end()); }

std::string WhyBad(const TensorSpec& spec) {
  if (spec.name.empty()) return "empty name";
  if (spec.name.size() > kNameBytesMax) {
    return "name of " + std::to_string(spec.name.size()) + " bytes, at most " +
           std::to_string(kNameBytesMax);
  }
  if (!ValidUtf8(spec.name)) return "name is not UTF-8";
  if (spec.name == kReservedName) return "name is reserved by safetensors";
  if (spec.shape.size() > kDimsMax) {
    return std::to_string(spec.shape.size()) + " dimensions, at most " + std::to_string(kDimsMax);
  }
  if (!BoundedSize(spec)) {
    return SpecText(spec) + ": negative dimension or size of 2^62 bytes and more";
  }
  // Only the remainder matters: elements * bits itself may overflow.
  if (ElementsOf(spec) % 8 * BitsOf(spec.dtype) % 8 != 0) {
    return SpecText(spec) + ": not a whole number of bytes";
  }
  return "";
}

// The start of a name that is fit for a message, whatever its bytes are.
std::string NameText(const std::string& name) {
  constexpr size_t kMax = 200;
  if (!ValidUtf8(name)) return "0x" + Hex(AsBytes(name.substr(0, kMax)));
  return Quoted(name.size() <= kMax ? name : name.substr(0, kMax) + "...");
}

}  // namespace

Matrix TensorSpec::matrix() const {
  const int bits = BitsOf(dtype);
  if (bits < 8) {
    const int64_t elements = ElementsOf(*this);
    return {1, elements / 8 * bits + elements % 8 * bits / 8, 1};
  }
  if (shape.empty()) return {1, 1, bits / 8};
  if (shape.size() == 1) return {shape[0], 1, bits / 8};
  return {Product(shape.begin(), shape.end() - 1), shape.back(), bits / 8};
}

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string SpecText(const TensorSpec& spec) {
  return std::string(DTypeName(spec.dtype)) + " " + ShapeText(spec.shape);
}

Status CheckSpec(const TensorSpec& spec) {
  const std::string why = WhyBad(spec);
  if (why.empty()) return Ok();
  return Error{Code::kInvalidData, "tensor " + NameText(spec.name) + ": " + why};
}

void AppendCanonical(const TensorSpec& spec, Bytes* out) {
  ByteWriter writer(out);
  writer.Put(static_cast<uint32_t>(spec.name.size()));
  writer.PutBytes(AsBytes(spec.name));
  writer.Put(static_cast<uint8_t>(spec.dtype));
  writer.Put(static_cast<uint8_t>(spec.shape.size()));
  for (const int64_t dim : spec.shape) writer.Put(dim);
}

Result<Inventory> Inventory::Make(std::vector<TensorSpec> tensors) {
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  std::vector<std::string> bad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Status status = CheckSpec(tensors[i]);
    if (!status.ok()) bad.push_back(status.error().message);
    const bool again = i > 0 && tensors[i].name == tensors[i - 1].name;
    if (again && (i == 1 || tensors[i].name != tensors[i - 2].name)) {
      bad.push_back("tensor " + NameText(tensors[i].name) + ": more than once");
    }
  }
  if (!bad.empty()) return Error{Code::kInvalidData, JoinNames(bad)};

  Inventory inventory;
  Bytes canonical;
  ByteWriter writer(&canonical);
  writer.PutBytes(AsBytes(kSignatureMagic));
  writer.Put(uint64_t{tensors.size()});
  for (const TensorSpec& spec : tensors) {
    AppendCanonical(spec, &canonical);
    if (__builtin_add_overflow(inventory.bytes_, spec.bytes(), &inventory.bytes_)) {
      return Error{Code::kInvalidData, "inventory: size of 2^63 bytes and more"};
    }
    inventory.units_ += spec.units();
  }
  inventory.signature_ = LayoutSignature::From(Sha256::Of(canonical).bytes());
  inventory.tensors_ = std::move(tensors);
  return inventory;
}

int64_t Inventory::Find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorSpec::name);
  if (it == tensors_.end() || it->name != name) return -1;
  return it - tensors_.begin();
}

std::string DifferenceText(const Inventory& expected, const Inventory& found) {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> different;
  for (const TensorSpec& spec : expected.tensors()) {
    const int64_t at = found.Find(spec.name);
    if (at < 0) {
      missing.push_back(spec.name + " (" + SpecText(spec) + ")");
    } else if (const TensorSpec& other = found[static_cast<size_t>(at)]; other != spec) {
      different.push_back(spec.name + " (expected " + SpecText(spec) + ", found " +
                          SpecText(other) + ")");
    }
  }
  for (const TensorSpec& spec : found.tensors()) {
    if (expected.Find(spec.name) < 0) unexpected.push_back(spec.name + " (" + SpecText(spec) + ")");
  }
  std::string text;
  const auto append = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    if (!text.empty()) text += "; ";
    text += std::string(what) + ": " + JoinNames(names);
  };
  append("missing", missing);
  append("unexpected", unexpected);
  append("different", different);
  return text;
}

}  // namespace weightcast::tensor
