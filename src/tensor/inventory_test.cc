#include "tensor/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tensor/root.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Inventory MakeInventory(std::vector<TensorSpec> tensors) {
  return Inventory::Make(std::move(tensors)).value();
}

// ---- DType

TEST(DTypeTest, NamesBitsAndUnitsAreThoseOfSafetensors) {
  struct Row {
    DType dtype;
    const char* name;
    int bits;
    int unit;
  };
  const Row kRows[] = {
      {DType::kBool, "BOOL", 8, 1},
      {DType::kU8, "U8", 8, 1},
      {DType::kI8, "I8", 8, 1},
      {DType::kF8E4M3, "F8_E4M3", 8, 1},
      {DType::kF8E5M2, "F8_E5M2", 8, 1},
      {DType::kF8E8M0, "F8_E8M0", 8, 1},
      {DType::kI16, "I16", 16, 2},
      {DType::kU16, "U16", 16, 2},
      {DType::kF16, "F16", 16, 2},
      {DType::kBf16, "BF16", 16, 2},
      {DType::kI32, "I32", 32, 4},
      {DType::kU32, "U32", 32, 4},
      {DType::kF32, "F32", 32, 4},
      {DType::kI64, "I64", 64, 8},
      {DType::kU64, "U64", 64, 8},
      {DType::kF64, "F64", 64, 8},
      {DType::kC64, "C64", 64, 8},
      {DType::kF4, "F4", 4, 1},
      {DType::kF6E2M3, "F6_E2M3", 6, 1},
      {DType::kF6E3M2, "F6_E3M2", 6, 1},
      {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8, 1},
      {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8, 1},
  };
  ASSERT_EQ(std::size(kRows), kDTypes);
  for (uint8_t wire = 0; wire < kDTypes; ++wire) {
    const Row& row = kRows[wire];
    EXPECT_EQ(static_cast<uint8_t>(row.dtype), wire) << row.name;
    EXPECT_EQ(DTypeName(row.dtype), row.name);
    EXPECT_EQ(BitsOf(row.dtype), row.bits) << row.name;
    EXPECT_EQ(UnitBytes(row.dtype), row.unit) << row.name;
    EXPECT_EQ(DTypeFromName(row.name), row.dtype);
    EXPECT_EQ(DTypeFromWire(wire), row.dtype);
  }
}

TEST(DTypeTest, UnknownNamesAndNumbersAreNothing) {
  for (const char* name : {"", "bf16", "BF16 ", "F8", "I4", "F128"}) {
    EXPECT_EQ(DTypeFromName(name), std::nullopt) << name;
  }
  for (int wire = kDTypes; wire < 256; ++wire) {
    EXPECT_EQ(DTypeFromWire(static_cast<uint8_t>(wire)), std::nullopt) << wire;
  }
}

// ---- TensorSpec

TEST(MatrixTest, EveryKindOfShape) {
  struct Case {
    const char* name;
    DType dtype;
    Shape shape;
    Matrix matrix;
  };
  for (const Case& c :
       {Case{"Scalar", DType::kF32, {}, {1, 1, 4}}, Case{"Vector", DType::kBf16, {7}, {7, 1, 2}},
        Case{"Matrix", DType::kBf16, {7, 5}, {7, 5, 2}},
        Case{"Cube", DType::kI64, {2, 3, 5}, {6, 5, 8}},
        Case{"EmptyVector", DType::kU8, {0}, {0, 1, 1}},
        Case{"NoRows", DType::kF16, {0, 5}, {0, 5, 2}},
        Case{"NoCols", DType::kF16, {5, 0}, {5, 0, 2}},
        Case{"Bool", DType::kBool, {3, 2}, {3, 2, 1}},
        Case{"Complex", DType::kC64, {3, 2}, {3, 2, 8}},
        Case{"Nibbles", DType::kF4, {3, 2}, {1, 3, 1}},
        Case{"NoNibbles", DType::kF4, {0, 2}, {1, 0, 1}},
        Case{"SixBits", DType::kF6E2M3, {2, 4}, {1, 6, 1}}}) {
    const TensorSpec spec{"t", c.dtype, c.shape};
    EXPECT_TRUE(CheckSpec(spec).ok()) << c.name;
    EXPECT_EQ(spec.matrix(), c.matrix) << c.name;
    EXPECT_EQ(spec.bytes(), c.matrix.rows * c.matrix.cols * c.matrix.unit_bytes) << c.name;
    EXPECT_EQ(spec.units(), c.matrix.rows * c.matrix.cols) << c.name;
  }
}

