// Goldens: parts that every later version of this program must read
// (testdata/golden/part_v1_*.bin), and parts that none may take
// (testdata/golden_errors/part_NAME.CODE.bin). testdata/golden/part_v1.json says which tensors they
// are about; a base state is Pattern(seed) of each tensor.
//
// EachCanBeMadeAnew writes them all, elsewhere; with WEIGHTCAST_WRITE_GOLDENS=1 to their places.
// Files that are there never change: a new format version adds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/json.h"
#include "delta/method.h"
#include "delta/testing.h"
#include "os/temp_dir.h"
#include "tensor/testing.h"

namespace weightcast::delta {
namespace {

using tensor::Box;
using tensor::DType;
using tensor::TensorSpec;

constexpr const char* kGolden = "testdata/golden/";
constexpr const char* kGoldenErrors = "testdata/golden_errors/";

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string content = text.str();
  return {content.begin(), content.end()};
}

void WriteFile(const std::string& path, ByteSpan bytes) {
  std::ofstream out(path, std::ios::binary);
  out << AsText(bytes);
  ASSERT_TRUE(out.good()) << path;
}

State BaseOf(const tensor::Inventory& inventory) {
  State base;
  for (size_t t = 0; t < inventory.size(); ++t) {
    base.push_back(tensor::Pattern(t + 1, static_cast<size_t>(inventory[t].bytes())));
  }
  return base;
}

tensor::Inventory GoldenInventory() {
  const Json tensors = tensor::ReadGolden("part_v1.json").at("tensors");
  std::vector<TensorSpec> specs;
  for (const Json& row : tensors) {
    specs.push_back({row.at(0).get<std::string>(),
                     *tensor::DTypeFromName(row.at(1).get<std::string>()),
                     row.at(2).get<tensor::Shape>()});
  }
  return tensor::Inventory::Make(std::move(specs)).value();
}

void Scatter(const tensor::Matrix& matrix, const Box& box, ByteSpan packed, Bytes* to) {
  const auto unit = static_cast<size_t>(matrix.unit_bytes);
  for (int64_t i = 0; i < box.units(); ++i) {
    const int64_t row = box.row + i / box.cols * box.row_step;
    const int64_t col = box.col + i % box.cols * box.col_step;
    std::memcpy(to->data() + static_cast<size_t>(row * matrix.cols + col) * unit,
                packed.data() + static_cast<size_t>(i) * unit, unit);
  }
}

// Reads a part as `inspect` would, without a seal from elsewhere, and applies all of its chunks.
Result<State> ReadPart(const Bytes& object, const tensor::Inventory& inventory, const State& base) {
  if (object.size() < kPartHeaderBytes + kPartTrailerBytes) {
    return Error{Code::kInvalidData, "too short"};
  }
  WC_TRY(CheckPartHeader(ByteSpan(object).first(kPartHeaderBytes)));
  BuiltPart part{object, {}};
  part.seal = WC_TRY(SealFromTrailer(ByteSpan(object).last(kPartTrailerBytes),
                                     static_cast<int64_t>(object.size())));
  part.seal.footer_sha256 = Sha256::Of(part.footer());
  const PartIndex index = WC_TRY(ParsePartFooter(part.footer(), part.seal, inventory));
  State next = base;
  Scratch scratch;
  for (const PartChunk& chunk : index.chunks) {
    const auto t = static_cast<size_t>(chunk.tensor);
    const tensor::Matrix matrix = inventory[t].matrix();
    const Bytes old_units = chunk.without_base ? Bytes() : PackBox(matrix, chunk.box, base[t]);
    Bytes new_units(static_cast<size_t>(chunk.box.units() * matrix.unit_bytes));
    WC_TRY(DecodeVerified(inventory[t], chunk, part.payload(chunk), old_units, scratch, new_units));
    Scatter(matrix, chunk.box, new_units, &next[t]);
  }
  return next;
}

TEST(PartGoldenTest, AllAreReadForEver) {
  const Json golden = tensor::ReadGolden("part_v1.json");
  const tensor::Inventory inventory = GoldenInventory();
  const State base = BaseOf(inventory);
  size_t parts = 0;
  for (const auto& [file, want] : golden.at("next_sha256").items()) {
    const Result<State> next = ReadPart(ReadFile(kGolden + file), inventory, base);
    ASSERT_TRUE(next.ok()) << file << ": " << next.error().message;
    for (size_t t = 0; t < inventory.size(); ++t) {
      EXPECT_EQ(Sha256::Of((*next)[t]).hex(), want.at(t).get<std::string>())
          << file << " " << inventory[t].name;
    }
    ++parts;
  }
  EXPECT_GE(parts, 3u);
}

// The worked example of the page: hexadecimal lines, each with a comment behind #.
TEST(PartGoldenTest, ExampleOfThePageIsAPart) {
  std::ifstream page("docs/formats/part.md");
  std::string line;
  while (std::getline(page, line) && line != "## Worked example") {
  }
  Bytes object;
  while (std::getline(page, line) && !line.starts_with("## ")) {
    if (!line.starts_with("    ")) continue;
    std::istringstream digits(line.substr(0, line.find('#')));
    for (std::string byte; digits >> byte;) {
      object.push_back(0);
      ASSERT_TRUE(ParseHex(byte, MutableByteSpan(object).last(1)).ok()) << line;
    }
  }
  const auto inventory = tensor::Inventory::Make({{"w", DType::kBf16, {2, 2}}}).value();
  const Bytes base = {0x80, 0x3f, 0x00, 0x40, 0x00, 0xbf, 0x00, 0x00};
  const Bytes want = {0x81, 0x3f, 0x00, 0x40, 0x00, 0xbf, 0x00, 0x80};
  const Result<State> next = ReadPart(object, inventory, {base});
  ASSERT_TRUE(next.ok()) << next.error().message;
  EXPECT_EQ(next->at(0), want);
}

TEST(PartGoldenTest, ErrorsAreRefusedForEver) {
  const tensor::Inventory inventory = GoldenInventory();
  const State base = BaseOf(inventory);
  size_t parts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldenErrors)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("part_")) continue;
    const size_t dot = name.find('.');
    const std::string code = name.substr(dot + 1, name.rfind('.') - dot - 1);
    const Result<State> next = ReadPart(ReadFile(entry.path()), inventory, base);
    ASSERT_FALSE(next.ok()) << name;
    EXPECT_EQ(CodeName(next.error().code), code) << name << ": " << next.error().message;
    ++parts;
  }
  EXPECT_GE(parts, 25u);
}

