#include "shared/load_display.h"

#include <unistd.h>

#include <cstdio>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/trace/trace.h"

namespace butterfly::app {
namespace {

constexpr std::uint64_t kMomentNs = 300'000'000;
constexpr std::uint64_t kDrawPauseNs = 100'000'000;
constexpr std::uint64_t kLogPauseNs = 5'000'000'000;

std::string line_of(const LoadProgress& progress, double seconds) {
  const double rate = static_cast<double>(progress.packed_bytes) / seconds;
  return fmt::format("loading: {:.0f} %, {} of weights, {}/s", 100 * progress.done, format_bytes(progress.packed_bytes),
                     format_bytes(static_cast<std::uint64_t>(rate)));
}

}  // namespace

LoadDisplay::LoadDisplay() : terminal_(::isatty(STDERR_FILENO) == 1) {}

LoadDisplay::~LoadDisplay() {
  clear();
}

void LoadDisplay::clear() {
  if (drawn_) std::fprintf(stderr, "\r%60s\r", "");
  drawn_ = false;
}

void LoadDisplay::show(const LoadProgress& progress) {
  const std::uint64_t now = trace::now_ns();
  if (progress.done <= 0) {
    begin_ns_ = told_ns_ = now;
    return;
  }
  const double seconds = static_cast<double>(now - begin_ns_) * 1e-9;
  if (progress.done >= 1) {
    clear();
    if (now - begin_ns_ < kMomentNs) return;
    log().info("loaded {} of weights in {}", format_bytes(progress.packed_bytes), format_seconds(seconds));
    return;
  }
  if (now - begin_ns_ < kMomentNs || now - told_ns_ < (terminal_ ? kDrawPauseNs : kLogPauseNs)) return;
  told_ns_ = now;
  if (!terminal_) {
    log().info("{}", line_of(progress, seconds));
    return;
  }
  std::fprintf(stderr, "\r%-60s", line_of(progress, seconds).c_str());
  drawn_ = true;
}

}  // namespace butterfly::app
