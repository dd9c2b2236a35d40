#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "os/sim.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A file with this header text (not padded) and this much data.
Bytes FileOf(std::string_view json, size_t data_bytes) {
  Bytes file;
  ByteWriter writer(&file);
  writer.Put(uint64_t{json.size()});
  writer.PutBytes(AsBytes(json));
  file.resize(file.size() + data_bytes);
  return file;
}

Result<SafetensorsHeader> Parse(ByteSpan file) {
  return ParseSafetensorsHeader(file, static_cast<int64_t>(file.size()));
}

void ExpectRefused(ByteSpan file, std::string_view says) {
  const auto header = Parse(file);
  ASSERT_FALSE(header.ok()) << says;
  EXPECT_EQ(header.error().code, Code::kInvalidData);
  EXPECT_THAT(header.error().message, HasSubstr(std::string(says)));
}

// What MakeSafetensorsHeader lays out, with data behind it.
Bytes WriteFile(const std::vector<TensorSpec>& specs,
                const std::map<std::string, std::string>& metadata = {}) {
  SafetensorsHeader header;
  Bytes file = MakeSafetensorsHeader(specs, metadata, &header).value();
  file.resize(static_cast<size_t>(header.file_bytes));
  return file;
}

const std::vector<TensorSpec> kMixed = {
    {"w", DType::kF64, {2, 3}},      {"scale", DType::kF32, {}},
    {"none", DType::kBf16, {0, 4}},  {"also none", DType::kBf16, {0}},
    {"nibbles", DType::kF4, {2, 3}}, {"flag", DType::kBool, {1}}};

// ---- Reading

TEST(SafetensorsReadTest, PlacesTensorsByOffset) {
  const Bytes file = FileOf(
      R"({"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},)"
      R"("__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
      12);
  const SafetensorsHeader header = Parse(file).value();
  const int64_t start = static_cast<int64_t>(file.size()) - 12;
  EXPECT_EQ(header.data_start, start);
  EXPECT_EQ(header.file_bytes, static_cast<int64_t>(file.size()));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].spec, (TensorSpec{"a", DType::kF32, {}}));
  EXPECT_EQ(header.tensors[0].offset, start);
  EXPECT_EQ(header.tensors[1].spec, (TensorSpec{"none", DType::kF32, {0}}));
  EXPECT_EQ(header.tensors[1].offset, start + 4);
  EXPECT_EQ(header.tensors[2].spec, (TensorSpec{"b", DType::kBf16, {2, 2}}));
  EXPECT_EQ(header.tensors[2].offset, start + 4);
}

TEST(SafetensorsReadTest, TakesEveryDtype) {
  for (uint8_t wire = 0; wire < kDTypes; ++wire) {
    const DType dtype = *DTypeFromWire(wire);
    const TensorSpec spec{"t", dtype, {4, 2}};
    const Bytes file = WriteFile({spec});
    EXPECT_EQ(Parse(file)->tensors.at(0).spec, spec) << DTypeName(dtype);
    EXPECT_EQ(static_cast<int>(file.size() - static_cast<size_t>(Parse(file)->data_start)),
              BitsOf(dtype))
        << DTypeName(dtype);
  }
}

// Field report F1.
TEST(SafetensorsReadTest, TakesUnalignedData) {
  const std::string json = R"({"t":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})";
  for (size_t pad = 0; pad < 8; ++pad) {
    const Bytes file = FileOf(json + std::string(pad, ' '), 8);
    const auto header = Parse(file);
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(header->data_start, static_cast<int64_t>(8 + json.size() + pad));
  }
}

// Field report F2.
TEST(SafetensorsReadTest, TakesFilesWithoutTensors) {
  EXPECT_TRUE(Parse(FileOf("{}", 0)).ok());
  EXPECT_TRUE(Parse(FileOf("{}      ", 0)).ok());
  const auto header = Parse(FileOf(R"({"__metadata__":{"a":"b"}})", 0));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->metadata.at("a"), "b");
  EXPECT_TRUE(header->tensors.empty());
}

