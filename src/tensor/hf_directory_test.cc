#include "tensor/hf_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <utility>

#include "base/hash.h"
#include "base/units.h"
#include "os/sim.h"
#include "os/world.h"
#include "tensor/testing.h"

namespace weightcast::tensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorSpec U8(const std::string& name, int64_t n = 3) { return {name, DType::kU8, {n}}; }

// A checkpoint directory on some file system.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest(os::Fs& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  void SetUp() override { ASSERT_TRUE(fs_.MakeDirectories(dir_).ok()); }

  os::Fs& fs() { return fs_; }
  const std::string& dir() const { return dir_; }

  void WriteText(const std::string& name, std::string_view text) {
    const std::string path = os::JoinPath(dir_, name);
    ASSERT_TRUE(fs_.MakeDirectories(os::ParentPath(path)).ok());
    ASSERT_TRUE(fs_.WriteAtomically(path, AsBytes(text), false).ok());
  }
  // Content follows from the tensor's name.
  void WriteWeights(const std::string& name, const std::vector<TensorSpec>& specs) {
    SafetensorsHeader header;
    Bytes file = MakeSafetensorsHeader(specs, {}, &header).value();
    for (const TensorSpec& spec : specs) {
      const Bytes content = ContentOf(spec);
      file.insert(file.end(), content.begin(), content.end());
    }
    WriteText(name, AsText(file));
  }
  void WriteIndex(const WeightMap& weight_map, const std::string& prefix = "") {
    const Json json = {{"metadata", {{"total_size", 0}}}, {"weight_map", weight_map}};
    WriteText(prefix + kIndexFile, json.dump());
  }
  static Bytes ContentOf(const TensorSpec& spec) {
    return Pattern(Xxh3(AsBytes(spec.name)), static_cast<size_t>(spec.bytes()));
  }

  std::string OpenError(const std::string& prefix = "") {
    const auto opened = HfDirectory::Open(fs_, dir_, prefix);
    if (opened.ok()) return "opened";
    EXPECT_EQ(opened.error().code, Code::kInvalidData) << opened.error().message;
    return opened.error().message;
  }

 private:
  os::Fs& fs_;
  std::string dir_;
};

struct Machine {
  os::SimMachine machine;
};

// In memory.
class HfDirectoryTest : private Machine, public CheckpointTest {
 protected:
  HfDirectoryTest() : CheckpointTest(machine.world().fs, "/hf") {}
};

// On disk, for what the simulated machine lacks.
class HfDirectoryOnDiskTest : public CheckpointTest {
 protected:
  HfDirectoryOnDiskTest()
      : CheckpointTest(os::RealWorld().fs, testing::TempDir() + "weightcast_hf_directory_" +
                                               std::to_string(getpid()) + "/hf") {}
  void TearDown() override { ASSERT_TRUE(fs().RemoveTree(os::ParentPath(dir())).ok()); }
};

// ---- Opening

TEST_F(HfDirectoryTest, OpensASingleFile) {
  WriteWeights("model.safetensors", {U8("b"), U8("a", 5)});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  ASSERT_EQ(directory.weight_files().size(), 1U);
  EXPECT_EQ(directory.weight_path(0), "/hf/model.safetensors");
  ASSERT_EQ(directory.inventory()->size(), 2U);
  EXPECT_EQ((*directory.inventory())[0].name, "a");
  const int64_t start = directory.weight_files()[0].header.data_start;
  EXPECT_EQ(directory.places()[0].offset, start + 3);
  EXPECT_EQ(directory.places()[1].offset, start);
}

