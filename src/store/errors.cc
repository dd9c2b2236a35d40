#include "store/errors.h"

namespace weightcast::store {

Status CheckRange(const std::string& url, std::string_view key, int64_t size, int64_t offset,
                  size_t length) {
  WC_CHECK(offset >= 0);
  if (offset <= size && length <= static_cast<uint64_t>(size - offset)) return Ok();
  return Error{Code::kDataLoss, url + ": object " + std::string(key) + ": has " +
                                    std::to_string(size) + " bytes, expected " +
                                    std::to_string(length) + " from " + std::to_string(offset)};
}

}  // namespace weightcast::store
