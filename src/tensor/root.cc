#include "tensor/root.h"

#include "base/bytes.h"
#include "base/hash.h"

namespace weightcast::tensor {

Root ComputeRoot(const Inventory& inventory, std::span<const TensorDigest> digests) {
  WC_CHECK(digests.size() == inventory.size());
  constexpr std::string_view kMagic("WCROOT\0\x01", 8);
  Bytes canonical;
  ByteWriter writer(&canonical);
  writer.PutBytes(AsBytes(kMagic));
  writer.Put(uint64_t{inventory.size()});
  for (size_t i = 0; i < inventory.size(); ++i) {
    AppendCanonical(inventory[i], &canonical);
    uint8_t digest[16];
    digests[i].Store(digest);
    writer.PutBytes(digest);
  }
  return Root::From(Sha256::Of(canonical).bytes());
}

}  // namespace weightcast::tensor
