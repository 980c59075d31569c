#include "butterfly/base/text/printable.h"

namespace butterfly {

std::string printable(std::string_view text) {
  std::string result;
  for (char c : text.substr(0, 80)) result += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > 80) result += "...";
  return result;
}

}  // namespace butterfly
