#include "options/unknown_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "butterfly/base/text/nearest_word.h"

namespace butterfly::app {
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
  const std::string nearest = nearest_word(name, option ? command.option_names() : command.subcommand_names());
  return fmt::format("there is no {} '{}'{}; '{} --help' tells what there is", option ? "option" : "command", name,
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), called);
}

}  // namespace butterfly::app
