// Programmer errors: a broken invariant ends the process with its place and its words.
// Never used on anything that comes from outside. BF_CHECK is always on, BF_DCHECK in debug builds.
#pragma once

#include <string_view>

namespace butterfly::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message = {});
}  // namespace butterfly::detail

#define BF_CHECK(condition, ...)                                                                    \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::butterfly::detail::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)

#ifdef NDEBUG
#define BF_DCHECK(condition, ...) \
  do {                            \
  } while (false && (condition))
#else
#define BF_DCHECK(condition, ...) BF_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
