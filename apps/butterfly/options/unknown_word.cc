#include "options/unknown_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace butterfly::app {
namespace {

/// Letters to insert, delete, replace or swap with the next (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
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

std::optional<std::string> unknown_word(const Command& program) {
  Command command = program;
  std::string called = "butterfly";
  while (const auto chosen = command.chosen()) {
    command = *chosen;
    called += fmt::format(" {}", command.name());
  }
  const std::vector<std::string> unknown = command.unknown_words();
  const bool has_commands = !command.subcommand_names().empty();
  const auto is_option = [](const std::string& word) { return word.starts_with("-") && word != "-"; };
  auto word = unknown.end();
  if (has_commands) word = std::ranges::find_if_not(unknown, is_option);  // what follows it is for it
  if (word == unknown.end()) word = std::ranges::find_if(unknown, is_option);
  if (word == unknown.end()) return std::nullopt;
  const bool option = is_option(*word);
  const std::string name = word->substr(0, word->find('='));
  const std::size_t most = std::max<std::size_t>(1, name.size() / 3);
  std::string nearest;
  std::size_t nearest_at = most + 1;
  for (const std::string& candidate : option ? command.option_names() : command.subcommand_names()) {
    if (const std::size_t at = distance(name, candidate); at < nearest_at) nearest = candidate, nearest_at = at;
  }
  return fmt::format("there is no {} '{}'{}; '{} --help' tells what there is", option ? "option" : "command", name,
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), called);
}

}  // namespace butterfly::app
