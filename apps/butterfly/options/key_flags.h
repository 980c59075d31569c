// The keys of a configuration as flags of a command: -c FILE, and a flag for each key, which wins over the file. Used
// by the thread that starts the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/base/settings/config_file.h"
#include "options/options.h"

namespace butterfly::app {

/// One key on the command line: "--dead-after 500", "--quiet", "--no-train".
class KeyFlag {
 public:
  /// `standard` is the key's default.
  KeyFlag(Command command, const KeyText& key, const KeyValue& standard);

  /// Where it was given, it is set. Errors: those of set_from_text().
  Status apply(const BoundKey& key) const;

 private:
  Option option_;
  std::optional<Option> negation_{};  // of what is on by default
};

/// -c, and what `--help` says of it.
void add_config_option(Command command, std::string& file, std::string_view page);

template <typename Config>
class KeyFlags {
 public:
  /// The keys outlive the flags. To be called once for each table.
  void add(Command command, const std::vector<ConfigKey<Config>>& keys, const Config& standard = {}) {
    for (const ConfigKey<Config>& key : keys) flags_.emplace_back(&key, KeyFlag(command, key, key.get(standard)));
  }

  /// What was given on the command line. Errors: those of set_from_text().
  Status apply(Config& config) const {
    for (const auto& [key, flag] : flags_) BF_TRY(flag.apply(bind_key(*key, config)));
    return {};
  }

 private:
  std::vector<std::pair<const ConfigKey<Config>*, KeyFlag>> flags_;
};

}  // namespace butterfly::app