TEST(CheckSpecTest, TakesTheLargestOfEverything) {
  EXPECT_TRUE(CheckSpec({std::string(kNameBytesMax, 'x'), DType::kU8, {1}}).ok());
  EXPECT_TRUE(CheckSpec({"t", DType::kU8, Shape(kDimsMax, 2)}).ok());
  EXPECT_TRUE(CheckSpec({"t", DType::kU8, {(int64_t{1} << 62) - 1}}).ok());
  const TensorSpec nibbles{"t", DType::kF4, {(int64_t{1} << 62) - 8}};
  EXPECT_TRUE(CheckSpec(nibbles).ok());
  EXPECT_EQ(nibbles.bytes(), (int64_t{1} << 61) - 4);
  EXPECT_TRUE(CheckSpec({"t", DType::kF6E3M2, {(int64_t{1} << 62) - 4}}).ok());
}

TEST(CheckSpecTest, TakesOddNames) {
  const std::string long_name(255, 'n');
  for (const std::string& name :
       {std::string("a"), std::string(" "), std::string("a/b"), std::string("\"quoted\\\""),
        std::string("line\nbreak"), std::string("nul\0inside", 10), std::string("\xc3\xa9"),
        std::string("\xf0\x9f\x98\x80"), std::string("__metadata"), long_name}) {
    EXPECT_TRUE(CheckSpec({name, DType::kU8, {1}}).ok()) << name;
  }
}

TEST(CheckSpecTest, NamesWhatIsWrong) {
  struct Case {
    TensorSpec spec;
    const char* says;
  };
  for (const Case& c : {
           Case{{"", DType::kU8, {}}, "empty name"},
           Case{{std::string(kNameBytesMax + 1, 'x'), DType::kU8, {}}, "name of 4097 bytes"},
           Case{{"\xff", DType::kU8, {}}, "not UTF-8"},
           Case{{"\xc0\xaf", DType::kU8, {}}, "not UTF-8"},      // overlong
           Case{{"\xed\xa0\x80", DType::kU8, {}}, "not UTF-8"},  // surrogate
           Case{{"\xf4\x90\x80\x80", DType::kU8, {}}, "not UTF-8"},
           Case{{"a\xe2\x82", DType::kU8, {}}, "not UTF-8"},  // cut
           Case{{"__metadata__", DType::kU8, {}}, "reserved"},
           Case{{"t", DType::kU8, Shape(kDimsMax + 1, 1)}, "17 dimensions, at most 16"},
           Case{{"t", DType::kU8, {2, -1}}, "U8 [2, -1]: negative"},
           Case{{"t", DType::kU8, {int64_t{1} << 62}}, "2^62 bytes"},
           Case{{"t", DType::kF64, {int64_t{1} << 59}}, "2^62 bytes"},
           Case{{"t", DType::kU8, {int64_t{1} << 32, int64_t{1} << 32}}, "2^62 bytes"},
           Case{{"t", DType::kU8, {0, int64_t{1} << 62}}, "2^62 bytes"},
           Case{{"t", DType::kU8, Shape(16, INT64_MAX)}, "2^62 bytes"},
           Case{{"t", DType::kF4, {3}}, "F4 [3]: not a whole number of bytes"},
           Case{{"t", DType::kF6E2M3, {2}}, "not a whole number of bytes"},
       }) {
    const Status status = CheckSpec(c.spec);
    ASSERT_FALSE(status.ok()) << c.says;
    EXPECT_EQ(status.error().code, Code::kInvalidData);
    EXPECT_THAT(status.error().message, HasSubstr(c.says));
    EXPECT_LT(status.error().message.size(), 500U);
  }
}

TEST(TextTest, ShapesAndSpecs) {
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText({4096, 1024}), "[4096, 1024]");
  EXPECT_EQ(SpecText({"t", DType::kBf16, {4096, 1024}}), "BF16 [4096, 1024]");
}

// ---- Inventory

TEST(InventoryTest, SortsByNameBytesAndAddsUp) {
  const Inventory inventory = MakeInventory({{"\xc3\xa9", DType::kU8, {3}},
                                             {"b", DType::kBf16, {2, 2}},
                                             {"B", DType::kF32, {}},
                                             {"empty", DType::kF64, {0, 7}}});
  ASSERT_EQ(inventory.size(), 4U);
  EXPECT_EQ(inventory[0].name, "B");
  EXPECT_EQ(inventory[1].name, "b");
  EXPECT_EQ(inventory[2].name, "empty");
  EXPECT_EQ(inventory[3].name, "\xc3\xa9");
  EXPECT_EQ(inventory.units(), 3 + 4 + 1 + 0);
  EXPECT_EQ(inventory.bytes(), 3 + 8 + 4 + 0);
}

TEST(InventoryTest, FindsEveryNameAndNoOther) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100; ++i) specs.push_back({"t" + std::to_string(i), DType::kU8, {i}});
  const Inventory inventory = MakeInventory(specs);
  for (size_t i = 0; i < inventory.size(); ++i) {
    EXPECT_EQ(inventory.Find(inventory[i].name), static_cast<int64_t>(i));
  }
  for (const char* name : {"", "t", "t100", "u", "t1 "})
    EXPECT_EQ(inventory.Find(name), -1) << name;
  EXPECT_EQ(MakeInventory({}).Find("t"), -1);
}

