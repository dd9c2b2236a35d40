#include "delta/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "delta/testing.h"
#include "layout/cells.h"
#include "tensor/testing.h"

namespace weightcast::delta {
namespace {

using tensor::Box;
using tensor::DType;
using testing::HasSubstr;

class PartTest : public testing::Test {
 protected:
  PartTest() {
    uint64_t seed = 0;
    for (const tensor::TensorSpec& spec : inventory_.tensors()) {
      base_.push_back(tensor::Pattern(++seed, static_cast<size_t>(spec.bytes())));
      next_.push_back(base_.back());
      for (size_t i = 0; i < next_.back().size(); i += 37) ++next_.back()[i];
    }
    identity_.base = Id<VersionUid>(3);
    identity_.run = Id<RunUid>(1);
    identity_.version = Id<VersionUid>(2);
    identity_.epoch.value = 300;
    identity_.rank.value = 7;
    identity_.plan = Id<PlanHash>(4);
    identity_.layout = inventory_.signature();
  }

  template <typename T>
  static T Id(uint8_t fill) {
    T id;
    id.value.fill(fill);
    return id;
  }

  Result<PartIndex> Parse(const BuiltPart& part) const {
    return ParsePartFooter(part.footer(), part.seal, inventory_);
  }
  BuiltPart Build(const std::vector<Piece>& pieces) const {
    return BuildPart(identity_, inventory_, base_, next_, pieces);
  }
  Box All(size_t tensor) const { return Box::All(inventory_[tensor].matrix()); }

  // Decodes every chunk, and expects the next state in its box.
  void ExpectDecodes(const BuiltPart& part) const {
    const PartIndex index = Parse(part).value();
    EXPECT_EQ(index.identity, identity_);
    Scratch scratch;
    for (const PartChunk& chunk : index.chunks) {
      const auto t = static_cast<size_t>(chunk.tensor);
      const tensor::Matrix matrix = inventory_[t].matrix();
      const Bytes want = PackBox(matrix, chunk.box, next_[t]);
      const Bytes base = chunk.without_base ? Bytes() : PackBox(matrix, chunk.box, base_[t]);
      Bytes got(want.size());
      const Status status =
          DecodeVerified(inventory_[t], chunk, part.payload(chunk), base, scratch, got);
      EXPECT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(got, want);
    }
  }

