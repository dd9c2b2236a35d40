#include "bridge/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/toy_trainer_testing.h"
#include "os/sim.h"
#include "tensor/hf_directory.h"

namespace weightcast::bridge {
namespace {

using layout::Topology;
using tensor::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Shards of a toy model in a simulated machine: "/run/shards" with "/run/hf_source/config.json".
class Convert : public ::testing::Test {
 protected:
  Convert() {
    model_.layers = 2;
    topology_.num_layers = 2;
  }

  os::Fs& fs() { return machine_.world().fs; }

  void WriteText(const std::string& path, std::string_view text) {
    ASSERT_TRUE(fs().MakeDirectories(os::ParentPath(path)).ok());
    ASSERT_TRUE(fs().WriteAtomically(path, AsBytes(text), false).ok());
  }

  void WriteTensors(const std::string& path, const ToyTensors& tensors) {
    std::vector<tensor::TensorSpec> specs;
    Bytes data;
    for (const auto& [name, tensor] : tensors) {
      specs.push_back({name, DType::kF32, tensor.shape()});
      const auto* bits = reinterpret_cast<const uint8_t*>(tensor.bits.data());
      data.insert(data.end(), bits, bits + tensor.bits.size() * 4);
    }
    tensor::SafetensorsHeader header;
    Bytes file = tensor::MakeSafetensorsHeader(specs, {}, &header).value();
    file.insert(file.end(), data.begin(), data.end());
    WriteText(path, AsText(file));
  }

  // Writes all ranks; `spoil` may change what a rank holds.
  void WriteShards(const std::function<void(int32_t rank, ToyTensors&)>& spoil = {}) {
    WriteText("/run/hf_source/config.json", ConfigJson(model_));
    WriteText("/run/hf_source/tokenizer.json", "{}");
    WriteText("/run/shards/topology.json", TopologyJson(model_, topology_));
    for (int32_t r = 0; r < topology_.world; ++r) {
      ToyTensors shard = ShardTensors(model_, topology_, r);
      if (spoil) spoil(r, shard);
      WriteTensors("/run/shards/rank" + std::to_string(r) + ".safetensors", shard);
    }
  }

  Result<ConvertReport> Run(const ConvertOptions& options = {}) {
    return ConvertShards(fs(), "/run/shards", "/out/hf", options);
  }

  void ExpectModel(const ToyTensors& more = {}) {
    ToyTensors expected = CanonicalTensors(model_);
    expected.insert(more.begin(), more.end());
    const auto directory = tensor::HfDirectory::Open(fs(), "/out/hf").value();
    const auto weights = tensor::MappedWeights::Map(fs(), directory, false).value();
    ASSERT_EQ(directory.inventory()->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string& name = (*directory.inventory())[i].name;
      SCOPED_TRACE(name);
      ASSERT_TRUE(expected.contains(name));
      const ByteSpan bytes = weights.tensor(i);
      std::vector<uint32_t> bits(bytes.size() / 4);
      std::memcpy(bits.data(), bytes.data(), bytes.size());
      EXPECT_EQ(bits, expected.at(name).bits);
    }
  }

  static std::string Message(const Result<ConvertReport>& result) {
    return result.ok() ? "" : result.error().message;
  }