// ---- Writing them.

template <typename U>
std::function<void(Bytes&)> Each(const std::function<U(size_t, U)>& change) {
  return [change](Bytes& bytes) {
    for (size_t i = 0; i * sizeof(U) < bytes.size(); ++i) {
      StoreUnit<U>(bytes, i, change(i, LoadUnit<U>(bytes, i)));
    }
  };
}

// How each tensor of GoldenSpecs changes.
std::vector<std::function<void(Bytes&)>> GoldenChanges() {
  const auto up = [](DType dtype, auto rarity) {
    return [dtype, rarity](size_t i, auto unit) {
      using U = decltype(unit);
      const bool changes = i % rarity(OctaveOf(FormatOf(dtype), unit)) == 0;
      return changes ? ApplyStep(FormatOf(dtype), unit, static_cast<U>(i % 11)) : unit;
    };
  };
  const auto noise = [](size_t i) { return tensor::Pattern(i + 99, 1)[0]; };
  return {
      Each<uint16_t>(up(DType::kBf16, [](uint32_t o) { return o < 80    ? 2u
                                                              : o < 160 ? 9u
                                                                        : 70u; })),
      [](Bytes&) {},
      Each<uint8_t>(up(DType::kF8E4M3, [](uint32_t) { return 50u; })),
      Each<uint16_t>([noise](size_t i, uint16_t unit) {
        return static_cast<uint16_t>(i % 3 != 0 ? unit : unit ^ (noise(i) | noise(i + 5000) << 8));
      }),
      Each<uint32_t>([noise](size_t i, uint32_t unit) { return unit ^ (noise(i) | 1); }),
      Each<uint64_t>([](size_t, uint64_t unit) { return unit + 1; }),
      Each<uint32_t>([](size_t i, uint32_t unit) {
        return i % 20 == 7 ? ApplyStep(FormatOf(DType::kF32), unit, static_cast<uint32_t>(i))
                           : unit;
      }),
      [](Bytes&) {},
      Each<uint64_t>([noise](size_t i, uint64_t unit) {
        return unit ^ (uint64_t{noise(i)} << 52 | noise(i + 1) | 1);
      }),
  };
}

class GoldenWriter {
 public:
  GoldenWriter() {
    inventory_ = tensor::Inventory::Make(GoldenSpecs()).value();
    base_ = BaseOf(inventory_);
    next_ = base_;
    for (size_t t = 0; t < next_.size(); ++t) GoldenChanges()[t](next_[t]);
    identity_.run.value.fill(0x11);
    identity_.version.value.fill(0x22);
    identity_.base.value.fill(0x33);
    identity_.epoch.value = 3;
    identity_.rank.value = 5;
    identity_.plan.value.fill(0x44);
    identity_.layout = inventory_.signature();
  }