  tensor::Inventory inventory_ = tensor::Inventory::Make({{"a.empty", DType::kBf16, {0, 4}},
                                                          {"b.matrix", DType::kBf16, {30, 20}},
                                                          {"c.bias", DType::kF32, {17}},
                                                          {"d.scalar", DType::kI64, {}},
                                                          {"e.large", DType::kF8E4M3, {3, 1 << 20}},
                                                          {"f.wide", DType::kBool, {2, 3 << 19}}})
                                     .value();
  State base_;
  State next_;
  PartIdentity identity_;
};

TEST_F(PartTest, EveryKindOfChunkComesBack) {
  const BuiltPart part = Build({{1, {0, 15, 2, 0, 20, 1}},
                                {1, {1, 15, 2, 0, 10, 2}},
                                {1, {1, 15, 2, 1, 10, 2}, true},
                                {2, All(2)},
                                {3, All(3)},
                                {4, {0, 1, 1, 0, 1 << 20, 1}},
                                {4, {2, 1, 1, 5, 1000, 7}},
                                {5, {0, 1, 1, 1 << 20, 1 << 19, 1}}});
  EXPECT_EQ(Parse(part).value().chunks.size(), 8u);
  ExpectDecodes(part);
}

TEST_F(PartTest, FullPartNeedsNoBase) {
  identity_.kind = PartKind::kFull;
  identity_.base = {};
  const BuiltPart part = Build({{1, All(1), true}, {2, All(2), true}, {3, All(3), true}});
  EXPECT_EQ(Parse(part).value().chunks.size(), 3u);
  ExpectDecodes(part);
}

TEST_F(PartTest, NothingChangedIsAPartWithoutChunks) {
  next_ = base_;
  const BuiltPart part = Build({{1, All(1)}, {2, All(2)}});
  EXPECT_EQ(Parse(part).value().chunks.size(), 0u);
  EXPECT_EQ(part.seal.object_bytes, kPartHeaderBytes + part.seal.footer_bytes);
}

TEST_F(PartTest, TrailerOfAFileGivesItsSizes) {
  const BuiltPart part = Build({{1, All(1)}});
  const PartSeal seal =
      SealFromTrailer(ByteSpan(part.object).last(kPartTrailerBytes), part.seal.object_bytes)
          .value();
  EXPECT_EQ(seal.footer_bytes, part.seal.footer_bytes);
  EXPECT_TRUE(CheckPartHeader(ByteSpan(part.object).first(kPartHeaderBytes)).ok());
}

TEST_F(PartTest, SinkErrorsComeThrough) {
  PartWriter writer(identity_, [](ByteSpan) { return Status(Error{Code::kUnavailable, "gone"}); });
  PartChunk chunk;
  chunk.tensor = 1;
  EXPECT_EQ(writer.Add(chunk, Bytes{1}).error().code, Code::kUnavailable);
}

// A chunk that a correct rank would never list, and what the reader says to it.
struct WrongChunk {
  const char* name;
  std::function<void(std::vector<PartChunk>&)> edit;
  const char* message;
};

class WrongChunkTest : public PartTest, public testing::WithParamInterface<WrongChunk> {};

TEST_P(WrongChunkTest, IsRefused) {
  std::vector<PartChunk> chunks(2);
  for (PartChunk& chunk : chunks) {
    chunk.tensor = 1;
    chunk.box = {0, 5, 1, 0, 20, 1};
    chunk.method = Method::kClassGaps;
    chunk.payload_bytes = 10;
    chunk.changed_units = 1;
  }
  chunks[1].box.row = 5;
  GetParam().edit(chunks);
  BuiltPart part;
  PartWriter writer(identity_, [&part](ByteSpan bytes) {
    ByteWriter(&part.object).PutBytes(bytes);
    return Ok();
  });
  for (const PartChunk& chunk : chunks) {
    ASSERT_TRUE(writer.Add(chunk, Bytes(static_cast<size_t>(chunk.payload_bytes), 1)).ok());
  }
  part.seal = writer.Finish().value();
  const Result<PartIndex> parsed = Parse(part);
  ASSERT_EQ(parsed.ok(), std::string_view(GetParam().message).empty());
  if (parsed.ok()) return;
  EXPECT_EQ(parsed.error().code, Code::kInvalidData);
  EXPECT_THAT(parsed.error().message, HasSubstr(GetParam().message));
}

using Chunks = std::vector<PartChunk>;
INSTANTIATE_TEST_SUITE_P(
    Rules, WrongChunkTest,
    testing::Values(
        WrongChunk{"NothingWrong", [](Chunks&) {}, ""},
        WrongChunk{"UnknownTensor", [](Chunks& c) { c[1].tensor = 6; }, "tensor 6 of 6"},
        WrongChunk{"EmptyTensor", [](Chunks& c) { c[0].tensor = 0; }, "no box inside"},
        WrongChunk{"EmptyBox", [](Chunks& c) { c[0].box.rows = 0; }, "no box inside"},
        WrongChunk{"BehindTheMatrix", [](Chunks& c) { c[1].box.row = 26; }, "no box inside"},
        WrongChunk{"StepBehindTheMatrix", [](Chunks& c) { c[0].box.row_step = 8; },
                   "no box inside"},
        WrongChunk{"ZeroStep", [](Chunks& c) { c[0].box.col_step = 0; }, "no box inside"},
        WrongChunk{"TwoCells",
                   [](Chunks& c) {
                     c[1].tensor = 4;
                     c[1].box = {0, 2, 1, 0, 1, 1};
                   },
                   "more than one cell"},
        WrongChunk{"TwoColumnBands",
                   [](Chunks& c) {
                     c[1].tensor = 5;
                     c[1].box = {0, 1, 1, (1 << 20) - 1, 2, 1};
                   },
                   "more than one cell"},
        WrongChunk{"SamePlaceTwice", [](Chunks& c) { c[1].box.row = 0; }, "ascending order"},
        WrongChunk{"CellsDescend",
                   [](Chunks& c) {
                     c[0].tensor = c[1].tensor = 4;
                     c[0].box = {1, 1, 1, 0, 20, 1};
                     c[1].box = {0, 1, 1, 0, 20, 1};
                   },
                   "ascending order"},
        WrongChunk{"LongerThanRaw", [](Chunks& c) { c[0].payload_bytes = 201; }, "raw are 200"},
        WrongChunk{"ShortRaw", [](Chunks& c) { c[0].method = Method::kRaw; }, "raw are 200"},
        WrongChunk{"NoChange", [](Chunks& c) { c[0].changed_units = 0; }, "changed units"},
        WrongChunk{"MoreThanAll", [](Chunks& c) { c[0].changed_units = 101; }, "101 changed units"},
        WrongChunk{"GapsWithoutBase", [](Chunks& c) { c[0].without_base = true; }, "needs a base"}),
    [](const auto& row) { return row.param.name; });

TEST_F(PartTest, ChunkWithABaseInAFullPartIsRefused) {
  BuiltPart part = Build({{1, All(1)}});
  const size_t index = part.object.size() - static_cast<size_t>(part.seal.footer_bytes);
  part.object[index] = static_cast<uint8_t>(PartKind::kFull);
  std::fill_n(part.object.begin() + static_cast<int64_t>(index) + 1 + 32, 16, uint8_t{0});
  Reseal(&part);
  EXPECT_THAT(Parse(part).error().message, HasSubstr("base in a full part"));
}

TEST_F(PartTest, RejectsEveryTruncation) {
  const BuiltPart part = Build({{1, All(1)}, {2, All(2)}});
  for (size_t cut = 1; cut <= part.footer().size(); ++cut) {
    BuiltPart shorter = part;  // bytes lost in the index, the rest consistent
    const auto trailer = shorter.object.end() - kPartTrailerBytes;
    const size_t index_bytes = part.footer().size() - kPartTrailerBytes;
    EXPECT_EQ(
        ParsePartFooter(part.footer().first(part.footer().size() - cut), part.seal, inventory_)
            .error()
            .code,
        Code::kDataLoss);
    if (cut > index_bytes) continue;
    shorter.object.erase(trailer - static_cast<int64_t>(cut), trailer);
    shorter.seal.footer_bytes -= static_cast<int64_t>(cut);
    Reseal(&shorter);
    const Result<PartIndex> parsed = Parse(shorter);
    ASSERT_FALSE(parsed.ok()) << cut;
    EXPECT_EQ(parsed.error().code, Code::kInvalidData);
  }
}

TEST_F(PartTest, RejectsEveryFlippedBit) {
  const BuiltPart part = Build({{1, All(1)}, {2, All(2)}});
  for (size_t bit = 0; bit < 8 * part.footer().size(); ++bit) {
    BuiltPart flipped = part;
    flipped.object[flipped.object.size() - 1 - bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_EQ(Parse(flipped).error().code, Code::kDataLoss);
  }
}

// With a seal that fits, a flip is refused or leads to a chunk that cannot be proven, or it only
// renames the part, which the announcement's identity would contradict.
TEST_F(PartTest, FlipsThatAreSealedChangeNoContentUnseen) {
  const BuiltPart part = Build({{1, {0, 3, 1, 0, 5, 1}}, {2, All(2)}});
  const PartIndex want = Parse(part).value();
  Scratch scratch;
  for (size_t bit = 0; bit < 8 * part.footer().size(); ++bit) {
    BuiltPart flipped = part;
    flipped.object[flipped.object.size() - 1 - bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    Reseal(&flipped);
    const Result<PartIndex> parsed = Parse(flipped);
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.error().code, Code::kInvalidData);
      continue;
    }
    bool seen = parsed->identity != want.identity || bit < 8 * kPartTrailerBytes;
    for (const PartChunk& chunk : parsed->chunks) {
      const auto t = static_cast<size_t>(chunk.tensor);
      const Bytes base =
          chunk.without_base ? Bytes() : PackBox(inventory_[t].matrix(), chunk.box, base_[t]);
      Bytes next(static_cast<size_t>(chunk.box.units() * inventory_[t].matrix().unit_bytes));
      const Status status =
          DecodeVerified(inventory_[t], chunk, flipped.payload(chunk), base, scratch, next);
      seen = seen || !status.ok();
    }
    EXPECT_TRUE(seen) << "bit " << bit << " from the end";
  }
}

TEST_F(PartTest, VerifiedDecodeNamesWhatIsWrong) {
  const BuiltPart part = Build({{1, All(1)}});
  const PartChunk good = Parse(part).value().chunks.at(0);
  const Bytes payload(part.payload(good).begin(), part.payload(good).end());
  Scratch scratch;
  Bytes next(next_[1].size());
  const auto decode = [&](const PartChunk& chunk, ByteSpan bytes, ByteSpan base) {
    return DecodeVerified(inventory_[1], chunk, bytes, base, scratch, next);
  };
  ASSERT_TRUE(decode(good, payload, base_[1]).ok());

  Bytes bad_payload = payload;
  bad_payload[3] ^= 1;
  Bytes bad_base = base_[1];
  bad_base[100] ^= 1;
  PartChunk bad_next = good;
  bad_next.next_digest = good.base_digest;
  PartChunk malformed = good;
  malformed.sha256 = Sha256::Of(bad_payload);
  malformed.changed_units += 1;
  const struct {
    Status status;
    const char* message;
  } rows[] = {{decode(good, bad_payload, base_[1]), "payload's SHA-256"},
              {decode(good, ByteSpan(payload).first(5), base_[1]), "payload of 5 bytes"},
              {decode(good, payload, bad_base), "base has digest"},
              {decode(bad_next, payload, base_[1]), "result has digest"},
              {decode(malformed, bad_payload, base_[1]), "payload: "}};
  for (const auto& row : rows) {
    ASSERT_FALSE(row.status.ok()) << row.message;
    EXPECT_EQ(row.status.error().code, Code::kDataLoss);
    EXPECT_THAT(row.status.error().message, HasSubstr(row.message));
    EXPECT_THAT(row.status.error().message, HasSubstr("b.matrix " + BoxText(good.box)));
  }
}

TEST_F(PartTest, HeaderAndTrailerSayWhatTheyAre) {
  const BuiltPart part = Build({{1, All(1)}});
  Bytes header(part.object.begin(), part.object.begin() + kPartHeaderBytes);
  for (size_t i = 0; i < header.size(); ++i) {
    Bytes flipped = header;
    flipped[i] ^= 0x10;
    EXPECT_EQ(CheckPartHeader(flipped).error().code, Code::kInvalidData) << i;
  }
  header[8] = 2;
  EXPECT_THAT(CheckPartHeader(header).error().message, HasSubstr("version 2"));

  Bytes trailer(part.object.end() - kPartTrailerBytes, part.object.end());
  const auto seal = [&](const Bytes& bytes) {
    return SealFromTrailer(bytes, part.seal.object_bytes);
  };
  EXPECT_FALSE(seal(Bytes(23)).ok());
  EXPECT_THAT(seal(Bytes(24)).error().message, HasSubstr("WCPE"));
  Bytes future = trailer;
  future[16] = 9;
  EXPECT_THAT(seal(future).error().message, HasSubstr("version 9"));
  for (const uint64_t footer_bytes : {uint64_t{0}, uint64_t{23}, ~uint64_t{0}}) {
    StoreLe(trailer.data(), footer_bytes);
    EXPECT_THAT(seal(trailer).error().message, HasSubstr("footer of"));
  }
}

}  // namespace
}  // namespace weightcast::delta
