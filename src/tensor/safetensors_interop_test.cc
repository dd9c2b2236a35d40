// Our half of tests/interop/safetensors_test.py, which names the directory in WC_INTEROP_DIR.
// Without it our writer meets our reader in a directory of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "os/world.h"
#include "tensor/safetensors.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

struct OurFile {
  const char* name;
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> metadata;
};

std::vector<OurFile> OurFiles() {
  std::vector<TensorSpec> every;  // widest units first: aligned
  for (const int unit : {8, 4, 2, 1}) {
    for (uint8_t wire = 0; wire < kDTypes; ++wire) {
      const DType dtype = *DTypeFromWire(wire);
      if (UnitBytes(dtype) == unit) every.push_back({std::string(DTypeName(dtype)), dtype, {3, 8}});
    }
  }
  return {
      {"empty", {}, {}},
      {"metadata_only", {}, {{"format", "pt"}, {"\xc3\xa9", "line\nquote\"\\ \x01"}}},
      {"every_dtype", every, {{"format", "np"}}},
      {"empty_and_scalar",
       {{"none", DType::kF32, {0}},
        {"none too", DType::kF32, {2, 0}},
        {"scalar", DType::kF32, {}},
        {"matrix", DType::kF32, {2, 3}},
        {"last", DType::kF16, {0, 7}}},
       {}},
      {"unaligned", {{"odd", DType::kU8, {3}}, {"wide", DType::kF64, {2}}}, {}},
      {"odd_names",
       {{" ", DType::kU8, {1}},
        {"a/b\\c\"d", DType::kU8, {1}},
        {"line\nbreak\ttab", DType::kU8, {1}},
        {"\xf0\x9f\x98\x80 \xe2\x80\xa8", DType::kU8, {1}},
        {std::string("nul\0", 4), DType::kU8, {1}},
        {std::string(300, 'n'), DType::kU8, {1}}},
       {}},
  };
}

class SafetensorsInteropTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* dir = std::getenv("WC_INTEROP_DIR")) {
      dir_ = dir;
      return;
    }
    own_ = true;
    dir_ = testing::TempDir() + "weightcast_interop_" + std::to_string(getpid());
    ASSERT_TRUE(fs().MakeDirectories(dir_).ok());
    WriteOurFiles();
  }
  void TearDown() override {
    if (own_) {
      ASSERT_TRUE(fs().RemoveTree(dir_).ok());
    }
  }

  os::Fs& fs() { return os::RealWorld().fs; }
  std::string Path(const std::string& name) const { return os::JoinPath(dir_, name); }

  void Write(const std::string& name, ByteSpan bytes) {
    ASSERT_TRUE(fs().WriteAtomically(Path(name), bytes, false).ok());
  }

  // What a file holds, as the other side is to see it.
  Json Describe(const SafetensorsHeader& header, ByteSpan file) {
    Json tensors = Json::array();
    for (const PlacedTensor& tensor : header.tensors) {
      const ByteSpan bytes = file.subspan(static_cast<size_t>(tensor.offset),
                                          static_cast<size_t>(tensor.spec.bytes()));
      tensors.push_back(
          {tensor.spec.name, DTypeName(tensor.spec.dtype), tensor.spec.shape, Hex(bytes)});
    }
    return {{"metadata", header.metadata}, {"tensors", tensors}};
  }

  void WriteOurFiles() {
    uint64_t seed = 0;
    for (const OurFile& ours : OurFiles()) {
      SafetensorsHeader header;
      Bytes file = MakeSafetensorsHeader(ours.specs, ours.metadata, &header).value();
      const Bytes data =
          Pattern(++seed, static_cast<size_t>(header.file_bytes - header.data_start));
      file.insert(file.end(), data.begin(), data.end());
      Write(std::string(ours.name) + ".safetensors", file);
      const std::string description = Describe(header, file).dump();
      Write(std::string(ours.name) + ".json", AsBytes(description));
    }
  }

  std::string dir_;
  bool own_ = false;
};

TEST_F(SafetensorsInteropTest, WritesFilesForOthers) {
  WriteOurFiles();
  EXPECT_GE(fs().List(dir_)->size(), 2 * OurFiles().size());
}

TEST_F(SafetensorsInteropTest, DescribesFilesOfOthers) {
  constexpr std::string_view kSuffix = ".safetensors";
  int files = 0;
  const std::vector<std::string> names = fs().List(dir_).value();
  for (const std::string& name : names) {
    if (!name.ends_with(kSuffix)) continue;
    ++files;
    const Bytes bytes = fs().ReadAll(Path(name), int64_t{1} << 30).value();
    const auto header = ParseSafetensorsHeader(bytes, static_cast<int64_t>(bytes.size()));
    const Json seen =
        header.ok() ? Describe(*header, bytes) : Json{{"error", header.error().message}};
    // An error quotes what it found, which need not be UTF-8.
    const std::string text = seen.dump(-1, ' ', false, Json::error_handler_t::replace);
    Write(name.substr(0, name.size() - kSuffix.size()) + ".json", AsBytes(text));
    EXPECT_TRUE(header.ok() || !own_) << text;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace weightcast::tensor