TEST_F(HfDirectoryTest, OpensShardsOfAnIndexAndIgnoresOtherWeightFiles) {
  WriteWeights("model-00001-of-00002.safetensors", {U8("c"), U8("a")});
  WriteWeights("model-00002-of-00002.safetensors", {U8("b")});
  WriteWeights("sub/more.safetensors", {U8("d")});
  WriteWeights("consolidated.safetensors", {U8("x")});
  WriteIndex({{"a", "model-00001-of-00002.safetensors"},
              {"b", "model-00002-of-00002.safetensors"},
              {"c", "model-00001-of-00002.safetensors"},
              {"d", "sub/more.safetensors"}});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  EXPECT_EQ(directory.inventory()->size(), 4U);
  EXPECT_EQ(directory.weight_files().size(), 3U);
  EXPECT_EQ(directory.places()[0].file, 0);
  EXPECT_EQ(directory.places()[1].file, 1);
  EXPECT_EQ(directory.places()[3].file, 2);
  EXPECT_EQ(directory.weight_path(2), "/hf/sub/more.safetensors");
}

TEST_F(HfDirectoryTest, PrefersModelSafetensorsWithoutAnIndex) {
  WriteWeights("model.safetensors", {U8("a")});
  WriteWeights("consolidated.safetensors", {U8("b")});
  EXPECT_EQ((*HfDirectory::Open(fs(), dir())->inventory())[0].name, "a");
}

TEST_F(HfDirectoryTest, TakesTheOnlyWeightFileWhateverItsName) {
  WriteWeights("weights.safetensors", {U8("a")});
  WriteWeights(".hidden.safetensors", {U8("b")});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  EXPECT_EQ(directory.weight_path(0), "/hf/weights.safetensors");
}

TEST_F(HfDirectoryTest, TakesAnIndexThatNamesModelSafetensors) {
  WriteWeights("model.safetensors", {U8("a")});
  WriteIndex({{"a", "model.safetensors"}});
  EXPECT_EQ(OpenError(), "opened");
}

TEST_F(HfDirectoryTest, TakesFilesWithoutTensors) {
  WriteWeights("model.safetensors", {});
  EXPECT_EQ(HfDirectory::Open(fs(), dir())->inventory()->size(), 0U);
  WriteIndex({});
  EXPECT_THAT(OpenError(), HasSubstr("lies beside an index"));
}

TEST_F(HfDirectoryTest, AnImageThatIsBeingWrittenWearsDotNames) {
  WriteWeights(".model-1.safetensors", {U8("a")});
  WriteWeights("sub/.model-2.safetensors", {U8("b")});
  WriteIndex({{"a", "model-1.safetensors"}, {"b", "sub/model-2.safetensors"}}, ".");
  EXPECT_THAT(OpenError(), HasSubstr("no weight file"));
  const HfDirectory directory = HfDirectory::Open(fs(), dir(), ".").value();
  EXPECT_EQ(directory.inventory()->size(), 2U);
  EXPECT_EQ(directory.weight_files()[0].name, "model-1.safetensors");
  EXPECT_EQ(directory.weight_path(0), "/hf/.model-1.safetensors");
  EXPECT_EQ(directory.weight_path(1), "/hf/sub/.model-2.safetensors");
}

TEST_F(HfDirectoryTest, ASingleFileMayWearADotNameToo) {
  WriteWeights(".model.safetensors", {U8("a")});
  EXPECT_THAT(OpenError(), HasSubstr("no weight file"));
  EXPECT_EQ(HfDirectory::Open(fs(), dir(), ".")->weight_path(0), "/hf/.model.safetensors");
}

TEST_F(HfDirectoryTest, RefusesADirectoryWithoutOrWithTooManyWeightFiles) {
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(dir()), HasSubstr("no weight file")));
  WriteWeights("one.safetensors", {U8("a")});
  WriteWeights("two.safetensors", {U8("b")});
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("one.safetensors"), HasSubstr("two.safetensors")));
}

TEST_F(HfDirectoryTest, AMissingDirectoryIsNotFound) {
  EXPECT_EQ(HfDirectory::Open(fs(), "/nowhere").error().code, Code::kNotFound);
}