// Field report F3.
TEST(SafetensorsReadTest, NamesTheOffsetOfANulInThePadding) {
  ExpectRefused(FileOf(std::string("{}\0\0\0\0\0\0", 8), 0), "NUL in the header at byte 10 ");
}

// Field reports F4 and D3.
TEST(SafetensorsReadTest, TakesEmptyTensorsAndScalarsBesideOthers) {
  const Bytes file = WriteFile({{"empty", DType::kF32, {0}},
                                {"empty too", DType::kF32, {2, 0}},
                                {"scalar", DType::kF32, {}},
                                {"matrix", DType::kBf16, {2, 2}}});
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->tensors.size(), 4U);
}

TEST(SafetensorsReadTest, RefusesEachBrokenRule) {
  struct Case {
    const char* name;
    const char* json;
    size_t data;
    const char* says;
  };
  const Case kCases[] = {
      {"NotJson", "{nonsense}", 0, "JSON"},
      {"Array", "[]", 0, "does not begin with '{'"},
      {"LeadingSpace", " {}", 0, "does not begin with '{'"},
      {"Empty", "", 0, "does not begin with '{'"},
      {"TwoDocuments", "{}{}", 0, "JSON"},
      {"DuplicateName",
       R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "duplicate key \"t\""},
      {"DuplicateField", R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "duplicate key \"dtype\""},
      {"Deep", R"({"t":[[[[[]]]]]})", 0, "nested deeper"},
      {"TensorNotObject", R"({"t":1})", 0, "\"t\": expected an object"},
      {"NoDtype", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "\"dtype\" is missing"},
      {"NoShape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "\"shape\" is missing"},
      {"NoOffsets", R"({"t":{"dtype":"U8","shape":[1]}})", 1, "\"data_offsets\" is missing"},
      {"UnknownField", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
       "unknown field \"x\""},
      {"UnknownDtype", R"({"t":{"dtype":"I4","shape":[1],"data_offsets":[0,1]}})", 1,
       "unknown dtype \"I4\""},
      {"DtypeNotText", R"({"t":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1,
       "\"dtype\": expected a string"},
      {"ShapeNotArray", R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1,
       "\"shape\": expected an array"},
      {"NegativeDim", R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
       "expected integers in [0, 2^63), found -1"},
      {"FloatDim", R"({"t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "found 1.0"},
      {"HugeDim", R"({"t":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1,
       "found 9223372036854775808"},
      {"OverflowingShape",
       R"({"t":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "2^62 bytes"},
      {"TooManyDims",
       R"({"t":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
       1, "17 numbers, at most 16"},
      {"HalfByte", R"({"t":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "whole number"},
      {"OneOffset", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", 1, "two numbers"},
      {"ThreeOffsets", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "3 numbers, at most 2"},
      {"Backwards", R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 1, "outside"},
      {"PastEnd", R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1,
       "data_offsets [0, 2) outside the data [0, 1)"},
      {"FarPastEnd",
       R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})",
       1, "outside"},
      {"WrongSize", R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "4 bytes, but F32 [2] has 8"},
      {"Overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlap between \"a\", which ends at 2, and \"b\" at 1"},
      {"SameRange",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "overlap"},
      {"EmptyInside",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
       2, "overlap"},
      {"Gap",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "gap between \"a\", which ends at 1, and \"b\" at 2"},
      {"GapAtStart", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
       "gap between the start"},
      {"TrailingData", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
       "data of 2 bytes, but the tensors end at 1"},
      {"DataWithoutTensors", "{}", 1, "data of 1 bytes, but the tensors end at 0"},
      {"EmptyName", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty name"},
      {"MetadataNotObject", R"({"__metadata__":[]})", 0, "__metadata__: expected an object"},
      {"MetadataNotText", R"({"__metadata__":{"a":1}})", 0, "\"a\": expected a string"},
      {"NotUtf8", "{\"\xff\":{}}", 0, "UTF-8"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    ExpectRefused(FileOf(c.json, c.data), c.says);
  }
}

TEST(SafetensorsReadTest, ListsAllBadTensorsAtOnce) {
  const auto header = Parse(
      FileOf(R"({"a":{"dtype":"X","shape":[],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],)"
             R"("data_offsets":[0,1]},"c":{"dtype":"U8","shape":[3],"data_offsets":[0,1]}})",
             1));
  ASSERT_FALSE(header.ok());
  EXPECT_THAT(header.error().message, AllOf(HasSubstr("\"a\""), HasSubstr("\"c\"")));
  EXPECT_THAT(header.error().message, Not(HasSubstr("\"b\"")));
}

TEST(SafetensorsReadTest, RefusesEveryTruncation) {
  const Bytes file = WriteFile(kMixed, {{"format", "pt"}});
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(ByteSpan(file).first(size)).ok()) << size;
  }
  // The file is whole, but the caller holds too little of it.
  const auto header_bytes =
      static_cast<size_t>(*SafetensorsPrefixBytes(file, static_cast<int64_t>(file.size())));
  for (size_t size = 0; size < header_bytes; ++size) {
    EXPECT_FALSE(
        ParseSafetensorsHeader(ByteSpan(file).first(size), static_cast<int64_t>(file.size())).ok())
        << size;
  }
}

TEST(SafetensorsReadTest, ABitFlipNeverGivesTensorsThatDoNotCoverTheFile) {
  const Bytes good = WriteFile(kMixed, {{"format", "pt"}});
  const auto header_bytes = static_cast<size_t>(Parse(good)->data_start);
  for (size_t bit = 0; bit < 8 * header_bytes; ++bit) {
    Bytes file = good;
    file[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const auto header = Parse(file);
    if (!header.ok()) continue;
    int64_t covered = header->data_start;
    for (const PlacedTensor& tensor : header->tensors) {
      EXPECT_EQ(tensor.offset, covered) << bit;
      covered += tensor.spec.bytes();
    }
    EXPECT_EQ(covered, static_cast<int64_t>(file.size())) << bit;
  }
}

TEST(SafetensorsPrefixTest, BoundsTheHeaderBeforeItIsRead) {
  const auto prefix = [](uint64_t length, int64_t file_bytes) {
    uint8_t first8[8];
    StoreLe(first8, length);
    return SafetensorsPrefixBytes(first8, file_bytes);
  };
  EXPECT_EQ(*prefix(2, 10), 10);
  EXPECT_EQ(*prefix(2, 1000), 10);
  EXPECT_EQ(*prefix(100'000'000, 200'000'000), 100'000'008);
  EXPECT_THAT(prefix(100'000'001, INT64_MAX).error().message, HasSubstr("at most 100000000"));
  EXPECT_THAT(prefix(UINT64_MAX, INT64_MAX).error().message, HasSubstr("at most"));
  EXPECT_THAT(prefix(3, 10).error().message, HasSubstr("past the end of a file of 10 bytes"));
  EXPECT_THAT(prefix(0, 7).error().message, HasSubstr("no room"));
  EXPECT_FALSE(SafetensorsPrefixBytes({}, 0).ok());
}

TEST(SafetensorsReadTest, ReadsTheHeaderOfAFile) {
  os::SimMachine machine;
  os::Fs& fs = machine.world().fs;
  const Bytes good = WriteFile(kMixed);
  ASSERT_TRUE(fs.WriteAtomically("/good", good, false).ok());
  ASSERT_TRUE(fs.WriteAtomically("/cut", ByteSpan(good).first(20), false).ok());
  ASSERT_TRUE(fs.WriteAtomically("/empty", {}, false).ok());
  const auto read = [&fs](const char* path) {
    return ReadSafetensorsHeader(**fs.OpenFile(path, os::Open::kRead));
  };
  EXPECT_EQ(read("/good")->tensors.size(), kMixed.size());
  for (const char* path : {"/cut", "/empty"}) {
    const auto header = read(path);
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.error().code, Code::kInvalidData);
    EXPECT_THAT(header.error().message, HasSubstr(path));
  }
}

// ---- Writing

TEST(SafetensorsWriteTest, ReadsBackAsWritten) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"\xc3\xa9\n", "\"\\\x01"}};
  SafetensorsHeader written;
  const Bytes bytes = MakeSafetensorsHeader(kMixed, metadata, &written).value();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), written.data_start);
  const SafetensorsHeader read = ParseSafetensorsHeader(bytes, written.file_bytes).value();
  EXPECT_EQ(read.metadata, metadata);
  EXPECT_EQ(read.data_start, written.data_start);
  ASSERT_EQ(read.tensors.size(), kMixed.size());
  ASSERT_EQ(written.tensors.size(), kMixed.size());
  int64_t at = written.data_start;
  for (size_t i = 0; i < kMixed.size(); ++i) {
    EXPECT_EQ(written.tensors[i].spec, kMixed[i]);
    EXPECT_EQ(written.tensors[i].offset, at);
    at += kMixed[i].bytes();
  }
  for (const PlacedTensor& tensor : read.tensors) {
    const auto it = std::ranges::find(written.tensors, tensor.spec, &PlacedTensor::spec);
    ASSERT_NE(it, written.tensors.end()) << tensor.spec.name;
    EXPECT_EQ(it->offset, tensor.offset) << tensor.spec.name;
  }
  EXPECT_EQ(at, written.file_bytes);
}

