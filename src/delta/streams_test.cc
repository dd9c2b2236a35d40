#include "delta/streams.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <random>

namespace weightcast::delta {
namespace {

Bytes Skewed(size_t size) {
  std::mt19937 random(3);
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 4);
  return bytes;
}

Bytes Noise(size_t size) {
  std::mt19937 random(4);
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

Bytes Packed(StreamCoder& coder, const Bytes& content, std::vector<size_t> cuts = {}) {
  Bytes out;
  coder.Pack(content, cuts, Repeats::kFew, &out);
  return out;
}

Status Unpack(StreamCoder& coder, const Bytes& packed, size_t size, Bytes* out) {
  out->assign(size, 0xee);
  ByteReader in(packed);
  WC_TRY(coder.Unpack(in, *out));
  return in.done() ? Ok() : Status(Error{Code::kInvalidData, "bytes behind the stream"});
}

TEST(StreamsTest, WhatDoesNotShrinkIsStored) {
  StreamCoder coder;
  for (const size_t size : {0u, 1u, 20u, 1000u, 70000u}) {
    const Bytes noise = Noise(size);
    const Bytes packed = Packed(coder, noise);
    EXPECT_EQ(packed.size(), size + 1);
    Bytes out;
    EXPECT_TRUE(Unpack(coder, packed, size, &out).ok());
    EXPECT_EQ(out, noise);
  }
}

TEST(StreamsTest, CutsChangeNothingButTheSize) {
  StreamCoder coder;
  Bytes content = Skewed(5000);
  for (size_t i = 2000; i < 5000; ++i) content[i] = static_cast<uint8_t>(content[i] + 100);
  const Bytes whole = Packed(coder, content);
  const Bytes cut = Packed(coder, content, {2000});
  EXPECT_LT(cut.size(), whole.size());
  for (const Bytes& packed : {whole, cut, Packed(coder, content, {0, 1, 2, 4999, 5000})}) {
    Bytes out;
    EXPECT_TRUE(Unpack(coder, packed, content.size(), &out).ok());
    EXPECT_EQ(out, content);
  }
}

TEST(StreamsTest, UnknownRepeatsAreFoundOut) {
  StreamCoder coder;
  Bytes counting(100000);  // a period of 256: no runs, only repeats
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<uint8_t>(i);
  Bytes packed;
  coder.Pack(counting, {}, Repeats::kUnknown, &packed);
  EXPECT_LT(packed.size(), 1000u);
  const Bytes skewed = Skewed(100000);
  packed.clear();
  coder.Pack(skewed, {}, Repeats::kUnknown, &packed);
  EXPECT_EQ(packed, Packed(coder, skewed));
  packed.clear();
  coder.Pack(Noise(100000), {}, Repeats::kUnknown, &packed);
  EXPECT_EQ(packed.size(), 100001u);
}

TEST(StreamsTest, RefusesEveryTruncationAndOtherSizes) {
  StreamCoder coder;
  for (const Bytes& content : {Skewed(300), Noise(40)}) {
    const Bytes packed = Packed(coder, content);
    Bytes out;
    for (size_t n = 0; n < packed.size(); ++n) {
      const Bytes cut(packed.begin(), packed.begin() + static_cast<int64_t>(n));
      EXPECT_EQ(Unpack(coder, cut, content.size(), &out).error().code, Code::kDataLoss);
    }
    EXPECT_FALSE(Unpack(coder, packed, content.size() - 1, &out).ok());
    EXPECT_FALSE(Unpack(coder, packed, content.size() + 1, &out).ok());
  }
}

TEST(StreamsTest, RefusesFramesThatAreNotExactlyOne) {
  StreamCoder coder;
  const Bytes content = Skewed(300);
  Bytes frame(ZSTD_compressBound(300));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1));
  const auto stream = [](const Bytes& of) {
    Bytes packed;
    ByteWriter(&packed).PutVarint(of.size());
    ByteWriter(&packed).PutBytes(of);
    return packed;
  };
  Bytes out;
  ASSERT_TRUE(Unpack(coder, stream(frame), 300, &out).ok());

  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  EXPECT_FALSE(Unpack(coder, stream(twice), 300, &out).ok());
  EXPECT_FALSE(Unpack(coder, stream(twice), 600, &out).ok());
  Bytes skippable = {0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7};
  EXPECT_FALSE(Unpack(coder, stream(skippable), 0, &out).ok());
  skippable.insert(skippable.end(), frame.begin(), frame.end());
  EXPECT_FALSE(Unpack(coder, stream(skippable), 300, &out).ok());

  ZSTD_CCtx* context = ZSTD_createCCtx();  // a frame that does not say its size
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  Bytes silent(400);
  silent.resize(
      ZSTD_compress2(context, silent.data(), silent.size(), content.data(), content.size()));
  ZSTD_freeCCtx(context);
  EXPECT_FALSE(Unpack(coder, stream(silent), 300, &out).ok());
}

}  // namespace
}  // namespace weightcast::delta
