// Errors: a code that tells the caller what it may do, a message that tells a person which thing
// failed, what was expected and what was found. No exception crosses a floor.
//
//   Result<Plan> CompilePlan(...);
//   Plan plan = WC_TRY(CompilePlan(...));              // or return its error
//   WC_TRY(file->Sync().With("journal 7"));            // "journal 7: <message>"
//   WC_CHECK(a == b);                                   // a bug of ours: stops the process
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace weightcast {

enum class Code : uint8_t {
  kInternal,         // a fault of ours
  kInvalidArgument,  // the call is wrong: fix the call
  kDataLoss,         // data does not verify: fence, never retry in place
  kInvalidData,  // data that does not fit: malformed, unknown, missing, doubly covered, wrong shape
  kConflict,     // illegal state: wrong base, run or epoch; number not above the latest; held
  kAlreadyExists,      // create-only found something there
  kNotFound,           // no such object, version, run
  kAborted,            // lost a race: read again, then decide
  kUnavailable,        // the same call may work later
  kDeadlineExceeded,   // the same call may work later, with more time
  kResourceExhausted,  // disk full or over a budget: the same call may work with more
};

// "data-loss", "conflict", ...: as `--json` prints it.
std::string_view CodeName(Code code);

// Process exit code of docs/cli.md, "Exit codes".
int ExitCode(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;

  // The same error, with the thing it happened to in front: "<what>: <message>".
  Error With(std::string_view what) const&;
};

// A value or an error. Thin over std::expected; [[nodiscard]] so that no error is dropped.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : rep_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)                          // NOLINT(google-explicit-constructor)
      : rep_(std::unexpected(std::move(error))) {}

  bool ok() const { return rep_.has_value(); }
  const Error& error() const { return rep_.error(); }
  T& value() & { return rep_.value(); }
  const T& value() const& { return rep_.value(); }
  T&& value() && { return std::move(rep_).value(); }
  T& operator*() & { return *rep_; }
  const T& operator*() const& { return *rep_; }
  T* operator->() { return &*rep_; }
  const T* operator->() const { return &*rep_; }

  Result With(std::string_view what) && {
    if (ok()) return std::move(*this);
    return error().With(what);
  }

 private:
  std::expected<T, Error> rep_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)  // NOLINT(google-explicit-constructor)
      : rep_(std::unexpected(std::move(error))) {}

  bool ok() const { return rep_.has_value(); }
  const Error& error() const { return rep_.error(); }
  void value() const {}

  Result With(std::string_view what) && {
    if (ok()) return {};
    return error().With(what);
  }

 private:
  std::expected<void, Error> rep_;
};

using Status = Result<void>;
inline Status Ok() { return {}; }

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);

// Evaluates to the value of a Result, or returns its error from the enclosing function. May be
// nested: each use names its variable anew. Not inside braces behind other members: leaving from
// there, g++ leaks those that are made already (a house rule).
#define WC_TRY(expression) WC_TRY_COUNTED(expression, __COUNTER__)
#define WC_TRY_COUNTED(expression, n) WC_TRY_NAMED(expression, n)
#define WC_TRY_NAMED(expression, n)            \
  __extension__({                              \
    auto wc_result_##n = (expression);         \
    if (!wc_result_##n.ok()) [[unlikely]]      \
      return std::move(wc_result_##n).error(); \
    std::move(wc_result_##n).value();          \
  })

// What only a bug can make false. On in every build.
#define WC_CHECK(condition)                                      \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      ::weightcast::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

}  // namespace weightcast
