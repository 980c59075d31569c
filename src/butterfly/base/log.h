// Diagnostics for people, always on stderr; stdout belongs to results. Level: BUTTERFLY_LOG=debug|info|warn|error|off.
// Thread-safe. Libraries log events worth a line (a peer joined); errors are returned, not logged.
#pragma once

#include <fmt/core.h>

#include <iosfwd>

namespace butterfly {

class Log {
 public:
  enum class Level { kDebug, kInfo, kWarn, kError };

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::kDebug, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::kInfo, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::kWarn, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::kError, format, fmt::make_format_args(args...));
  }

 private:
  void write(Level level, fmt::string_view format, fmt::format_args args);
};

/// The project's log. Default level: warn.
Log& log();

/// Sends lines to `stream` instead of stderr, null: to stderr again. Returns the stream before. For tests; not while
/// other threads log.
std::ostream* redirect_log(std::ostream* stream);

}  // namespace butterfly
