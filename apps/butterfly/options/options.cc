#include "options/options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "commands.h"
#include "options/unknown_word.h"
#include "options/whole_number.h"

namespace butterfly::app {

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Option Option::excludes(std::initializer_list<Option> others) {
  for (const Option other : others) option_->excludes(other.option_);
  return *this;
}

Option Option::needs(Option other) {
  option_->needs(other.option_);
  return *this;
}

Option Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option Option::comma_separated() {
  option_->delimiter(',');
  return *this;
}

Option Option::in_range(int least, int most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option Option::in_range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option Option::whole_number() {
  option_->check(check_whole_number);
  return *this;
}

Option Option::existing_file() {
  option_->check(CLI::ExistingFile);
  return *this;
}

Option Option::group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Option Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option Option::takes(int least, int most) {
  option_->expected(least, most);
  return *this;
}

Option Option::takes_one_each_time() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::takes_last() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *this;
}

std::size_t Option::count() const {
  return option_->count();
}

const std::vector<std::string>& Option::values() const {
  return option_->results();
}

Command Command::add_subcommand(const std::string& name, const std::string& help) {
  return Command(*app_->add_subcommand(name, help));
}

template <typename T>
Option Command::add_option(const std::string& names, T& value, const std::string& help) {
  return Option(*app_->add_option(names, value, help));
}

template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, float&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::size_t>&, const std::string&);

Option Command::add_option(const std::string& names, const std::string& help) {
  return Option(*app_->add_option(names, CLI::callback_t(), help));
}

Option Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return Option(*app_->add_flag(names, value, help));
}

Option Command::add_flag(const std::string& names, const std::string& help) {
  return Option(*app_->add_flag_callback(
      names, [] {}, help));
}

void Command::require_subcommand() {
  app_->require_subcommand(1);
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::on_chosen(std::function<std::string()> chosen) {
  app_->callback([chosen = std::move(chosen)] {
    if (const std::string missing = chosen(); !missing.empty()) throw CLI::RequiredError(missing);
  });
}

std::string Command::name() const {
  return app_->get_name();
}

std::vector<std::string> Command::subcommand_names() const {
  std::vector<std::string> names;
  const CLI::App& app = *app_;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> Command::option_names() const {
  std::vector<std::string> names;
  const CLI::App& app = *app_;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::optional<Command> Command::chosen() const {
  const auto chosen = app_->get_subcommands();
  if (chosen.empty()) return std::nullopt;
  return Command(*chosen.front());
}

std::vector<std::string> Command::unknown_words() const {
  return app_->remaining();
}

CommandLine::CommandLine(const std::string& help, const std::string& version) : app_(std::make_unique<CLI::App>(help)) {
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool refused = error.get_exit_code() != 0;  // not so when help or the version was asked for
    if (const auto unknown = refused ? unknown_word(root()) : std::nullopt) {
      std::fprintf(stderr, "butterfly: %s\n", unknown->c_str());
      return kExitBadInput;
    }
    return app_->exit(error) == 0 ? kExitOk : kExitBadInput;
  }
  return std::nullopt;
}

}  // namespace butterfly::app
