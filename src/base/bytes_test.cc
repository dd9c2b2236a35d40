#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/ids.h"

namespace weightcast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HexTest, RoundTripsEveryByte) {
  Bytes all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  Bytes back(256);
  ASSERT_TRUE(ParseHex(Hex(all), back).ok());
  EXPECT_EQ(back, all);
}

TEST(HexTest, AcceptsBothCasesAndWritesLowerCase) {
  Bytes out(2);
  ASSERT_TRUE(ParseHex("aBcD", out).ok());
  EXPECT_THAT(out, ElementsAre(0xab, 0xcd));
  EXPECT_EQ(Hex(out), "abcd");
}

TEST(HexTest, RefusesAnyOtherText) {
  struct Case {
    std::string_view text;
    std::string_view says;
  };
  constexpr Case kCases[] = {
      {"", "expected 4 hexadecimal digits, found 0"}, {"abc", "found 3"}, {"abcde", "found 5"},
      {"abcg", "not hexadecimal: \"abcg\""},          {"0x12", "0x12"},   {" 123", " 123"},
  };
  for (const Case& c : kCases) {
    Bytes out(2);
    const Status status = ParseHex(c.text, out);
    ASSERT_FALSE(status.ok()) << c.text;
    EXPECT_EQ(status.error().code, Code::kInvalidData);
    EXPECT_THAT(status.error().message, HasSubstr(c.says));
  }
}

TEST(IdTest, ParsesItsOwnHexAndComparesByBytes) {
  const RunUid id = *RunUid::Parse("000102030405060708090a0b0c0d0eff");
  EXPECT_EQ(id.hex(), "000102030405060708090a0b0c0d0eff");
  EXPECT_EQ(id.brief(), "00010203");
  EXPECT_FALSE(id.empty());
  EXPECT_TRUE(RunUid{}.empty());
  EXPECT_LT(RunUid{}, id);
  EXPECT_EQ(RunUid::From(id.bytes()), id);
  EXPECT_FALSE(RunUid::Parse("00").ok());
}

struct VarintCase {
  uint64_t value;
  size_t bytes;
};
constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
constexpr VarintCase kVarints[] = {
    {0, 1},
    {1, 1},
    {127, 1},
    {128, 2},
    {16383, 2},
    {16384, 3},
    {(uint64_t{1} << 56) - 1, 8},
    {uint64_t{1} << 56, 9},
    {(uint64_t{1} << 63) - 1, 9},
    {uint64_t{1} << 63, 10},
    {kMax64, 10},
};

TEST(VarintTest, RoundTripsAtItsBoundaries) {
  for (const VarintCase& c : kVarints) {
    Bytes out;
    ByteWriter(&out).PutVarint(c.value);
    EXPECT_EQ(out.size(), c.bytes) << c.value;
    ByteReader reader(out);
    EXPECT_EQ(reader.GetVarint(), c.value);
    EXPECT_TRUE(reader.done());
  }
}

TEST(VarintTest, RefusesEveryTruncation) {
  for (const VarintCase& c : kVarints) {
    Bytes out;
    ByteWriter(&out).PutVarint(c.value);
    for (size_t n = 0; n < out.size(); ++n) {
      ByteReader reader(ByteSpan(out).first(n));
      EXPECT_EQ(reader.GetVarint(), 0u);
      EXPECT_FALSE(reader.ok()) << c.value << " cut to " << n;
    }
  }
}

TEST(VarintTest, RefusesMoreThan64BitsAndLongForms) {
  const Bytes kBad[] = {
      {0x80, 0x00},                                                        // zero in two bytes
      {0xff, 0x80, 0x00},                                                  // 127 in three
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},        // bit 64
      {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},  // eleven bytes
  };
  for (const Bytes& bad : kBad) {
    ByteReader reader(bad);
    reader.GetVarint();
    EXPECT_FALSE(reader.ok()) << Hex(bad);
  }
}

TEST(ByteReaderTest, ReadsWhatTheWriterWrote) {
  Bytes out;
  ByteWriter writer(&out);
  writer.Put<uint8_t>(1);
  writer.Put<uint16_t>(0x0203);
  writer.Put<int64_t>(-5);
  writer.PutString("name");
  writer.PutString("");
  writer.PutBytes(AsBytes("tail"));

  ByteReader reader(out);
  EXPECT_EQ(reader.Get<uint8_t>(), 1);
  EXPECT_EQ(reader.Get<uint16_t>(), 0x0203);
  EXPECT_EQ(reader.Get<int64_t>(), -5);
  EXPECT_EQ(reader.GetString(4), "name");
  EXPECT_EQ(reader.GetString(0), "");
  EXPECT_EQ(reader.remaining(), 4u);
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(AsText(reader.GetBytes(4)), "tail");
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(reader.position(), out.size());
}

TEST(ByteReaderTest, IsLittleEndian) {
  Bytes out;
  ByteWriter(&out).Put<uint32_t>(0x04030201);
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
}

TEST(ByteReaderTest, StaysFailedAfterAnOverrun) {
  const Bytes in = {1, 2, 3};
  ByteReader reader(in);
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0);
  EXPECT_TRUE(reader.GetBytes(0).empty());
  EXPECT_EQ(reader.GetVarint(), 0u);
  EXPECT_FALSE(reader.done());
}

TEST(ByteReaderTest, BoundsLengthsBeforeItTrustsThem) {
  Bytes out;
  ByteWriter(&out).PutString("too long");
  ByteReader reader(out);
  EXPECT_EQ(reader.GetString(7), "");
  EXPECT_FALSE(reader.ok());

  Bytes huge;
  ByteWriter(&huge).PutVarint(kMax64);
  ByteReader huge_reader(huge);
  EXPECT_EQ(huge_reader.GetString(std::numeric_limits<size_t>::max()), "");
  EXPECT_FALSE(huge_reader.ok());
  ByteReader bytes_reader(huge);
  EXPECT_TRUE(bytes_reader.GetBytes(std::numeric_limits<size_t>::max()).empty());
  EXPECT_FALSE(bytes_reader.ok());
}

TEST(ByteReaderTest, AnEmptyInputIsDoneAtOnce) {
  ByteReader reader({});
  EXPECT_TRUE(reader.done());
  EXPECT_TRUE(reader.GetBytes(0).empty());
  EXPECT_TRUE(reader.done());
}

}  // namespace
}  // namespace weightcast
