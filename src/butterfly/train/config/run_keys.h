// The keys of a training run as a table: what run.toml, the flags of `butterfly train` and the page that documents them
// have in common. A key is read and written as a plain value; what values go together is validate()'s business.
// Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// A flag, a whole number, a number, a text, texts, numbers.
using KeyValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>, std::vector<double>>;

/// Whether another value gives a run with other bits: what a resumed run must agree on.
enum class KeyRole : std::uint8_t { kDecides, kAround };

struct RunKey {
  std::string name{};   // "optimizer.lr": key `lr` of table [optimizer]; its flag is --optimizer.lr
  std::string alias{};  // a second, shorter flag: "lr"; empty: there is only one
  KeyRole role = KeyRole::kDecides;
  std::string help{};
  std::function<KeyValue(const RunConfig&)> get{};
  /// Takes the alternative that get() gives. Errors: kInvalidArgument, "expected ..." without naming the key.
  std::function<Status(RunConfig&, const KeyValue&)> set{};
};

/// In the order of the documentation: keys without a table first.
const std::vector<RunKey>& run_keys();

/// "a whole number", "true or false", ...: what a value of this alternative is called.
std::string_view kind_of(const KeyValue& value);

/// As TOML writes it.
std::string to_toml(const KeyValue& value);

/// `text` as the value of a flag; texts and numbers are separated by commas. Errors: kInvalidArgument naming the key,
/// what it was given and what would do.
Status set_from_text(RunConfig& config, const RunKey& key, const std::string& text);

}  // namespace butterfly
