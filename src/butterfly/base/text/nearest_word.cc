#include "butterfly/base/text/nearest_word.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace butterfly {
namespace {

/// Optimal string alignment.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> least(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) least[i][0] = i;
  std::iota(least[0].begin(), least[0].end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = least[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      least[i][j] = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
      }
    }
  }
  return least[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t kLongest = 80;
  if (word.size() > kLongest) return {};
  std::string nearest;
  std::size_t nearest_at = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& one : known) {
    const std::size_t at = edits(word, one);
    if (at == 0) return {};
    if (at >= nearest_at) continue;
    nearest = one;
    nearest_at = at;
  }
  return nearest;
}

}  // namespace butterfly