TEST(InventoryTest, ListsAllOffendersAtOnce) {
  const auto made = Inventory::Make({{"twice", DType::kU8, {1}},
                                     {"good", DType::kU8, {1}},
                                     {"negative", DType::kU8, {-1}},
                                     {"twice", DType::kU8, {2}},
                                     {"twice", DType::kU8, {3}},
                                     {"", DType::kU8, {1}}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kInvalidData);
  EXPECT_EQ(made.error().message,
            "tensor \"\": empty name, tensor \"negative\": U8 [-1]: negative dimension or size of "
            "2^62 bytes and more, tensor \"twice\": more than once");
}

TEST(InventoryTest, RefusesATotalThatOverflows) {
  const int64_t most = (int64_t{1} << 62) - 1;
  const auto made = Inventory::Make(
      {{"a", DType::kU8, {most}}, {"b", DType::kU8, {most}}, {"c", DType::kU8, {most}}});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("2^63"));
}

TEST(InventoryTest, SignatureSeesNameDtypeAndShapeButNotTheOrderGiven) {
  const std::vector<TensorSpec> specs = {{"a", DType::kBf16, {2, 3}}, {"b", DType::kF32, {}}};
  const LayoutSignature signature = MakeInventory(specs).signature();
  EXPECT_EQ(MakeInventory({specs[1], specs[0]}).signature(), signature);
  std::set<LayoutSignature> seen = {signature};
  EXPECT_TRUE(seen.insert(MakeInventory({}).signature()).second);
  EXPECT_TRUE(seen.insert(MakeInventory({specs[0]}).signature()).second);
  EXPECT_TRUE(
      seen.insert(MakeInventory({{"A", DType::kBf16, {2, 3}}, specs[1]}).signature()).second);
  EXPECT_TRUE(
      seen.insert(MakeInventory({{"a", DType::kF16, {2, 3}}, specs[1]}).signature()).second);
  EXPECT_TRUE(
      seen.insert(MakeInventory({{"a", DType::kBf16, {3, 2}}, specs[1]}).signature()).second);
  EXPECT_TRUE(seen.insert(MakeInventory({{"a", DType::kBf16, {6}}, specs[1]}).signature()).second);
}

TEST(DifferenceTextTest, NamesWhatIsMissingUnexpectedAndDifferent) {
  const Inventory expected = MakeInventory(
      {{"gone", DType::kU8, {1}}, {"same", DType::kU8, {1}}, {"wide", DType::kBf16, {2}}});
  const Inventory found = MakeInventory(
      {{"new", DType::kU8, {1}}, {"same", DType::kU8, {1}}, {"wide", DType::kF32, {2}}});
  EXPECT_EQ(DifferenceText(expected, expected), "");
  EXPECT_EQ(DifferenceText(expected, found),
            "missing: gone (U8 [1]); unexpected: new (U8 [1]); different: wide (expected BF16 [2], "
            "found F32 [2])");
}

// ---- Root

TEST(RootTest, EqualsTheGoldens) {
  const Json golden = ReadGolden("root_v1.json");
  ASSERT_GE(golden.at("cases").size(), 6U);
  for (const Json& c : golden.at("cases")) {
    std::vector<TensorSpec> specs;
    std::map<std::string, TensorDigest> digest_of;
    for (const Json& row : c.at("tensors")) {
      const auto name = row.at(0).get<std::string>();
      specs.push_back(
          {name, DTypeFromName(row.at(1).get<std::string>()).value(), row.at(2).get<Shape>()});
      digest_of[name] = TensorDigest::ParseHex(row.at(3).get<std::string>()).value();
    }
    const Inventory inventory = MakeInventory(specs);
    std::vector<TensorDigest> digests;
    for (const TensorSpec& spec : inventory.tensors()) digests.push_back(digest_of[spec.name]);
    EXPECT_EQ(inventory.signature().hex(), c.at("signature").get<std::string>()) << c.at("name");
    EXPECT_EQ(ComputeRoot(inventory, digests).hex(), c.at("root").get<std::string>())
        << c.at("name");
  }
}

TEST(RootTest, SeesOneBitOfOneDigest) {
  const Inventory inventory = MakeInventory({{"a", DType::kU8, {1}}, {"b", DType::kU8, {1}}});
  EXPECT_NE(ComputeRoot(inventory, {{{1, 0}, {2, 0}}}), ComputeRoot(inventory, {{{1, 0}, {3, 0}}}));
  EXPECT_NE(ComputeRoot(inventory, {{{1, 0}, {2, 0}}}), ComputeRoot(inventory, {{{2, 0}, {1, 0}}}));
}

}  // namespace
}  // namespace weightcast::tensor
