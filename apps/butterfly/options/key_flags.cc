#include "options/key_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace butterfly::app {
namespace {

/// "--optimizer.weight_decay,--optimizer.weight-decay", and the shorter names where there are some.
std::string names_of(const KeyText& key) {
  const std::string dashed = flag_name(key.name);
  std::string names = key.letter != 0 ? fmt::format("-{},--{}", key.letter, dashed) : "--" + dashed;
  if (dashed != key.name) names += ",--" + key.name;
  if (!key.alias.empty()) names += ",--" + key.alias;
  return names;
}

std::string group_of(const KeyText& key) {
  if (!key.group.empty()) return key.group;
  if (key.name.starts_with("data.")) return "Data";
  if (key.name.starts_with("optimizer.") || key.name.starts_with("schedule.")) return "Optimizer and schedule";
  if (key.name.starts_with("guard.")) return "Guard against outliers";
  if (key.name.starts_with("parallel.")) return "Ranks";
  if (key.name.starts_with("checkpoint.")) return "Checkpoints";
  return "The run";
}

bool is_flag(const KeyValue& value) {
  return std::holds_alternative<bool>(value);
}

std::string help_with_default(const KeyText& key, const KeyValue& standard) {
  const std::string value = to_toml(standard);
  const bool empty = value == "\"\"" || value == "[]";
  return empty ? help_of(key) : fmt::format("{} [{}]", help_of(key), value);
}

}  // namespace

KeyFlag::KeyFlag(Command command, const KeyText& key, const KeyValue& standard)
    : option_(command.add_option(names_of(key), help_with_default(key, standard))) {
  const bool flag = is_flag(standard);
  const std::string group = group_of(key);
  option_.group(group).type_name(flag ? "[true|false]" : is_list(standard) ? "A,B,..." : "");
  // Of one that is given twice the last counts, as flags win over the file.
  if (!is_list(standard)) {
    option_.takes_last();
  } else if (key.list == ListForm::kCommas) {
    option_.takes(1, -1).comma_separated();
  } else {
    option_.takes(1, -1).takes_one_each_time().type_name("TEXT");
  }
  if (flag) option_.takes(0, 1);
  if (standard == KeyValue(true)) {
    negation_ =
        command.add_flag("--no-" + flag_name(key.name), fmt::format("The same as --{} false", flag_name(key.name)));
    negation_->group(group).excludes(option_);
  }
}

Status KeyFlag::apply(const BoundKey& key) const {
  if (negation_ && negation_->count() > 0) return key.set(false);
  if (option_.count() == 0) return {};
  const std::vector<std::string>& given = option_.values();
  if (std::holds_alternative<std::vector<std::string>>(key.get())) {
    const Status set = key.set(given);
    if (set) return {};
    return make_error(ErrorCode::kInvalidArgument, "--{} is \"{}\", {}", flag_name(key.name),
                      fmt::format("{}", fmt::join(given, ",")), set.error().message);
  }
  const std::string last = given.empty() ? "" : given.back();
  if (is_flag(key.get()) && (last.empty() || last == "{}")) return key.set(true);
  return set_from_text(key, is_list(key.get()) ? fmt::format("{}", fmt::join(given, ",")) : last);
}

void add_config_option(Command command, std::string& file, std::string_view page) {
  command.add_option("-c,--config", file, fmt::format("Settings as TOML ({}); flags win", page));
}

}  // namespace butterfly::app
