// Rows as bytes: round trips, truncations, formats of another number.
#include "catalog/row_format.h"

#include <gmock/gmock.h>

#include <functional>

#include "catalog/catalog_conformance.h"

namespace weightcast::catalog {
namespace {

using testing::HasSubstr;

Version SomeVersion(bool full) {
  Version version;
  version.uid.value[0] = 1;
  version.run.value[0] = 2;
  version.base.value[0] = 3;
  version.base_run = version.run;
  version.epoch = Epoch{4};
  version.number = 5;
  version.kind = full ? VersionKind::kFull : VersionKind::kDelta;
  version.state = VersionState::kReleasing;
  version.step_token = "step \"5\" \\ \u00fc";
  version.store_url = "file:/store";
  version.labels = {{"a", ""}, {"b", "c"}};
  version.created_unix_ms = 1;
  version.deadline_unix_ms = 2;
  version.plan = ToyPlan(6);
  version.participants = {0, 7, 2147483647};
  version.side_files = ToySideFiles();
  version.root = ToyRoot(8);
  version.objects = {ToyObject(version, 7, ObjectRole::kDelta)};
  version.stats = {1, 2, 3, 4};
  version.failure = "why";
  return version;
}

Round SomeRound() {
  Round round;
  round.uid.value[0] = 9;
  round.run.value[0] = 2;
  round.version.value[0] = 1;
  round.state = RoundState::kApplying;
  round.engines = {{"http://a:1", "fenced", "1f", round.version, true, "why \u00fc"}, {}};
  round.created_unix_ms = 3;
  round.expires_unix_ms = 4;
  round.failure = "none";
  return round;
}

struct RowCase {
  const char* name;
  Bytes bytes;
  std::function<Result<Bytes>(ByteSpan)> again;  // decodes and encodes
};

template <typename Row>
RowCase Case(const char* name, const Row& row) {
  return {name, Encode(row), [](ByteSpan bytes) -> Result<Bytes> {
            Row decoded;
            WC_TRY(Decode(bytes, &decoded));
            return Encode(decoded);
          }};
}

std::vector<RowCase> AllRows() {
  const Version version = SomeVersion(true);
  return {
      Case("catalog", CatalogRow{"ab12", 3, 4, 5}),
      Case("run", RunRow{version.run, "policy", 4, {0, 3}, version.uid, 77}),
      Case("head",
           HeadRow{version.uid, 5, version.base, {}, {}, Epoch{4}, 6, 2, {{"best", version.uid}}}),
      Case("empty head", HeadRow{}),
      Case("list", ListRow{version.uid, 5}),
      Case("version", VersionRow{version, true, 3}),
      Case("empty version", VersionRow{}),
      Case("epoch", EpochRow{Epoch{4}, "job \u00fc", ToyPlan(6), {0, 1}, true}),
      Case("lease", LeaseRow{"host 3", 99, {version.uid, version.base}}),
      Case("round", RoundRow{SomeRound(), 6, 7}),
      Case("announcement", ToyAnnouncement(version, 7, 0, 1)),
      Case("empty announcement", Announcement{}),
      Case("digests", ToyDigests(3)),
      Case("no digests", std::vector<tensor::TensorDigest>{}),
      Case("inventory", *ToyInventory()),
      Case("no inventory", tensor::Inventory{}),
  };
}

TEST(RowFormat, EveryRowComesBack) {
  for (const RowCase& c : AllRows()) {
    const Result<Bytes> again = c.again(c.bytes);
    ASSERT_TRUE(again.ok()) << c.name << ": " << again.error().message;
    EXPECT_EQ(*again, c.bytes) << c.name;
  }
}

TEST(RowFormat, FieldsComeBackAsTheyWere) {
  const VersionRow row{SomeVersion(false), true, 3};
  VersionRow again;
  ASSERT_TRUE(Decode(Encode(row), &again).ok());
  const Version& a = row.version;
  const Version& b = again.version;
  EXPECT_EQ(again.announced, 3);
  EXPECT_TRUE(again.pinned);
  EXPECT_EQ(std::tie(b.uid, b.run, b.base, b.base_run, b.epoch, b.number, b.kind, b.state),
            std::tie(a.uid, a.run, a.base, a.base_run, a.epoch, a.number, a.kind, a.state));
  EXPECT_EQ(std::tie(b.step_token, b.store_url, b.labels, b.created_unix_ms, b.deadline_unix_ms),
            std::tie(a.step_token, a.store_url, a.labels, a.created_unix_ms, a.deadline_unix_ms));
  EXPECT_EQ(std::tie(b.plan, b.participants, b.root, b.objects, b.stats, b.failure),
            std::tie(a.plan, a.participants, a.root, a.objects, a.stats, a.failure));
  ASSERT_EQ(b.side_files.size(), 2u);
  EXPECT_EQ(b.side_files[1].name, "sub/vocab.txt");
  EXPECT_EQ(b.side_files[1].sha256, a.side_files[1].sha256);
  const Announcement announcement = ToyAnnouncement(a, 7, 0, 1);
  Announcement decoded;
  ASSERT_TRUE(Decode(Encode(announcement), &decoded).ok());
  EXPECT_EQ(decoded, announcement);
}

TEST(RowFormat, ARoundComesBackAsItWas) {
  RoundRow again;
  ASSERT_TRUE(Decode(Encode(RoundRow{SomeRound(), 6, 7}), &again).ok());
  EXPECT_EQ(again.round, SomeRound());
  EXPECT_EQ(std::tuple(again.position, again.lease_ms), std::tuple(6, 7));
}

TEST(RowFormat, RowsFromBeforeRoundsAreRead) {
  CatalogRow catalog;
  EXPECT_TRUE(Decode(AsBytes(R"({"v":1,"incarnation":"ab","runs":3,"leases":4})"), &catalog).ok());
  EXPECT_EQ(std::tuple(catalog.runs, catalog.leases, catalog.rounds), std::tuple(3, 4, 0));
  HeadRow head;
  head.round.value[0] = 1;
  EXPECT_TRUE(Decode(AsBytes(R"({"v":1,"latest":"","latest_number":-1,"seed":"","staging":"",)"
                             R"("epoch":0,"versions":0,"epochs":0,"aliases":{}})"),
                     &head)
                  .ok());
  EXPECT_TRUE(head.round.empty());
}

TEST(RowFormat, NoTruncationIsTakenForTheRow) {
  for (const RowCase& c : AllRows()) {
    for (size_t size = 0; size < c.bytes.size(); ++size) {
      const Result<Bytes> again = c.again(ByteSpan(c.bytes).first(size));
      // Lists of fixed records may end after any of them: the row's sum knows better.
      EXPECT_EQ(again.ok() ? again->size() : size, size) << c.name;
    }
  }
}

TEST(RowFormat, TrailingBytesAreRefused) {
  for (const RowCase& c : AllRows()) {
    Bytes longer = c.bytes;
    longer.push_back('x');
    EXPECT_FALSE(c.again(longer).ok()) << c.name;
  }
}

TEST(RowFormat, AnotherFormatIsNamed) {
  for (const RowCase& c : AllRows()) {
    Bytes other = c.bytes;
    if (other[0] == '{') {
      const std::string text = "{\"v\":2" + std::string(AsText(ByteSpan(other).subspan(6)));
      other.assign(text.begin(), text.end());
    } else {
      other[0] = 2;
    }
    const Result<Bytes> again = c.again(other);
    ASSERT_FALSE(again.ok()) << c.name;
    EXPECT_THAT(again.error().message, HasSubstr("format version 2")) << c.name;
  }
}

// Any one flipped bit is either refused or gives another row: never a crash, never the same row.
TEST(RowFormat, FlippedBitsNeverReadAsTheSameRow) {
  for (const RowCase& c : AllRows()) {
    for (size_t i = 0; i < c.bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        Bytes flipped = c.bytes;
        flipped[i] = static_cast<uint8_t>(flipped[i] ^ 1 << bit);
        const Result<Bytes> again = c.again(flipped);
        const bool json = c.bytes[0] == '{';  // white space and case of escapes may differ
        EXPECT_FALSE(again.ok() && !json && *again == c.bytes) << c.name << " byte " << i;
      }
    }
  }
}

TEST(RowFormat, CountsAreBoundedBeforeMemoryIsTaken) {
  Bytes bytes = Encode(Announcement{});
  bytes.resize(bytes.size() - 2);  // both counts
  ByteWriter(&bytes).PutVarint(uint64_t{1} << 60);
  Announcement row;
  EXPECT_EQ(Decode(bytes, &row).error().code, Code::kInvalidData);
}

}  // namespace
}  // namespace weightcast::catalog
