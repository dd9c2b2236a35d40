// Recorded shards of real Megatron models against what its own exporter wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "bridge/compile_plan.h"
#include "bridge/convert.h"
#include "bridge/megatron_config.h"
#include "bridge/shard_dir.h"
#include "os/temp_dir.h"
#include "tensor/hf_directory.h"

namespace weightcast::bridge {
namespace {

namespace stdfs = std::filesystem;
using ::testing::HasSubstr;

os::Fs& fs() { return os::RealWorld().fs; }

// The small copies that the repository ships; tests must have them.
stdfs::path Shipped() { return "testdata/megatron"; }
// The whole collection, where it is at hand.
stdfs::path Collection() {
  const char* env = std::getenv("WEIGHTCAST_FIXTURES");
  return stdfs::path(env != nullptr ? env : "../shared/fixtures") / "megatron";
}

// Every <root>/<one of models>/<set> that has shards.
std::vector<std::string> SetsOf(const stdfs::path& root, const std::vector<std::string>& models) {
  std::vector<std::string> sets;
  for (const std::string& model : models) {
    if (!stdfs::exists(root / model)) continue;
    for (const auto& entry : stdfs::directory_iterator(root / model)) {
      if (stdfs::exists(entry.path() / "topology.json")) sets.push_back(entry.path().string());
    }
  }
  std::ranges::sort(sets);
  return sets;
}

// All of the collection.
std::vector<std::string> Models() {
  std::vector<std::string> models;
  if (!stdfs::exists(Collection())) return models;
  for (const auto& entry : stdfs::directory_iterator(Collection())) {
    models.push_back(entry.path().filename().string());
  }
  return models;
}

struct Weights {
  tensor::HfDirectory directory;
  tensor::MappedWeights bytes;

  static Weights Of(const std::string& path) {
    tensor::HfDirectory directory = tensor::HfDirectory::Open(fs(), path).value();
    tensor::MappedWeights bytes = tensor::MappedWeights::Map(fs(), directory, false).value();
    return {std::move(directory), std::move(bytes)};
  }
};

// Megatron's exporter leaves the padded rows of the vocabulary in; ours never lets them out. So the
// oracle counts up to the length that config.json's vocab_size gives.
void ExpectSameTensors(const std::string& converted, const stdfs::path& oracle_file) {
  os::TempDir temp(os::RealWorld());
  stdfs::copy_file(oracle_file, os::JoinPath(temp.path(), tensor::kSingleWeightFile));
  const Weights ours = Weights::Of(converted);
  const Weights oracle = Weights::Of(temp.path());
  ASSERT_EQ(ours.directory.inventory()->size(), oracle.directory.inventory()->size());
  for (size_t i = 0; i < ours.directory.inventory()->size(); ++i) {
    const tensor::TensorSpec& spec = (*ours.directory.inventory())[i];
    SCOPED_TRACE(spec.name);
    ASSERT_EQ(spec.name, (*oracle.directory.inventory())[i].name);
    EXPECT_EQ(spec.dtype, (*oracle.directory.inventory())[i].dtype);
    const ByteSpan mine = ours.bytes.tensor(i);
    const ByteSpan theirs = oracle.bytes.tensor(i);
    ASSERT_LE(mine.size(), theirs.size());
    if (mine.size() < theirs.size()) {
      EXPECT_THAT(spec.name, ::testing::AnyOf("model.embed_tokens.weight", "lm_head.weight"));
      EXPECT_THAT(oracle_file.string(), HasSubstr("tp2pad"));
      EXPECT_EQ(spec.shape[0], 200);
    }
    EXPECT_EQ(AsText(mine), AsText(theirs.first(mine.size())));
  }
}

void ExpectConverts(const std::string& set) {
  os::TempDir out(os::RealWorld());
  const std::string directory = os::JoinPath(out.path(), "hf");
  const auto report = ConvertShards(fs(), set, directory, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->bytes, report->compiled.plan->inventory->bytes());
  stdfs::path oracle = stdfs::path(set) / "hf_export.safetensors";
  if (!stdfs::exists(oracle)) oracle = stdfs::path(set).parent_path() / "hf_export.safetensors";
  ExpectSameTensors(directory, oracle);
  EXPECT_TRUE(stdfs::exists(stdfs::path(directory) / "config.json"));
}

TEST(Fixtures, TheShippedSetsConvertToTheExportBitForBit) {
  const std::vector<std::string> sets = SetsOf(Shipped(), {"qwen3"});
  ASSERT_GE(sets.size(), 2U);
  for (const std::string& set : sets) {
    SCOPED_TRACE(set);
    ExpectConverts(set);
  }
}

class Collected : public ::testing::TestWithParam<std::string> {};

TEST_P(Collected, ConvertsToTheExportBitForBit) { ExpectConverts(GetParam()); }

std::string SetName(const std::string& path) {
  std::string name = stdfs::path(path).parent_path().filename().string() + "_" +
                     stdfs::path(path).filename().string();
  std::ranges::replace(name, '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Megatron, Collected, ::testing::ValuesIn(SetsOf(Collection(), Models())),
                         [](const auto& set) { return SetName(set.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Collected);

// P4, and acceptance 3's ground: whatever the layout, the same tensors.
TEST(Fixtures, EveryLayoutOfOneModelHasTheSameInventory) {
  for (const std::string& model : Models()) {
    std::shared_ptr<const tensor::Inventory> first;
    std::set<std::string> hashes;
    const std::vector<std::string> sets = SetsOf(Collection(), {model});
    for (const std::string& set : sets) {
      SCOPED_TRACE(set);
      const ShardDir dir = OpenShardDir(fs(), set, "").value();
      const CompiledPlan compiled = CompilePlan(dir.model, dir.trainer, {}).value();
      hashes.insert(compiled.hash.hex());
      if (!first) first = compiled.plan->inventory;
      EXPECT_EQ(first->signature(), compiled.plan->inventory->signature());
    }
    EXPECT_EQ(hashes.size(), sets.size()) << "each layout is a plan of its own";
  }
}

// The recorded coordinates and layer numbers of every set, also of families without rules yet.
TEST(Fixtures, ComputedCoordinatesAndLayersAreTheRecordedOnes) {
  int ranks = 0;
  if (!stdfs::exists(Collection())) GTEST_SKIP() << "no collection at " << Collection();
  for (const auto& model : stdfs::directory_iterator(Collection())) {
    for (const std::string& set : SetsOf(Collection(), {model.path().filename().string()})) {
      SCOPED_TRACE(set);
      const Bytes topology = fs().ReadAll(set + "/topology.json", kTopologyBytesMax).value();
      const auto config = MegatronConfig::Parse(AsText(topology));
      ASSERT_TRUE(config.ok()) << config.error().message;
      for (int32_t r = 0; r < config->topology.world; ++r) {
        const Bytes record =
            fs().ReadAll(set + "/rank" + std::to_string(r) + ".json", kTopologyBytesMax).value();
        const Status same = CheckRankRecord(config->topology, r, AsText(record));
        EXPECT_TRUE(same.ok()) << same.error().message;
        ++ranks;
      }
    }
  }
  EXPECT_GT(ranks, 100);
}

}  // namespace
}  // namespace weightcast::bridge
