// The decoders of rows: the first byte chooses one, the rest is the row. Rows carry a sum, so this
// is the second line behind it.
#include <iterator>

#include "catalog/row_format.h"
#include "fuzz/accepted.h"

namespace weightcast::catalog {
namespace {

// What was taken must encode, and decode to the same bytes.
template <typename Row>
bool Accepts(ByteSpan bytes) {
  Row row;
  if (!Decode(bytes, &row).ok()) return false;
  const Bytes encoded = Encode(row);
  Row again;
  WC_CHECK(Decode(encoded, &again).ok());
  WC_CHECK(Encode(again) == encoded);
  return true;
}

// Never renumber: the corpus names them.
constexpr bool (*kDecoders[])(ByteSpan) = {
    Accepts<CatalogRow>,        Accepts<RunRow>,       Accepts<HeadRow>,
    Accepts<ListRow>,           Accepts<VersionRow>,   Accepts<EpochRow>,
    Accepts<LeaseRow>,          Accepts<Announcement>, Accepts<std::vector<tensor::TensorDigest>>,
    Accepts<tensor::Inventory>, Accepts<RoundRow>,
};

}  // namespace
}  // namespace weightcast::catalog

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weightcast::catalog::kDecoders;
  if (size == 0 || data[0] >= std::size(kDecoders)) return 0;
  if (kDecoders[data[0]]({data + 1, size - 1})) weightcast::fuzz::Accepted(data, size);
  return 0;
}
