#include "catalog/version_json.h"

#include <gmock/gmock.h>

#include <functional>

#include "base/json.h"
#include "catalog/catalog_conformance.h"
#include "os/fs_real.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kGolden = "testdata/golden/version_json_v1.json";

// The document of the golden file: every field says something.
VersionDocument SomeDocument() {
  VersionDocument d;
  d.run.uid.value[0] = 0x11;
  d.run.name = "policy";
  d.run.inventory = ToyInventory();
  d.run.carried = {kFrozen};
  d.run.forked_from.value[0] = 0x22;
  d.run.created_unix_ms = 1'700'000'000'000;
  Version& v = d.version;
  v.uid.value[0] = 0x33;
  v.run = d.run.uid;
  v.epoch = Epoch{2};
  v.number = 7;
  v.kind = VersionKind::kFull;
  v.state = VersionState::kReady;
  v.base.value[0] = 0x44;
  v.base_run = d.run.uid;
  v.step_token = "step \"7\"";
  v.store_url = "s3://bucket/prefix";
  v.labels = {{"reward", "0.5"}, {"\u00fcber", "\u2713"}};
  v.created_unix_ms = 1'700'000'001'234;
  v.plan = ToyPlan(5);
  v.participants = {0, 2};
  v.side_files = ToySideFiles();
  v.stats = {100, 3, 900, 1200};
  for (const int32_t rank : {0, 2}) {
    v.objects.push_back(ToyObject(v, rank, ObjectRole::kDelta));
    v.objects.push_back(ToyObject(v, rank, ObjectRole::kFull, 5000));
  }
  v.objects.push_back(ToyObject(v, 2, ObjectRole::kCarried, 600));
  d.digests = ToyDigests(7);
  v.root = tensor::ComputeRoot(*d.run.inventory, d.digests);
  return d;
}

TEST(VersionJson, IsTheGoldenFile) {
  const Bytes golden = Must(os::RealFs().ReadAll(kGolden, kMiB));
  EXPECT_EQ(EncodeVersionJson(SomeDocument()), AsText(golden))
      << "format 1 never changes; a change is format 2";
}

TEST(VersionJson, ComesBack) {
  const VersionDocument d = SomeDocument();
  const VersionDocument again = Must(ParseVersionJson(EncodeVersionJson(d)));
  EXPECT_EQ(EncodeVersionJson(again), EncodeVersionJson(d));
  EXPECT_EQ(*again.run.inventory, *d.run.inventory);
  EXPECT_EQ(again.digests, d.digests);
  EXPECT_EQ(again.version.objects, d.version.objects);
  EXPECT_EQ(again.version.state, VersionState::kReady);
}

TEST(VersionJson, DoesNotDependOnWhatMovesAfterReady) {
  VersionDocument d = SomeDocument();
  const std::string text = EncodeVersionJson(d);
  d.version.state = VersionState::kReleasing;
  d.version.deadline_unix_ms = 9;
  EXPECT_EQ(EncodeVersionJson(d), text);
}

std::string ParseText(const std::string& text) { return Text(ParseVersionJson(text)); }

TEST(VersionJson, RefusesEveryTruncation) {
  const std::string text = EncodeVersionJson(SomeDocument());
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_NE(ParseText(text.substr(0, size)), "ok") << size;
  }
}

TEST(VersionJson, RefusesEveryFlippedByte) {
  const std::string text = EncodeVersionJson(SomeDocument());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char flip : {'\x01', '\x20', '\x10'}) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ flip);
      EXPECT_NE(ParseText(flipped), "ok") << "byte " << i;
    }
  }
}

// Whoever forges a document can seal it, too.
std::string ParseUnsealed(const std::string& text) {
  return Text(ParseVersionDocument(text, [](std::string_view) { return Ok(); }));
}

TEST(VersionJson, TheRootProvesDigestsAndInventory) {
  const std::string text = EncodeVersionJson(SomeDocument());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return ParseUnsealed(changed.replace(at, from.size(), to));
  };
  const std::string digest = ToyDigests(7)[kWeight].hex();
  EXPECT_THAT(replaced(digest, ToyDigests(8)[kWeight].hex()),
              AllOf(StartsWith("data-loss"), HasSubstr("root")));
  EXPECT_THAT(replaced("\"weight\"", "\"weighs\""), StartsWith("data-loss"));
  EXPECT_THAT(replaced("[4,2]", "[2,4]"), StartsWith("data-loss"));
  EXPECT_THAT(replaced(SomeDocument().version.root.hex(), ToyRoot(1).hex()),
              StartsWith("data-loss"));
}