  BuiltPart Delta() const {
    std::vector<Piece> pieces = {{0, {0, 60, 1, 0, 32, 1}}, {0, {0, 30, 2, 32, 16, 2}}};
    for (const int32_t t : {2, 3, 4, 5, 6, 7, 8}) pieces.push_back({t, All(t)});
    pieces[4].without_base = true;  // low_bytes.u32, raw
    return BuildPart(identity_, inventory_, base_, next_, pieces);
  }
  // What the delta lacks: planes against a base.
  BuiltPart Planes() const { return BuildPart(identity_, inventory_, base_, next_, {{4, All(4)}}); }
  BuiltPart Full() const {
    PartIdentity identity = identity_;
    identity.kind = PartKind::kFull;
    identity.base = {};
    return BuildPart(identity, inventory_, base_, next_,
                     {{0, All(0), true}, {3, All(3), true}, {7, All(7), true}});
  }
  BuiltPart Empty() const { return BuildPart(identity_, inventory_, base_, next_, {}); }

  // The delta's chunks again, after an edit. The writer fills in payload bytes and SHA-256.
  struct Listed {
    PartChunk chunk;
    Bytes payload;
  };
  BuiltPart Edited(const std::function<void(std::vector<Listed>&)>& edit) const {
    const BuiltPart delta = Delta();
    std::vector<Listed> listed;
    const PartIndex index = ParsePartFooter(delta.footer(), delta.seal, inventory_).value();
    for (const PartChunk& chunk : index.chunks) {
      const ByteSpan payload = delta.payload(chunk);
      listed.push_back({chunk, {payload.begin(), payload.end()}});
    }
    edit(listed);
    BuiltPart part;
    PartWriter writer(identity_, [&part](ByteSpan bytes) {
      ByteWriter(&part.object).PutBytes(bytes);
      return Ok();
    });
    for (const Listed& one : listed) WC_CHECK(writer.Add(one.chunk, one.payload).ok());
    part.seal = writer.Finish().value();
    return part;
  }

  const tensor::Inventory& inventory() const { return inventory_; }
  const State& base() const { return base_; }

 private:
  Box All(int32_t tensor) const {
    return Box::All(inventory_[static_cast<size_t>(tensor)].matrix());
  }

  tensor::Inventory inventory_;
  State base_;
  State next_;
  PartIdentity identity_;
};

using Listing = std::vector<GoldenWriter::Listed>;

// The index byte at `at`, edited in a part that is sealed again.
BuiltPart EditIndex(const BuiltPart& part, size_t at, uint8_t byte) {
  BuiltPart edited = part;
  edited.object[edited.object.size() - static_cast<size_t>(part.seal.footer_bytes) + at] = byte;
  Reseal(&edited);
  return edited;
}

BuiltPart EditByte(const BuiltPart& part, int64_t from_end, uint8_t byte) {
  BuiltPart edited = part;
  edited.object[edited.object.size() - static_cast<size_t>(from_end)] = byte;
  return edited;
}

struct GoldenError {
  std::string name;
  Code code;
  BuiltPart part;
};

