#include "butterfly/base/log.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "butterfly/base/log_level.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("butterfly", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %l %v");
    const char* level = std::getenv("BUTTERFLY_LOG");
    made->set_level(level ? spdlog::level::from_str(level) : spdlog::level::warn);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum spdlog_level(Log::Level level) {
  switch (level) {
    case Log::Level::kDebug:
      return spdlog::level::debug;
    case Log::Level::kInfo:
      return spdlog::level::info;
    case Log::Level::kWarn:
      return spdlog::level::warn;
    case Log::Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void Log::write(Level level, fmt::string_view format, fmt::format_args args) {
  if (!logger().should_log(spdlog_level(level))) return;
  const std::string line = one_line(fmt::vformat(format, args));  // what others wrote is quoted in it
  logger().log(spdlog_level(level), std::string_view(line));
}

std::ostream* redirect_log(std::ostream* stream) {
  static std::ostream* current = nullptr;
  if (stream != nullptr) {
    logger().sinks() = {std::make_shared<spdlog::sinks::ostream_sink_mt>(*stream)};
  } else {
    logger().sinks() = {std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  }
  logger().set_pattern("%H:%M:%S.%e %l %v");
  return std::exchange(current, stream);
}

std::string set_log_level(std::string_view name) {
  const auto before = spdlog::level::to_string_view(logger().level());
  std::string was(before.data(), before.size());
  logger().set_level(spdlog::level::from_str(std::string(name)));
  return was;
}

Log& log() {
  static Log log;
  return log;
}

}  // namespace butterfly