TEST_F(HfDirectoryTest, ListsAllMissingAndMalformedShards) {
  WriteText("cut.safetensors", "xyz");
  WriteWeights("good.safetensors", {U8("g")});
  WriteIndex({{"a", "gone.safetensors"},
              {"b", "gone too.safetensors"},
              {"c", "cut.safetensors"},
              {"g", "good.safetensors"}});
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("gone.safetensors"), HasSubstr("gone too.safetensors"),
                                 HasSubstr("cut.safetensors")));
}

TEST_F(HfDirectoryTest, ListsEveryDisagreementOfIndexAndShards) {
  WriteWeights("1.safetensors", {U8("right"), U8("unlisted"), U8("elsewhere"), U8("twice")});
  WriteWeights("2.safetensors", {U8("twice")});
  WriteIndex({{"right", "1.safetensors"},
              {"elsewhere", "2.safetensors"},
              {"twice", "1.safetensors"},
              {"absent", "2.safetensors"}});
  const std::string error = OpenError();
  EXPECT_THAT(error, HasSubstr("\"unlisted\" is in 1.safetensors, but not in the index"));
  EXPECT_THAT(error, HasSubstr("\"elsewhere\" is in 1.safetensors, but the index says 2.safe"));
  EXPECT_THAT(error, HasSubstr("\"elsewhere\" is not in 2.safetensors, where the index says"));
  EXPECT_THAT(error, HasSubstr("\"twice\" is in 2.safetensors, but the index says 1.safetensors"));
  EXPECT_THAT(error, HasSubstr("\"absent\" is not in 2.safetensors, where the index says"));
  EXPECT_THAT(error, testing::Not(HasSubstr("\"right\"")));
}

TEST_F(HfDirectoryTest, RefusesModelSafetensorsBesideAnIndexThatDoesNotNameIt) {
  WriteWeights("model.safetensors", {U8("a")});
  WriteWeights("shard.safetensors", {U8("a")});
  WriteIndex({{"a", "shard.safetensors"}});
  EXPECT_THAT(OpenError(), HasSubstr("model.safetensors: lies beside an index"));
}

// The hub's cache is made of links that lead out of the directory.
TEST_F(HfDirectoryOnDiskTest, FollowsSymbolicLinksToWeightAndSideFiles) {
  WriteWeights("../blobs/1.safetensors", {U8("a")});
  WriteText("../blobs/2", "{}");
  std::filesystem::create_symlink("../blobs/1.safetensors", dir() + "/model.safetensors");
  std::filesystem::create_symlink("../blobs/2", dir() + "/config.json");
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  const MappedWeights weights = MappedWeights::Map(fs(), directory, false).value();
  EXPECT_TRUE(std::ranges::equal(weights.tensor(0), ContentOf(U8("a"))));
  EXPECT_EQ(HashSideFiles(fs(), dir())->size(), 1U);
}

// ---- The index

TEST(ParseIndexJsonTest, RefusesEveryNameThatLeadsOutOrHasTwoSpellings) {
  for (const std::string& name :
       {std::string(""), std::string("/etc/x.safetensors"), std::string("../x.safetensors"),
        std::string("a/../x.safetensors"), std::string("./x.safetensors"),
        std::string("a//x.safetensors"), std::string("a/.x.safetensors"),
        std::string(".a/x.safetensors"), std::string("x.safetensors/"),
        std::string("a\\x.safetensors"), std::string("x.bin"), std::string("x.safetensors.bin"),
        std::string(".safetensors"), std::string("a/.safetensors"),
        std::string("x\0.safetensors", 14), std::string("x\n.safetensors"),
        std::string(5000, 'x') + ".safetensors"}) {
    const Json json = {{"weight_map", {{"good", "x.safetensors"}, {"bad", name}}}};
    const auto parsed = ParseIndexJson(json.dump());
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.error().code, Code::kInvalidData);
    EXPECT_THAT(parsed.error().message, HasSubstr("\"bad\": not the name of a weight file"));
    EXPECT_THAT(parsed.error().message, testing::Not(HasSubstr("\"good\"")));
  }
}

