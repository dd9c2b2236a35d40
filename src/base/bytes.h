// Spans of bytes, little-endian loads and stores, hex, and bounded readers and writers for our
// binary formats (all little endian).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace weightcast {

static_assert(std::endian::native == std::endian::little, "formats are read and written in place");

using ByteSpan = std::span<const uint8_t>;
using MutableByteSpan = std::span<uint8_t>;
using Bytes = std::vector<uint8_t>;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Copies `from` to the front of `to`, which must have room and must not overlap it. g++ 12 makes a
// loop over single bytes of std::ranges::copy between spans.
inline void CopyBytes(ByteSpan from, MutableByteSpan to) {
  WC_CHECK(from.size() <= to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

template <typename T>
T LoadLe(const uint8_t* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename T>
void StoreLe(uint8_t* to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
}

std::string Hex(ByteSpan bytes);
// Errors: kInvalidData if `text` is not exactly 2 * out.size() hexadecimal digits.
Status ParseHex(std::string_view text, MutableByteSpan out);

// Appends little-endian values and LEB128 varints.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes* out) : out_(*out) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t at = out_.size();
    out_.resize(at + sizeof value);
    StoreLe(out_.data() + at, value);
  }
  void PutBytes(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void PutVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<uint8_t>(value | 0x80));
    out_.push_back(static_cast<uint8_t>(value));
  }
  // Varint length, then the bytes.
  void PutString(std::string_view text) {
    PutVarint(text.size());
    PutBytes(AsBytes(text));
  }

 private:
  Bytes& out_;
};

// Reads what ByteWriter wrote; never past the end. After an overrun every read gives zero and
// ok() is false, so that a parser may check once per record.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan in) : in_(in) {}

  bool ok() const { return ok_; }
  bool done() const { return ok_ && at_ == in_.size(); }
  size_t position() const { return at_; }
  size_t remaining() const { return in_.size() - at_; }

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!Need(sizeof(T))) return T{};
    T value = LoadLe<T>(in_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  ByteSpan GetBytes(size_t n) {
    if (!Need(n)) return {};
    ByteSpan bytes = in_.subspan(at_, n);
    at_ += n;
    return bytes;
  }
  // A varint of more than 64 bits is an overrun. Non-minimal encodings are refused: one value, one
  // form.
  uint64_t GetVarint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Get<uint8_t>();
      if (!ok_) return 0;
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (byte == 0 && shift > 0) break;
        return value;
      }
    }
    ok_ = false;
    return 0;
  }
  std::string_view GetString(size_t max) {
    const uint64_t n = GetVarint();
    if (n > max) ok_ = false;
    return AsText(GetBytes(ok_ ? static_cast<size_t>(n) : 0));
  }
  void Fail() { ok_ = false; }

 private:
  bool Need(size_t n) {
    if (!ok_ || n > in_.size() - at_) ok_ = false;
    return ok_;
  }

  ByteSpan in_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace weightcast