// NOLINTNEXTLINE(readability-function-size): a table.
std::vector<GoldenError> GoldenErrors(const GoldenWriter& writer) {
  const BuiltPart delta = writer.Delta();
  const auto size = static_cast<int64_t>(delta.object.size());
  const auto edited = [&](const std::function<void(Listing&)>& edit) {
    return writer.Edited(edit);
  };
  const auto payload = [&](const std::function<void(Bytes&)>& edit) {
    return writer.Edited([edit](Listing& list) { edit(list[0].payload); });
  };
  BuiltPart cut = delta;
  cut.object.pop_back();
  BuiltPart behind = delta;
  behind.object.push_back(0);
  BuiltPart gap = delta;  // a byte between payloads and index
  gap.object.insert(gap.object.end() - delta.seal.footer_bytes, 0);
  BuiltPart rest = delta;  // a byte behind the last record
  rest.object.insert(rest.object.end() - kPartTrailerBytes, 0);
  ++rest.seal.footer_bytes;
  Reseal(&rest);
  BuiltPart flipped = delta;
  flipped.object[20] ^= 1;
  const Code invalid = Code::kInvalidData;
  const Code loss = Code::kDataLoss;
  constexpr size_t kCount = 1 + 3 * 16 + 2 + 2 * 32;  // where the index counts its records
  return {
      {"header_magic", invalid, EditByte(delta, size, 0x88)},
      {"header_version", invalid, EditByte(delta, size - 8, 2)},
      {"header_reserved", invalid, EditByte(delta, size - 12, 1)},
      {"trailer_magic", invalid, EditByte(delta, 1, 'F')},
      {"trailer_version", invalid, EditByte(delta, 8, 2)},
      {"trailer_footer_too_long", invalid, EditByte(delta, 20, 1)},
      {"trailer_check", invalid, EditByte(delta, 16, 0x5a)},
      {"cut", invalid, cut},
      {"byte_behind", invalid, behind},
      {"gap_before_index", invalid, gap},
      {"byte_behind_records", invalid, rest},
      {"kind_unknown", invalid, EditIndex(delta, 0, 3)},
      {"full_with_base", invalid, EditIndex(delta, 0, 2)},
      {"layout_of_another_model", invalid, EditIndex(delta, kCount - 1, 0x5a)},
      {"too_many_records", invalid, EditIndex(delta, kCount, 0x7f)},
      {"too_few_records", invalid, EditIndex(delta, kCount, 7)},
      {"head_method_absent", invalid, EditIndex(delta, kCount + 1, 0)},
      {"head_method_unknown", invalid, EditIndex(delta, kCount + 1, 5)},
      {"head_unknown_bit", invalid, EditIndex(delta, kCount + 1, 0x11)},
      {"tensor_unknown", invalid, edited([](Listing& l) { l.back().chunk.tensor = 9; })},
      {"tensor_empty", invalid, edited([](Listing& l) {
         l[2].chunk.tensor = 1;
         l[2].chunk.box = {0, 1, 1, 0, 1, 1};
       })},
      {"box_outside", invalid, edited([](Listing& l) { l[0].chunk.box.row = 1; })},
      {"box_huge", invalid, edited([](Listing& l) { l[0].chunk.box.row_step = INT64_MAX / 2; })},
      {"box_empty", invalid, edited([](Listing& l) { l[0].chunk.box.cols = 0; })},
      {"records_descend", invalid, edited([](Listing& l) { std::swap(l[0], l[1]); })},
      {"record_twice", invalid, edited([](Listing& l) { l[1] = l[0]; })},
      {"gaps_without_base", invalid, edited([](Listing& l) { l[0].chunk.without_base = true; })},
      {"no_change", invalid, edited([](Listing& l) { l[0].chunk.changed_units = 0; })},
      {"payload_longer_than_raw", invalid, edited([](Listing& l) { l[0].payload.resize(3841); })},
      {"raw_too_short", invalid, edited([](Listing& l) { l[4].payload.pop_back(); })},
      {"payload_flipped", loss, flipped},
      {"base_digest", loss, edited([](Listing& l) { l[0].chunk.base_digest.low ^= 1; })},
      {"next_digest", loss, edited([](Listing& l) { l[0].chunk.next_digest.low ^= 1; })},
      {"changed_units", loss, edited([](Listing& l) { ++l[0].chunk.changed_units; })},
      {"gaps_classes", loss, payload([](Bytes& p) { p[0] = 9; })},
      {"gaps_threshold", loss, payload([](Bytes& p) { p[1] = 0; })},
      {"gaps_cut", loss, payload([](Bytes& p) { p.pop_back(); })},
      {"gaps_byte_behind", loss, payload([](Bytes& p) { p.push_back(0); })},
      {"bitmap_other_bit", loss, edited([](Listing& l) { l[3].payload[40] ^= 1; })},
  };
}

// Where the writers write: a scratch folder, which must then hold the files of testdata.
class PartGoldenWriting : public testing::Test {
 protected:
  static bool InPlace() { return std::getenv("WEIGHTCAST_WRITE_GOLDENS") != nullptr; }
  std::string Made(const std::string& folder) {
    const std::string path = os::JoinPath(root_, folder);
    std::filesystem::create_directories(path);
    return path + "/";
  }
  static std::vector<std::string> NamesIn(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("part_") || !folder.ends_with("golden/")) names.push_back(name);
    }
    return names;
  }
  void ExpectAllMade(const std::string& folder) {
    EXPECT_THAT(NamesIn(Made(folder)),
                testing::UnorderedElementsAreArray(NamesIn("testdata/" + folder)));
  }

  os::TempDir scratch_{os::RealWorld()};
  const std::string root_ = InPlace() ? "testdata" : scratch_.path();
};