TEST(ParseIndexJsonTest, TakesOrdinaryNames) {
  for (const char* name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "a/b/model.safetensors",
        "odd name..safetensors", "\xc3\xa9.safetensors"}) {
    const Json json = {{"metadata", {{"total_size", 1.5e9}}}, {"weight_map", {{"t", name}}}};
    const auto parsed = ParseIndexJson(json.dump());
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->at("t"), name);
  }
}

TEST(ParseIndexJsonTest, RefusesWhatIsNotAnIndex) {
  struct Case {
    const char* json;
    const char* says;
  };
  for (const Case& c :
       {Case{"", "JSON"}, Case{"[]", "expected an object"}, Case{"{}", "\"weight_map\" is missing"},
        Case{R"({"weight_map":[]})", "expected an object"},
        Case{R"({"weight_map":{"t":1}})", "\"t\": expected a file name"},
        Case{R"({"weight_map":{"t":"a.safetensors","t":"b.safetensors"}})", "duplicate key \"t\""},
        Case{R"({"weight_map":{}} x)", "JSON"}}) {
    const auto parsed = ParseIndexJson(c.json);
    ASSERT_FALSE(parsed.ok()) << c.json;
    EXPECT_EQ(parsed.error().code, Code::kInvalidData);
    EXPECT_THAT(parsed.error().message, HasSubstr(c.says));
  }
}

TEST(ParseIndexJsonTest, RefusesEveryTruncation) {
  const std::string text = R"({"weight_map":{"t":"a.safetensors"}})";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseIndexJson(text.substr(0, size)).ok()) << size;
  }
}

// ---- Side files

TEST_F(HfDirectoryTest, HashesSideFilesBelowButNeitherWeightsNorHiddenNames) {
  WriteWeights("model.safetensors", {U8("a")});
  WriteWeights("original/consolidated.safetensors", {U8("b")});
  WriteText("config.json", "{}");
  WriteText("tokenizer/vocab.txt", "vocabulary");
  WriteText("a.txt", "");
  WriteText(".gitattributes", "x");
  WriteText(".cache/file", "x");
  const auto files = HashSideFiles(fs(), dir()).value();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, "a.txt");
  EXPECT_EQ(files[0].bytes, 0);
  EXPECT_EQ(files[0].sha256, Sha256::Of({}));
  EXPECT_EQ(files[1].name, "config.json");
  EXPECT_EQ(files[2].name, "tokenizer/vocab.txt");
  EXPECT_EQ(files[2].bytes, 10);
  EXPECT_EQ(files[2].sha256, Sha256::Of(AsBytes("vocabulary")));
}

TEST_F(HfDirectoryTest, TheIndexIsASideFile) {
  WriteWeights("1.safetensors", {U8("a")});
  WriteIndex({{"a", "1.safetensors"}});
  const auto files = HashSideFiles(fs(), dir()).value();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, kIndexFile);
}

TEST_F(HfDirectoryTest, HashesASideFileOfSeveralBuffers) {
  WriteWeights("model.safetensors", {U8("a")});
  const Bytes content = Pattern(1, (size_t{2} << 20) + 5);
  WriteText("tokenizer.json", AsText(content));
  EXPECT_EQ(HashSideFiles(fs(), dir())->at(0).sha256, Sha256::Of(content));
}

TEST_F(HfDirectoryTest, RefusesSideFilesThatLieTooDeep) {
  WriteWeights("model.safetensors", {U8("a")});
  WriteText("1/2/3/4/5/6/7/8/file", "x");
  EXPECT_EQ(HashSideFiles(fs(), dir())->size(), 1U);
  WriteText("1/2/3/4/5/6/7/8/9/file", "x");
  EXPECT_THAT(HashSideFiles(fs(), dir()).error().message, HasSubstr("deeper than 8"));
}

