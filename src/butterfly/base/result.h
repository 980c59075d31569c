// Operating errors as values: Result<T> carries a T or an Error, Status carries nothing or an Error.
// Programmer errors are BF_CHECK (check.h). No exception crosses a module. Thread-safe: plain values.
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace butterfly {

/// What went wrong, coarse enough to act on. The message says the rest.
enum class ErrorCode {
  kInvalidArgument,  // the caller or the user asked for something impossible
  kNotFound,         // a file, tensor, token or peer that should exist does not
  kIo,               // the operating system refused a read or a write
  kBadData,          // a file or a frame contradicts its own format
  kUnsupported,      // valid, but not something this build can do
  kNoMemory,         // a memory budget would be exceeded
  kUnavailable,      // a peer cannot be reached or went away
  kTimeout,          // a deadline passed
  kProtocol,         // a peer speaks another version or out of turn
  kCancelled,        // the user or an epoch change ended the operation
};

/// "invalid argument", "not found", ...
const char* to_string(ErrorCode code);

/// One sentence naming both disagreeing values, and where it was noticed.
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  std::source_location where = std::source_location::current();
};

template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

using Status = Result<void>;

namespace detail {
/// A format string that remembers where it was written.
template <typename... Args>
struct LocatedFormat {
  // NOLINTNEXTLINE(google-explicit-constructor): stands in for a string literal, of any length.
  consteval LocatedFormat(const char* format, std::source_location location = std::source_location::current())
      : text(format), where(location) {}
  fmt::format_string<Args...> text;
  std::source_location where;
};
}  // namespace detail

/// return make_error(ErrorCode::kBadData, "{}: has {} tensors, the header says {}", path, n, m);
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> make_error(ErrorCode code,
                                               detail::LocatedFormat<std::type_identity_t<Args>...> format,
                                               Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format.text, std::forward<Args>(args)...), format.where});
}

}  // namespace butterfly

#define BF_CONCAT_INNER(a, b) a##b
#define BF_CONCAT(a, b) BF_CONCAT_INNER(a, b)

/// Evaluates a Status or Result; returns its error from the enclosing function.
#define BF_TRY(expression)                                               \
  do {                                                                   \
    auto bf_status = (expression);                                       \
    if (!bf_status) return tl::unexpected(std::move(bf_status).error()); \
  } while (false)

/// BF_ASSIGN_OR_RETURN(auto model, load(path));
#define BF_ASSIGN_OR_RETURN(target, expression) \
  BF_ASSIGN_OR_RETURN_INNER(BF_CONCAT(bf_result_, __LINE__), target, expression)
#define BF_ASSIGN_OR_RETURN_INNER(result, target, expression)    \
  auto result = (expression);                                    \
  if (!result) return tl::unexpected(std::move(result).error()); \
  target = std::move(*result)
