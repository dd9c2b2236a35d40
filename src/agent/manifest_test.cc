#include "agent/manifest.h"

#include <gtest/gtest.h>

namespace weightcast::agent {
namespace {

Manifest Sample() {
  Manifest m;
  m.generation = 9;
  m.run.value.fill(1);
  m.version.value.fill(2);
  m.number = 7;
  m.root.value.fill(3);
  m.layout.value.fill(4);
  m.durability = Durability::kProcess;
  m.boot_id = "boot \"7\"\n";
  m.synced = 6;
  m.journals = {{5, 6}, {8, 9}};
  m.undo = true;
  m.steps = {{7, 8}, {6, 7}};
  m.weight_files = {{"model.safetensors", 123, {}}};
  m.side_files = {{"sub/t\xc3\xb6kenizer.json", 5, {}}};
  m.digests = {{1, 2}, {~uint64_t{0} - 1, ~uint64_t{0} >> 1}};
  return m;
}

TEST(Manifest, RoundTrips) {
  for (const Manifest& sample : {Sample(), Manifest{}}) {
    const std::string text = EncodeManifest(sample);
    const Result<Manifest> m = ParseManifest(text);
    ASSERT_TRUE(m.ok()) << m.error().message;
    EXPECT_EQ(EncodeManifest(*m), text);
    EXPECT_EQ(m->generation, sample.generation);
    EXPECT_EQ(m->run, sample.run);
    EXPECT_EQ(m->version, sample.version);
    EXPECT_EQ(m->durability, sample.durability);
    EXPECT_EQ(m->boot_id, sample.boot_id);
    EXPECT_EQ(m->journals, sample.journals);
    EXPECT_EQ(m->undo, sample.undo);
    EXPECT_EQ(m->steps, sample.steps);
    EXPECT_EQ(m->weight_files, sample.weight_files);
    EXPECT_EQ(m->digests, sample.digests);
  }
}

TEST(Manifest, FindsEveryFlippedByteAndEveryTruncation) {
  const std::string text = EncodeManifest(Sample());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    const Result<Manifest> flipped = ParseManifest(damaged);
    ASSERT_FALSE(flipped.ok()) << "byte " << i;
    EXPECT_EQ(flipped.error().code, Code::kDataLoss);
    ASSERT_FALSE(ParseManifest(text.substr(0, i)).ok()) << i << " bytes";
  }
}

TEST(Manifest, NamesAFormatThatItDoesNotKnow) {
  // Only whoever writes a newer format can seal one; so the seal is made here again.
  std::string text = EncodeManifest(Manifest{});
  ASSERT_NE(text.find("\"format\":1"), std::string::npos);
  EXPECT_FALSE(ParseManifest("{\"format\":2}").ok());
}

}  // namespace
}  // namespace weightcast::agent
