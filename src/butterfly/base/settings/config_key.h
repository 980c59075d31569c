// One setting of a configuration as a row of a table: what its file, its flags and the page that documents it have in
// common. A key is read and written as a plain value; what values go together is the business of who owns the
// configuration. Immutable, thread-safe.
//
// A table is made of lines such as
//   value_key({.name = "threads", .help = "Threads of each node"}, BF_MEMBER(InferenceConfig, threads))
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/base/settings/key_value.h"

namespace butterfly {

/// Whether another value gives other bits: in a run of training, what a resumed run must agree on; in inference, the
/// text.
enum class KeyRole : std::uint8_t { kDecides, kAround };

/// Both borders belong to the range. Whole numbers are 0 or more anyway.
struct KeyRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();

  bool is_open() const { return least == KeyRange{}.least && most == KeyRange{}.most; }
};

/// What people see of a key.
struct KeyText {
  std::string name{};   // "optimizer.lr": key `lr` of table [optimizer]; its flag is --optimizer.lr
  std::string alias{};  // a second flag: "lr"; empty: there is only one
  KeyRole role = KeyRole::kAround;
  std::string help{};
  std::string group{};                // heading of its flag in the help; empty: by its table
  char letter = 0;                    // its flag of one letter; 0: none
  ListForm list = ListForm::kCommas;  // of several texts in a flag
  KeyRange range{};                   // of numbers
};

/// The help, with the range of numbers that have one.
std::string help_of(const KeyText& key);

template <typename Config>
struct ConfigKey : KeyText {
  std::function<KeyValue(const Config&)> get{};
  /// Takes the alternative that get() gives. Errors: kInvalidArgument, "expected ..." without naming the key.
  std::function<Status(Config&, const KeyValue&)> set{};
};

/// "expected a whole number from 10 to 60000".
Status check_range(std::int64_t value, std::int64_t max, const KeyRange& range);
Status check_range(double value, const KeyRange& range);
/// The nearest double to what people write for this float.
double shortest_double(float value);

namespace settings_detail {

template <typename Access>
struct AccessOf;
template <typename Owner, typename Target, typename C>
struct AccessOf<Target& (Owner::*)(C&) const> {
  using Config = C;
  using Value = Target;
};
/// A function object from a config to a reference: which config, and what it refers to.
template <typename Access>
using Of = AccessOf<decltype(&Access::operator())>;
template <typename Access>
using ConfigOf = typename Of<Access>::Config;
template <typename Access>
using ValueOf = typename Of<Access>::Value;

template <typename T>
inline constexpr bool kIsWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

/// Whole numbers of any width are one alternative; a float is a number, a time a whole number of its unit.
template <typename T>
KeyValue to_value(const T& value) {
  if constexpr (kIsWhole<T>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    return shortest_double(value);
  } else {
    return value;
  }
}

template <typename T>
Status from_value(T& target, const KeyValue& value, const KeyRange& range) {
  if constexpr (kIsWhole<T>) {
    const std::int64_t number = std::get<std::int64_t>(value);
    constexpr std::uint64_t kMax =
        std::min<std::uint64_t>(std::numeric_limits<T>::max(), std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    BF_TRY(check_range(number, static_cast<std::int64_t>(kMax), range));
    target = static_cast<T>(number);
  } else if constexpr (std::is_floating_point_v<T>) {
    BF_TRY(check_range(std::get<double>(value), range));
    target = static_cast<T>(std::get<double>(value));
  } else {
    target = std::get<T>(value);
  }
  return {};
}

}  // namespace settings_detail

/// A key whose get() and set() are functions of the caller's.
template <typename Config>
ConfigKey<Config> config_key(KeyText text, decltype(ConfigKey<Config>::get) get, decltype(ConfigKey<Config>::set) set) {
  return {std::move(text), std::move(get), std::move(set)};
}

/// A flag, a number, a text, or several.
template <typename Access>
auto value_key(KeyText text, Access at) {
  using Config = settings_detail::ConfigOf<Access>;
  const KeyRange range = text.range;
  return config_key<Config>(
      std::move(text),
      [at](const Config& config) { return settings_detail::to_value(at(const_cast<Config&>(config))); },
      [at, range](Config& config, const KeyValue& value) {
        return settings_detail::from_value(at(config), value, range);
      });
}

/// A whole number up to 2^64 - 1. TOML itself has none above 2^63 - 1.
template <typename Access>
auto wide_key(KeyText text, Access at) {
  using Config = settings_detail::ConfigOf<Access>;
  return config_key<Config>(
      std::move(text), [at](const Config& config) { return KeyValue(at(const_cast<Config&>(config))); },
      [at](Config& config, const KeyValue& value) -> Status {
        at(config) = std::get<std::uint64_t>(value);
        return {};
      });
}

/// A time, as a whole number of `Unit`.
template <typename Unit, typename Access>
auto time_key(KeyText text, Access at) {
  using Config = settings_detail::ConfigOf<Access>;
  const KeyRange range = text.range;
  return config_key<Config>(
      std::move(text),
      [at](const Config& config) {
        return KeyValue(std::int64_t{std::chrono::duration_cast<Unit>(at(const_cast<Config&>(config))).count()});
      },
      [at, range](Config& config, const KeyValue& value) -> Status {
        const std::int64_t number = std::get<std::int64_t>(value);
        BF_TRY(check_range(number, std::numeric_limits<int>::max(), range));
        at(config) = Unit(number);
        return {};
      });
}

template <typename Access>
using KeyNames = std::vector<std::pair<std::string, settings_detail::ValueOf<Access>>>;

/// One of a few names, which are added to the help.
template <typename Access>
auto choice_key(KeyText text, Access at, KeyNames<Access> names) {
  using Config = settings_detail::ConfigOf<Access>;
  std::string all;
  for (const auto& [spelling, value] : names) all += (all.empty() ? "" : ", ") + spelling;
  text.help += ": " + all;
  return config_key<Config>(
      std::move(text),
      [at, names](const Config& config) -> KeyValue {
        for (const auto& [spelling, value] : names) {
          if (value == at(const_cast<Config&>(config))) return spelling;
        }
        return std::string();
      },
      [at, names, all](Config& config, const KeyValue& given) -> Status {
        for (const auto& [spelling, value] : names) {
          if (spelling != std::get<std::string>(given)) continue;
          at(config) = value;
          return {};
        }
        return make_error(ErrorCode::kInvalidArgument, "expected one of {}", all);
      });
}

/// What has a to_string() and a parser of its own.
template <typename Access, typename Parse>
auto parsed_key(KeyText text, Access at, Parse parse) {
  using Config = settings_detail::ConfigOf<Access>;
  return config_key<Config>(
      std::move(text),
      [at](const Config& config) -> KeyValue { return std::string(to_string(at(const_cast<Config&>(config)))); },
      [at, parse](Config& config, const KeyValue& given) -> Status {
        BF_ASSIGN_OR_RETURN(at(config), parse(std::get<std::string>(given)));
        return {};
      });
}

#define BF_MEMBER(Config, member) [](Config& config) -> auto& { return config.member; }

}  // namespace butterfly
