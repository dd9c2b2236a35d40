// What every store says in the same words.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace weightcast::store {

inline Error NoObject(const std::string& url, std::string_view key) {
  return {Code::kNotFound, url + ": object " + std::string(key) + ": not there"};
}

inline Error ObjectExists(const std::string& url, std::string_view key) {
  return {Code::kAlreadyExists, url + ": object " + std::string(key) + ": is there already"};
}

// Errors: kDataLoss if an object of `size` bytes does not hold [offset, offset + length).
//   Requires: offset >= 0.
Status CheckRange(const std::string& url, std::string_view key, int64_t size, int64_t offset,
                  size_t length);

}  // namespace weightcast::store