  os::SimMachine machine_;
  ToyModel model_{.architecture = "Qwen3ForCausalLM", .qk_norm = true};
  Topology topology_;
};

TEST_F(Convert, WritesTheModelWithItsSideFiles) {
  topology_.tp = topology_.pp = 2;
  topology_.world = 8;
  WriteShards();
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << Message(report);
  ExpectModel();
  EXPECT_THAT(fs().List("/out/hf").value(),
              ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_THAT(fs().List("/out").value(), ElementsAre("hf"));
}

class ConvertTower : public Convert, public ::testing::WithParamInterface<const char*> {
 protected:
  ConvertTower() {
    topology_.tp = topology_.etp = topology_.pp = 2;
    topology_.world = 8;
    model_ = Fitted(ToyOf("Qwen3VLForConditionalGeneration"), topology_);
    model_.tower = GetParam();
  }

  void WriteTopology(const std::string& tower) {
    const std::string said = R"("tower":")" + model_.tower + '"';
    std::string text = TopologyJson(model_, topology_);
    const size_t at = text.find(said);
    ASSERT_NE(at, std::string::npos) << text;
    WriteText("/run/shards/topology.json", text.replace(at, said.size(), tower));
  }
};
INSTANTIATE_TEST_SUITE_P(Towers, ConvertTower, ::testing::ValuesIn(kTowers),
                         [](const auto& tower) { return "T" + std::to_string(tower.index); });

TEST_P(ConvertTower, IsSaidByTheTopology) {
  WriteShards();
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << Message(report);
  ExpectModel();
}

TEST_P(ConvertTower, IsShownByTheShards) {
  WriteShards();
  WriteTopology(R"("tower":null)");
  for (const Mode mode : {Mode::kBridge, Mode::kRaw}) {
    const auto report = Run({.mode = mode});
    ASSERT_TRUE(report.ok()) << Message(report);
    ExpectModel();
    ASSERT_TRUE(fs().RemoveTree("/out/hf").ok());
  }
}

TEST_P(ConvertTower, SaidOtherwiseIsRefused) {
  WriteShards();
  for (const char* tower : kTowers) {
    if (tower == model_.tower) continue;
    WriteTopology(R"("tower":")" + std::string(tower) + '"');
    const bool below = std::string_view(tower) != "model.visual";
    EXPECT_THAT(Message(Run()),
                HasSubstr(below ? "missing: vp0/vision_model." : "missing: vp0/model.visual."));
  }
}

// Two spellings in one shard, or in two; names of neither.
TEST_P(ConvertTower, MixedWithAnotherIsRefusedByName) {
  ToyModel other = model_;
  other.tower = model_.tower == kTowers[1] ? kTowers[2] : kTowers[1];
  const std::string mine =
      model_.tower == kTowers[0] ? "vision_model.decoder.layers.0" : model_.tower + ".blocks.0";
  const std::string theirs = other.tower + ".blocks.0";
  for (const int32_t spoilt : {0, 1}) {
    WriteShards([&](int32_t rank, ToyTensors& shard) {
      if (rank != spoilt) return;
      for (const auto& [name, tensor] : ShardTensors(other, topology_, rank)) {
        if (spoilt == 0 || name.find(".norm1.") != std::string::npos) shard.emplace(name, tensor);
      }
    });
    WriteTopology(R"("tower":null)");
    EXPECT_THAT(Message(Run()), AllOf(HasSubstr("unknown: vp0/"),
                                      ::testing::AnyOf(HasSubstr(mine), HasSubstr(theirs))));
  }
  WriteShards([](int32_t, ToyTensors& shard) {
    ToyTensors renamed;
    for (const auto& [name, tensor] : shard) {
      const size_t at = name.find("vis");
      renamed.emplace(at == std::string::npos ? name : "vp0/tower." + name.substr(at), tensor);
    }
    shard = renamed;
  });
  WriteTopology(R"("tower":null)");
  EXPECT_THAT(Message(Run()), HasSubstr("unknown: vp0/tower.vis"));
}

TEST_F(Convert, SeveralWeightFilesGetAnIndex) {
  WriteShards();
  const auto report = Run({.file_bytes_max = 2000});
  ASSERT_TRUE(report.ok()) << Message(report);
  EXPECT_TRUE(fs().Exists("/out/hf/model.safetensors.index.json").value());
  ExpectModel();
}

TEST_F(Convert, ReportsWhatItIgnoresByDeclaredRule) {  // D5
  topology_.world = 2;                                 // two replicas
  WriteShards([](int32_t rank, ToyTensors& shard) {
    if (rank == 1) shard["vp0/rotary_pos_emb.cos"] = {{4}, {1, 2, 3, 4}};
    shard["vp0/my.cache"] = {{1}, {7}};
  });
  EXPECT_THAT(Message(Run()), AllOf(HasSubstr("shard of rank 0"), HasSubstr("shard of rank 1"),
                                    HasSubstr("unknown: vp0/my.cache")));
  const auto report = Run({.ignore = {"*my.cache"}});
  ASSERT_TRUE(report.ok()) << Message(report);
  EXPECT_THAT(report->ignored, ElementsAre("rank 0 vp0/my.cache", "rank 1 vp0/my.cache",
                                           "rank 1 vp0/rotary_pos_emb.cos"));
}

TEST_F(Convert, FaultyRanksAreListedTogetherAndNothingIsWritten) {
  topology_.tp = topology_.world = 2;
  WriteShards([](int32_t rank, ToyTensors& shard) {
    if (rank == 0) shard.erase("vp0/decoder.final_layernorm.weight");
    if (rank == 1) shard["vp0/decoder.layers.0.mlp.linear_fc2.weight"].dims = {12, 6};
  });
  const auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kInvalidData);
  EXPECT_THAT(Message(report),
              AllOf(HasSubstr("missing: vp0/decoder.final_layernorm.weight"),
                    HasSubstr("linear_fc2.weight is F32 [12, 6], expected F32 [6, 12]")));
  EXPECT_FALSE(fs().Exists("/out").value());
}

// P2: the tied copy on the last stage is compared with the embedding.
TEST_F(Convert, P2ACopyOfTheEmbeddingThatDiffersIsNamed) {
  model_.tied = true;
  topology_.pp = topology_.world = 2;
  bool differ = false;
  const auto spoil = [&](int32_t rank, ToyTensors& shard) {
    if (rank == 1 && differ) shard["vp0/output_layer.weight"].bits[5] ^= 0x80;
    if (rank == 1) shard["vp0/output_layer.weight"].bits.back() = 1;  // padding may differ
  };
  WriteShards(spoil);
  EXPECT_TRUE(Run().ok());
  ExpectModel();
  ASSERT_TRUE(fs().RemoveTree("/out").ok());
  differ = true;
  WriteShards(spoil);
  const auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kDataLoss);
  EXPECT_THAT(Message(report),
              HasSubstr("rank 1 vp0/output_layer.weight differs from its replica rank 0 "
                        "vp0/embedding.word_embeddings.weight"));
  EXPECT_TRUE(Run({.check_replicas = false}).ok());
}