TEST(VersionJson, AnotherFormatOrFieldIsNamed) {
  const std::string text = EncodeVersionJson(SomeDocument());
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json json = Must(ParseJson(text));
    change(json);
    return ParseUnsealed(json.dump());
  };
  EXPECT_EQ(with([](Json&) {}), "ok");
  EXPECT_THAT(with([](Json& j) { j["v"] = 2; }), HasSubstr("format version 2"));
  EXPECT_THAT(with([](Json& j) { j["format"] = "else"; }), StartsWith("invalid-data"));
  EXPECT_THAT(with([](Json& j) { j["new"] = j["newer"] = 1; }),
              AllOf(HasSubstr("\"new\""), HasSubstr("\"newer\"")));
  EXPECT_THAT(with([](Json& j) { j["version"]["state"] = "READY"; }), HasSubstr("\"state\""));
  EXPECT_THAT(with([](Json& j) { j["run"]["x"] = 1; }), HasSubstr("\"x\""));
  EXPECT_THAT(with([](Json& j) { j["tensors"][0]["x"] = 1; }), HasSubstr("\"x\""));
  EXPECT_THAT(with([](Json& j) { j["version"].erase("root"); }), HasSubstr("\"root\" is missing"));
}

TEST(VersionJson, RefusesWhatNoCatalogWouldSay) {
  struct Case {
    const char* text;
    void (*change)(VersionDocument&);
  };
  const Case cases[] = {
      {"only version 0 is a seed", [](auto& d) { d.version.kind = VersionKind::kSeed; }},
      {"objects, expected 0",
       [](auto& d) {
         d.version.kind = VersionKind::kSeed;
         d.version.number = 0;
         d.version.epoch = {};
         d.version.base = d.run.forked_from;
       }},
      {"only version 0 is a seed",
       [](auto& d) { d.version.number = 0, d.version.base = d.run.forked_from; }},
      {"epoch 0", [](auto& d) { d.version.epoch = Epoch{0}; }},
      {"base_run go together", [](auto& d) { d.version.base_run = {}; }},
      {"base in another run", [](auto& d) { d.version.base_run.value[5] = 1; }},
      {"its own base", [](auto& d) { d.version.base = d.version.uid; }},
      {"a delta needs a base",
       [](auto& d) {
         d.version.kind = VersionKind::kDelta;
         d.version.base = {};
         d.version.base_run = {};
       }},
      {"no plan", [](auto& d) { d.version.plan = {}; }},
      {"participants", [](auto& d) { d.version.participants = {}; }},
      {"do not belong together", [](auto& d) { d.run.uid.value[3] = 1; }},
      {"do not belong together", [](auto& d) { d.version.uid = {}; }},
      {"run \"a b\"", [](auto& d) { d.run.name = "a b"; }},
      {"carried tensors", [](auto& d) { d.run.carried = {9}; }},
      {"side files", [](auto& d) { d.version.side_files[0].name = "../../etc/passwd"; }},
      {"side files", [](auto& d) { d.version.side_files[0].name = ".weightcast/state"; }},
      {"side files", [](auto& d) { d.version.side_files[0].name = "model.safetensors"; }},
      {"side files", [](auto& d) { d.version.side_files[1].name = "config.json"; }},
      {"footer of 0 bytes", [](auto& d) { d.version.objects[0].footer_bytes = 0; }},
      {"1 delta objects, expected 2",
       [](auto& d) { d.version.objects.erase(d.version.objects.begin()); }},
      {"2 carried objects, expected 1",
       [](auto& d) { d.version.objects.push_back(d.version.objects.back()); }},
      {"1 carried objects, expected 0", [](auto& d) { d.run.carried = {}; }},
      {"2 full objects, expected 0", [](auto& d) { d.version.kind = VersionKind::kDelta; }},
      {"bad key", [](auto& d) { d.version.objects[0].key = ""; }},
      {"label", [](auto& d) { d.version.labels[""] = ""; }},
  };
  for (const Case& c : cases) {
    VersionDocument d = SomeDocument();
    c.change(d);
    EXPECT_THAT(ParseText(EncodeVersionJson(d)),
                AllOf(StartsWith("invalid-data"), HasSubstr(c.text)))
        << &c - cases;
  }
}

TEST(VersionJson, AForkedSeedIsWhatTheRunWasForkedFrom) {
  VersionDocument d = SomeDocument();
  d.version.kind = VersionKind::kSeed;
  d.version.number = 0;
  d.version.epoch = {};
  d.version.objects = {};
  d.version.base = d.run.forked_from;
  d.version.base_run.value[0] = 0x55;
  EXPECT_EQ(ParseText(EncodeVersionJson(d)), "ok");
  d.version.base.value[1] = 1;
  EXPECT_THAT(ParseText(EncodeVersionJson(d)), HasSubstr("forked from"));
}

}  // namespace
}  // namespace weightcast::catalog
