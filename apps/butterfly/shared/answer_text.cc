#include "shared/answer_text.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "butterfly/base/text/one_line.h"

namespace butterfly::app {
namespace {

std::atomic<bool> within_line{false};

bool on_one_terminal() {
  static const bool both = ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  return both;
}

}  // namespace

bool write_answer(std::string_view text) {
  if (!text.empty()) within_line = text.back() != '\n';
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

void write_note(std::string_view line) {
  const char* before = on_one_terminal() && within_line.exchange(false) ? "\n" : "";
  std::fprintf(stderr, "%s%s\n", before, one_line(line).c_str());
}

}  // namespace butterfly::app