TEST_F(PartGoldenWriting, EachCanBeMadeAnew) {
  const std::string folder = Made("golden/");
  const GoldenWriter writer;
  const std::pair<const char*, BuiltPart> parts[] = {{"part_v1_delta.bin", writer.Delta()},
                                                     {"part_v1_empty.bin", writer.Empty()},
                                                     {"part_v1_full.bin", writer.Full()},
                                                     {"part_v1_planes.bin", writer.Planes()}};
  Json golden;
  golden["format"] = "weightcast part 1";
  for (const TensorSpec& spec : writer.inventory().tensors()) {
    golden["tensors"].push_back({spec.name, DTypeName(spec.dtype), spec.shape});
  }
  std::vector<Method> methods;
  for (const auto& [name, part] : parts) {
    const State next = ReadPart(part.object, writer.inventory(), writer.base()).value();
    for (const Bytes& bytes : next) {
      golden["next_sha256"][name].push_back(Sha256::Of(bytes).hex());
    }
    const PartIndex index = ParsePartFooter(part.footer(), part.seal, writer.inventory()).value();
    for (const PartChunk& chunk : index.chunks) methods.push_back(chunk.method);
    WriteFile(folder + name, part.object);
  }
  EXPECT_THAT(methods, testing::IsSupersetOf({Method::kClassGaps, Method::kBitmap,
                                              Method::kXorPlanes, Method::kRaw}));
  const std::string text = golden.dump(1) + "\n";
  WriteFile(folder + "part_v1.json", AsBytes(text));
  for (const GoldenError& error : GoldenErrors(writer)) {
    WriteFile(Made("golden_errors/") + "part_" + error.name + "." +
                  std::string(CodeName(error.code)) + ".bin",
              error.part.object);
  }
  // What they decode to is the same, whatever this zstd made of the payloads.
  EXPECT_EQ(ReadFile(folder + "part_v1.json"), ReadFile(std::string(kGolden) + "part_v1.json"));
  ExpectAllMade("golden/");
  ExpectAllMade("golden_errors/");
}

// Seeds of the two fuzz targets: what is well formed, and what nearly is.
constexpr const char* kFooters = "fuzz_corpus/part_footer/";
constexpr const char* kPayloads = "fuzz_corpus/chunk_payload/";

void WriteFooterSeed(const std::string& path, const BuiltPart& part) {
  Bytes seed;
  ByteWriter writer(&seed);
  writer.Put(static_cast<uint64_t>(part.object.size()) << 2);
  writer.PutBytes(part.footer());
  WriteFile(path, seed);
}

void WritePayloadSeed(const std::string& folder, DType dtype, size_t rarity, bool without_base) {
  const UnitFormat format = FormatOf(dtype);
  FuzzedPayload seed{.dtype = static_cast<uint8_t>(dtype), .without_base = without_base};
  seed.units = 700;
  const Bytes base = FuzzedPayload::Base(seed.units * format.bytes);
  Bytes next = base;
  WithUnit(format.bytes, [&]<typename U>() {
    for (size_t i = 0; i < seed.units; i += rarity) {
      StoreUnit(next, i, ApplyStep(format, LoadUnit<U>(base, i), static_cast<U>(i % 23)));
    }
  });
  Scratch scratch;
  Bytes payload;
  const ChunkInfo info = EncodeChunk(dtype, without_base ? Bytes() : base, next, scratch, &payload);
  seed.method = info.method;
  seed.changed_units = static_cast<uint16_t>(info.changed_units);
  seed.payload = payload;
  WriteFile(folder + std::string(DTypeName(dtype)) + "_" + std::to_string(rarity) +
                (without_base ? "_full" : ""),
            seed.Store());
}

TEST_F(PartGoldenWriting, EachFuzzSeedCanBeMadeAnew) {
  const std::string footers = Made(kFooters);
  const std::string payloads = Made(kPayloads);
  const GoldenWriter writer;
  WriteFooterSeed(footers + "delta", writer.Delta());
  WriteFooterSeed(footers + "empty", writer.Empty());
  WriteFooterSeed(footers + "full", writer.Full());
  for (const GoldenError& error : GoldenErrors(writer)) {
    if (error.code == Code::kInvalidData)
      WriteFooterSeed(footers + "bad_" + error.name, error.part);
  }
  for (const DType dtype : {DType::kBf16, DType::kF8E5M2, DType::kF32, DType::kF64, DType::kI16,
                            DType::kBool, DType::kC64}) {
    for (const size_t rarity : {1u, 3u, 60u}) {
      WritePayloadSeed(payloads, dtype, rarity, false);
      WritePayloadSeed(payloads, dtype, rarity, true);
    }
  }
  ExpectAllMade(kFooters);
  ExpectAllMade(kPayloads);
}

}  // namespace
}  // namespace weightcast::delta
