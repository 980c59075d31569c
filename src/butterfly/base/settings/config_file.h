// Tables of keys at work: a configuration read from a TOML file or from the texts of flags, and written as TOML. Plain
// functions, thread-safe.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/base/settings/config_key.h"

namespace butterfly {

/// A key of one configuration, which it borrows.
struct BoundKey {
  std::string name{};
  ListForm list = ListForm::kCommas;
  std::function<KeyValue()> get{};
  std::function<Status(const KeyValue&)> set{};
};

template <typename Config>
BoundKey bind_key(const ConfigKey<Config>& key, Config& config) {
  return {.name = key.name,
          .list = key.list,
          .get = [&key, &config] { return key.get(config); },
          .set = [&key, &config](const KeyValue& value) { return key.set(config, value); }};
}

template <typename Config>
std::vector<BoundKey> bind_keys(const std::vector<ConfigKey<Config>>& keys, Config& config) {
  std::vector<BoundKey> bound;
  for (const ConfigKey<Config>& key : keys) bound.push_back(bind_key(key, config));
  return bound;
}

/// "dead_after" -> "dead-after": as its flag is written, without the two dashes.
std::string flag_name(std::string key);

/// Sets the keys that the text has; `file` stands for it in errors. Errors: kBadData naming file, line and key; a key
/// that does not exist is one.
Status read_keys(const std::string& text, const std::string& file, std::span<const BoundKey> keys);

/// The same for a file; `what` is "the file of a run". Errors also: kNotFound, kIo.
Status read_keys_file(const std::string& path, std::string_view what, std::span<const BoundKey> keys);

/// `text` as the value of a flag. Errors: kInvalidArgument naming the key, what it was given and what would do.
Status set_from_text(const BoundKey& key, const std::string& text);
template <typename Config>
Status set_from_text(Config& config, const ConfigKey<Config>& key, const std::string& text) {
  return set_from_text(bind_key(key, config), text);
}

/// All keys, tables under their names; reading it gives back the same values.
std::string keys_to_toml(std::span<const std::pair<std::string, KeyValue>> values);
template <typename Config>
std::string keys_to_toml(const std::vector<ConfigKey<Config>>& keys, const Config& config) {
  std::vector<std::pair<std::string, KeyValue>> values;
  for (const ConfigKey<Config>& key : keys) values.emplace_back(key.name, key.get(config));
  return keys_to_toml(values);
}

}  // namespace butterfly
