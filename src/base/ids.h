// Strong identities. A naked string or integer never names a version, a run or a rank.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace weightcast {

// `Tag` keeps one kind of identity from being passed as another.
template <typename Tag, size_t N>
struct FixedId {
  std::array<uint8_t, N> value{};

  auto operator<=>(const FixedId&) const = default;
  bool empty() const { return *this == FixedId{}; }
  std::string hex() const { return Hex(value); }
  // The first digits, for messages.
  std::string brief() const { return hex().substr(0, 8); }
  ByteSpan bytes() const { return value; }
  static Result<FixedId> Parse(std::string_view text) {
    FixedId id;
    WC_TRY(ParseHex(text, id.value));
    return id;
  }
  // Requires: bytes.size() == N.
  static FixedId From(ByteSpan bytes) {
    WC_CHECK(bytes.size() == N);
    FixedId id;
    std::memcpy(id.value.data(), bytes.data(), N);
    return id;
  }
};

using VersionUid = FixedId<struct VersionUidTag, 16>;  // one attempt at a version; random
using RunUid = FixedId<struct RunUidTag, 16>;          // one trainer lineage; random
using RoundUid = FixedId<struct RoundUidTag, 16>;      // one coordinated update; random
using LeaseId = FixedId<struct LeaseIdTag, 16>;
using Root = FixedId<struct RootTag, 32>;  // identity of a version's content: docs/formats/root.md
using LayoutSignature = FixedId<struct LayoutSignatureTag, 32>;  // digest of an inventory
using PlanHash = FixedId<struct PlanHashTag, 32>;                // one model in one parallel layout
using Sha256Digest = FixedId<struct Sha256Tag, 32>;

struct RankId {
  int32_t value = 0;
  auto operator<=>(const RankId&) const = default;
};
struct Epoch {  // one life of the trainer job inside a run; 0 = before the first
  int64_t value = 0;
  auto operator<=>(const Epoch&) const = default;
};

}  // namespace weightcast
