#include "options/unknown_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "butterfly/base/text/nearest_word.h"

namespace butterfly::app {
namespace {

/// The option that `name` may stand for, whether the section before its dot was typed or not; empty: none.
std::string nearest_option(const std::string& name, const std::vector<std::string>& options) {
  std::vector<std::string> without_section;
  for (const std::string& option : options) without_section.push_back("--" + option.substr(option.rfind('.') + 1));
  const auto whole = [&](const std::string& short_name) -> std::string {
    const auto found = std::ranges::find(without_section, short_name);
    if (found == without_section.end()) return {};
    return options[static_cast<std::size_t>(found - without_section.begin())];
  };
  if (const std::string exactly = whole(name); !exactly.empty()) return exactly;
  const std::string nearest = nearest_word(name, options);
  return nearest.empty() && name.starts_with("--") ? whole(nearest_word(name, without_section)) : nearest;
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
  const std::string nearest =
      option ? nearest_option(name, command.option_names()) : nearest_word(name, command.subcommand_names());
  return fmt::format("there is no {} '{}'{}; '{} --help' tells what there is", option ? "option" : "command", name,
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), called);
}

}  // namespace butterfly::app