TEST_F(HfDirectoryOnDiskTest, ListsSideFilesThatAreTooLarge) {
  WriteWeights("model.safetensors", {U8("a")});
  for (const char* name : {"pytorch_model.bin", "model.gguf"}) {
    auto file = fs().OpenFile(os::JoinPath(dir(), name), os::Open::kCreate).value();
    ASSERT_TRUE(file->Truncate(kGiB + 1).ok());  // sparse
  }
  const auto hashed = HashSideFiles(fs(), dir());
  ASSERT_FALSE(hashed.ok());
  EXPECT_EQ(hashed.error().code, Code::kInvalidData);
  EXPECT_THAT(hashed.error().message,
              AllOf(HasSubstr("pytorch_model.bin of 1073741825 bytes"), HasSubstr("model.gguf")));
}

// ---- Mapping and digesting

TEST_F(HfDirectoryTest, MapsEveryTensorOfEveryFile) {
  const std::vector<TensorSpec> first = {{"c", DType::kF64, {2, 3}}, {"a", DType::kF32, {}}};
  const std::vector<TensorSpec> second = {{"b", DType::kBf16, {0, 4}}, {"d", DType::kU8, {5}}};
  WriteWeights("1.safetensors", first);
  WriteWeights("2.safetensors", second);
  WriteIndex({{"a", "1.safetensors"},
              {"c", "1.safetensors"},
              {"b", "2.safetensors"},
              {"d", "2.safetensors"}});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  const MappedWeights weights = MappedWeights::Map(fs(), directory, false).value();
  const Inventory& inventory = *directory.inventory();
  ASSERT_EQ(inventory.size(), 4U);
  const auto digests = DigestAll(inventory, weights, 2).value();
  for (size_t i = 0; i < inventory.size(); ++i) {
    const Bytes content = ContentOf(inventory[i]);
    EXPECT_TRUE(std::ranges::equal(weights.tensor(i), content)) << inventory[i].name;
    EXPECT_EQ(digests[i], DigestRun(0, content)) << inventory[i].name;
    EXPECT_EQ(weights.place(i).offset, directory.places()[i].offset);
  }
}

TEST_F(HfDirectoryTest, WritesThroughAWritableMapping) {
  WriteWeights("model.safetensors", {U8("a", 4)});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  {
    MappedWeights weights = MappedWeights::Map(fs(), directory, true).value();
    weights.file(0).Update(weights.place(0).offset + 1, 2, [](MutableByteSpan bytes) {
      bytes[0] = 0xaa;
      bytes[1] = 0xbb;
    });
  }
  const MappedWeights weights = MappedWeights::Map(fs(), directory, false).value();
  EXPECT_EQ(weights.tensor(0)[1], 0xaa);
  EXPECT_EQ(weights.tensor(0)[2], 0xbb);
}

TEST_F(HfDirectoryTest, RefusesToMapAFileThatChangedItsSize) {
  WriteWeights("model.safetensors", {U8("a", 4)});
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  WriteText("model.safetensors", "short");
  const auto mapped = MappedWeights::Map(fs(), directory, false);
  ASSERT_FALSE(mapped.ok());
  EXPECT_EQ(mapped.error().code, Code::kInvalidData);
  EXPECT_THAT(mapped.error().message, HasSubstr("as its header says, found 5"));
}

TEST_F(HfDirectoryTest, DigestsPiecesOfALargeTensorOnAnyNumberOfThreads) {
  // Several pieces, the last one short and ending inside a word.
  const std::vector<TensorSpec> specs = {U8("large", (20 << 20) + 7), U8("small")};
  WriteWeights("model.safetensors", specs);
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  const MappedWeights weights = MappedWeights::Map(fs(), directory, false).value();
  for (const int threads : {0, 1, 2, 5}) {
    std::atomic<int64_t> most{0};
    const auto digests =
        DigestAll(*directory.inventory(), weights, threads, [&](int64_t done) {
          for (int64_t seen = most; done > seen && !most.compare_exchange_weak(seen, done);) {
          }
        }).value();
    EXPECT_EQ(digests[0], DigestRun(0, weights.tensor(0)));
    EXPECT_EQ(digests[1], DigestRun(0, weights.tensor(1)));
    EXPECT_EQ(most, directory.inventory()->bytes());
  }
}

