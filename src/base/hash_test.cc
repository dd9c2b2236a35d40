#include "base/hash.h"

#include <gtest/gtest.h>

namespace weightcast {
namespace {

struct Case {
  std::string_view text;
  std::string_view sha256;  // FIPS 180-4 examples
};
constexpr Case kCases[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

TEST(Sha256Test, KnowsThePublishedVectors) {
  for (const Case& c : kCases) EXPECT_EQ(Sha256::Of(AsBytes(c.text)).hex(), c.sha256);
  EXPECT_EQ(Sha256::Of(Bytes(1'000'000, 'a')).hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, AStreamMayBeCutAnywhere) {
  const std::string_view text = kCases[2].text;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 sha;
    sha.Update(AsBytes(text.substr(0, cut)));
    sha.Update(AsBytes(text.substr(cut)));
    EXPECT_EQ(sha.Finish().hex(), kCases[2].sha256) << cut;
  }
}

TEST(Sha256Test, MovesWithItsState) {
  Sha256 first;
  first.Update(AsBytes("ab"));
  Sha256 second = std::move(first);
  second.Update(AsBytes("c"));
  EXPECT_EQ(second.Finish().hex(), kCases[1].sha256);
}

TEST(Xxh3Test, KnowsThePublishedVectorOfNothingAndSeesEveryByte) {
  EXPECT_EQ(Xxh3({}), 0x2d06800538d394c2u);
  Bytes bytes(257, 7);
  const uint64_t whole = Xxh3(bytes);
  for (uint8_t& byte : bytes) {
    byte ^= 1;
    EXPECT_NE(Xxh3(bytes), whole);
    byte ^= 1;
  }
}

}  // namespace
}  // namespace weightcast
