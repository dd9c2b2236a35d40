#include "os/errors.h"

#include <cerrno>
#include <system_error>

namespace weightcast::os {
namespace {

Code CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:  // something on the way is a file: nothing is there
      return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return Code::kAlreadyExists;
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalidArgument;  // nothing to wait for
    case ENOSPC:
    case EDQUOT:
      return Code::kResourceExhausted;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Error ErrnoError(const std::string& path, std::string_view operation, int error) {
  return {CodeOf(error),
          path + ": " + std::string(operation) + ": " + std::generic_category().message(error)};
}

}  // namespace weightcast::os