// ---- Planning

TEST(PlanWeightFilesTest, OneFileIfAllFit) {
  const Inventory inventory = Inventory::Make({U8("a", 4), U8("b", 6)}).value();
  const auto files = PlanWeightFiles(inventory, 10);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, "model.safetensors");
  EXPECT_EQ(files[0].tensors, inventory.tensors());
}

TEST(PlanWeightFilesTest, CutsWhereTheNextTensorNoLongerFits) {
  const Inventory inventory =
      Inventory::Make({U8("a", 4), U8("b", 6), U8("c", 1), U8("d", 99), U8("e", 0)}).value();
  const auto files = PlanWeightFiles(inventory, 10);
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(files[2].name, "model-00003-of-00003.safetensors");
  EXPECT_EQ(files[0].tensors.size(), 2U);
  EXPECT_EQ(files[1].tensors.size(), 1U);
  EXPECT_EQ(files[2].tensors.size(), 2U);  // an empty one always fits
}

TEST(PlanWeightFilesTest, AnEmptyInventoryHasOneEmptyFile) {
  const auto files = PlanWeightFiles(Inventory::Make({}).value(), 10);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_TRUE(files[0].tensors.empty());
}

TEST(PlanWeightFilesTest, KeepsEveryTensorAligned) {
  const Inventory inventory = Inventory::Make({{"a", DType::kU8, {3}},
                                               {"b", DType::kBf16, {5}},
                                               {"c", DType::kF64, {1}},
                                               {"d", DType::kF32, {}},
                                               {"e", DType::kBf16, {1}},
                                               {"f", DType::kF6E2M3, {4}}})
                                  .value();
  const auto files = PlanWeightFiles(inventory, 1000);
  ASSERT_EQ(files.size(), 1U);
  SafetensorsHeader header;
  ASSERT_TRUE(MakeSafetensorsHeader(files[0].tensors, {}, &header).ok());
  std::string names;
  for (const PlacedTensor& tensor : header.tensors) {
    EXPECT_EQ(tensor.offset % UnitBytes(tensor.spec.dtype), 0) << tensor.spec.name;
    names += tensor.spec.name;
  }
  EXPECT_EQ(names, "cdbeaf");
}

TEST_F(HfDirectoryTest, WhatIsPlannedOpensAgain) {
  const Inventory inventory =
      Inventory::Make({U8("a", 4), U8("odd \"name\"\n", 6), U8("c", 7), {"d", DType::kF32, {2}}})
          .value();
  const auto files = PlanWeightFiles(inventory, 10);
  ASSERT_GT(files.size(), 1U);
  for (const PlannedFile& file : files) WriteWeights(file.name, file.tensors);
  WriteText(kIndexFile, IndexJson(files));
  const HfDirectory directory = HfDirectory::Open(fs(), dir()).value();
  EXPECT_EQ(*directory.inventory(), inventory);
  EXPECT_EQ(directory.weight_files().size(), files.size());
}

TEST(IndexJsonTest, LooksAsOthersWriteIt) {
  const std::vector<PlannedFile> files = {{"1.safetensors", {U8("b", 4)}},
                                          {"2.safetensors", {U8("a", 6)}}};
  EXPECT_EQ(IndexJson(files),
            "{\n  \"metadata\": {\n    \"total_size\": 10\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"2.safetensors\",\n    \"b\": \"1.safetensors\"\n  }\n}\n");
  EXPECT_TRUE(ParseIndexJson(IndexJson({})).ok());
}

}  // namespace
}  // namespace weightcast::tensor
