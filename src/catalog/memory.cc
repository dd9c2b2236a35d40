#include "catalog/row_catalog.h"

namespace weightcast::catalog {

std::unique_ptr<Catalog> NewMemoryCatalog(std::function<int64_t()> now_unix_ms) {
  return NewMemoryCatalog(std::move(now_unix_ms), os::RealWorld().random);
}

std::unique_ptr<Catalog> NewMemoryCatalog(std::function<int64_t()> now_unix_ms,
                                          os::Random& random) {
  Result<std::unique_ptr<Catalog>> catalog =
      RowCatalog::Open(NewMemoryRows(std::move(now_unix_ms)), random);
  WC_CHECK(catalog.ok());  // memory does not fail
  return std::move(*catalog);
}

}  // namespace weightcast::catalog