// Field report F1.
TEST(SafetensorsWriteTest, DataStartsAlignedWhateverTheNameLength) {
  for (size_t length = 1; length <= 16; ++length) {
    SafetensorsHeader header;
    const Bytes bytes =
        MakeSafetensorsHeader({{std::string(length, 'n'), DType::kU8, {1}}}, {}, &header).value();
    EXPECT_EQ(header.data_start % 8, 0) << length;
    EXPECT_EQ(bytes.size() % 8, 0U) << length;
    EXPECT_THAT(AsText(bytes).substr(8), testing::Not(HasSubstr(std::string(1, '\0'))));
  }
}

// Field report F2.
TEST(SafetensorsWriteTest, WritesFilesWithoutTensors) {
  EXPECT_EQ(AsText(WriteFile({})).substr(8), "{}      ");
  const auto header = Parse(WriteFile({}, {{"a", "b"}}));
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->metadata.at("a"), "b");
}

TEST(SafetensorsWriteTest, RefusesWhatCannotBeReadBack) {
  struct Case {
    std::vector<TensorSpec> specs;
    std::map<std::string, std::string> metadata;
    const char* says;
  };
  const int64_t most = (int64_t{1} << 62) - 1;
  for (const Case& c :
       {Case{{{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {}, "more than once"},
        Case{{{"", DType::kU8, {1}}}, {}, "empty name"},
        Case{{{"__metadata__", DType::kU8, {1}}}, {}, "reserved"},
        Case{{}, {{"a", "\xff"}}, "not UTF-8"},
        Case{{}, {{"a", std::string(100'000'001, 'x')}}, "at most 100000000"},
        Case{{{"a", DType::kU8, {most}}, {"b", DType::kU8, {most}}, {"c", DType::kU8, {most}}},
             {},
             "2^63"}}) {
    SafetensorsHeader header;
    const auto made = MakeSafetensorsHeader(c.specs, c.metadata, &header);
    ASSERT_FALSE(made.ok()) << c.says;
    EXPECT_EQ(made.error().code, Code::kInvalidData);
    EXPECT_THAT(made.error().message, HasSubstr(c.says));
  }
}

TEST(SafetensorsTest, AHundredThousandTensorsTakeNoQuadraticTime) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100'000; ++i) {
    specs.push_back({"model.layers.7.mlp.experts." + std::to_string(i), DType::kU8, {1}});
  }
  EXPECT_EQ(Parse(WriteFile(specs))->tensors.size(), specs.size());
}

}  // namespace
}  // namespace weightcast::tensor