// G5: a flipped byte in a data-parallel replica.
TEST_F(Convert, G5AReplicaThatDiffersIsNamed) {
  topology_.world = 3;
  WriteShards([](int32_t rank, ToyTensors& shard) {
    if (rank == 2) shard["vp0/decoder.layers.1.mlp.linear_fc1.weight"].bits[0] ^= 1;
  });
  EXPECT_THAT(Message(Run()),
              HasSubstr("rank 2 vp0/decoder.layers.1.mlp.linear_fc1.weight differs from its "
                        "replica rank 0"));
}

TEST_F(Convert, CarriedTensorsComeFromTheReference) {
  WriteShards();
  ToyTensors reference = CanonicalTensors(model_);
  reference["mtp.x"] = {{2, 2}, {1, 2, 3, 4}};
  WriteTensors("/ref/model.safetensors", reference);
  WriteText("/ref/special.json", "{}");
  EXPECT_THAT(Message(Run({.reference = "/ref"})), HasSubstr("mtp.x"));
  const auto report = Run({.reference = "/ref", .carry = {"mtp.*"}});
  ASSERT_TRUE(report.ok()) << Message(report);
  EXPECT_THAT(report->compiled.carried, ElementsAre("mtp.x"));
  ExpectModel({{"mtp.x", reference["mtp.x"]}});
  EXPECT_TRUE(fs().Exists("/out/hf/special.json").value());
}

TEST_F(Convert, ThePaddingIsReadOffTheShards) {
  topology_.tp = topology_.world = 2;
  WriteShards();
  model_.padded_vocab = 14;  // what the trainer's config claims
  WriteText("/run/shards/topology.json", TopologyJson(model_, topology_));
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << Message(report);
  ExpectModel();
}

TEST_F(Convert, WithoutRulesWritesTheSame) {
  topology_.tp = topology_.pp = 2;
  topology_.world = 8;
  model_.tied = true;
  WriteShards();
  const auto bridge = Run();
  ASSERT_TRUE(bridge.ok()) << Message(bridge);
  ASSERT_TRUE(fs().RemoveTree("/out/hf").ok());
  const auto raw = Run({.mode = Mode::kRaw});
  ASSERT_TRUE(raw.ok()) << Message(raw);
  EXPECT_EQ(raw->compiled.hash, bridge->compiled.hash);
  EXPECT_EQ(raw->bytes, bridge->bytes);
  ExpectModel();
}

TEST_F(Convert, WithoutRulesAReplicaThatDiffersIsNamed) {
  topology_.tp = topology_.world = 2;
  WriteShards([](int32_t rank, ToyTensors& shard) {
    if (rank == 1) shard["vp0/decoder.final_layernorm.weight"].bits[2] ^= 1;
  });
  EXPECT_THAT(Message(Run({.mode = Mode::kRaw})),
              HasSubstr("rank 1 vp0/decoder.final_layernorm.weight differs"));
}

TEST_F(Convert, AnOutputThatIsThereIsAConflict) {
  WriteShards();
  WriteText("/out/hf/x", "mine");
  const auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kConflict);
}

TEST_F(Convert, AFullDiskLeavesNothing) {
  WriteShards();
  machine_.SetFreeBytes(3000);
  const auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kResourceExhausted);
  EXPECT_THAT(fs().List("/out").value(), ElementsAre());
}

TEST_F(Convert, MissingFilesAreNamed) {
  EXPECT_THAT(Message(Run()), HasSubstr("topology.json"));
  topology_.world = 2;
  WriteShards();
  ASSERT_TRUE(fs().Remove("/run/shards/rank1.safetensors").ok());
  EXPECT_THAT(Message(Run()), HasSubstr("rank1.safetensors"));
}

TEST_F(Convert, ARecordThatDoesNotFitIsRefused) {
  WriteShards();
  WriteText("/run/shards/rank0.json", R"({"coords": {"tp": 1}})");
  EXPECT_THAT(Message(Run()), HasSubstr("tp: recorded 1, computed 0"));
}

}  // namespace
}  // namespace weightcast::bridge
