#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace weightcast {
namespace {

struct CodeRow {
  std::string_view name;
  int exit_code;
};

// Indexed by Code.
constexpr CodeRow kCodes[] = {
    {"internal", 1},    {"invalid-argument", 2},  {"data-loss", 3},          {"invalid-data", 3},
    {"conflict", 4},    {"already-exists", 4},    {"not-found", 4},          {"aborted", 4},
    {"unavailable", 5}, {"deadline-exceeded", 5}, {"resource-exhausted", 5},
};

}  // namespace

std::string_view CodeName(Code code) { return kCodes[static_cast<size_t>(code)].name; }

int ExitCode(Code code) { return kCodes[static_cast<size_t>(code)].exit_code; }

Error Error::With(std::string_view what) const& {
  return {code, std::string(what) + ": " + message};
}

void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "weightcast: bug at %s:%d: %s does not hold\n", file, line, what);
  std::abort();
}

}  // namespace weightcast
