// The command line: commands and their options. Hides CLI11, which only options.cc includes, as every file that does
// pays seconds for it. Used by the thread that starts the program.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace butterfly::app {

/// An option or a flag. A handle: the command line owns what it stands for.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option required();
  /// Refuses a command line with this and one of the others.
  Option excludes(Option other);
  Option excludes(std::initializer_list<Option> others);
  /// Refuses a command line with this and without the other.
  Option needs(Option other);
  /// Names in the help what the variable holds now.
  Option show_default();
  /// A value "a,b" is two values.
  Option comma_separated();
  /// Both borders belong to the range.
  Option in_range(int least, int most);
  Option in_range(double least, double most);
  Option one_of(const std::vector<std::string>& values);
  Option existing_file();
  /// From 0 to 2^64 - 1; the conversion alone would wrap around.
  Option whole_number();
  /// The heading of the help below which it stands.
  Option group(const std::string& heading);
  /// What the help says instead of the type.
  Option type_name(const std::string& name);
  /// Values after it; `most` of -1: any number.
  Option takes(int least, int most);
  /// Each time that it is given, one value follows.
  Option takes_one_each_time();
  /// Of several values the last counts; otherwise several are refused.
  Option takes_last();

  /// How many values were given.
  std::size_t count() const;
  const std::vector<std::string>& values() const;

 private:
  CLI::Option* option_;
};

/// A command, or a command of a command. A handle: the command line owns what it stands for.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  Command add_subcommand(const std::string& name, const std::string& help);
  /// `names` is "-m,--model", or "model" for a value without a dash. T: std::string, int, std::uint64_t, float, double,
  /// or a vector of std::string, int or std::size_t (options.cc instantiates them).
  template <typename T>
  Option add_option(const std::string& names, T& value, const std::string& help);
  /// One whose values() the caller reads.
  Option add_option(const std::string& names, const std::string& help);
  /// "!--no-x" clears `value`.
  Option add_flag(const std::string& names, bool& value, const std::string& help);
  /// One whose count() the caller reads.
  Option add_flag(const std::string& names, const std::string& help);
  void require_subcommand();
  /// The end of the help.
  void footer(const std::string& text);
  /// Calls `chosen` once the command line with this command was read. It returns what is missing, with which the
  /// command line is refused; empty: nothing is.
  void on_chosen(std::function<std::string()> chosen);

  std::string name() const;
  /// Of subcommands.
  std::vector<std::string> subcommand_names() const;
  /// With two dashes.
  std::vector<std::string> option_names() const;
  /// The subcommand that the command line names.
  std::optional<Command> chosen() const;
  /// Words that stand for nothing here.
  std::vector<std::string> unknown_words() const;

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  /// `version` is what --version prints.
  CommandLine(const std::string& help, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// The program itself.
  Command root() { return Command(*app_); }
  /// The exit code where there is nothing to run: help was shown, or the words were refused with a sentence on stderr.
  std::optional<int> parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace butterfly::app
