#include "butterfly/train/config/run_config.h"

#include <algorithm>
#include <cmath>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/toml_file.h"
#include "butterfly/model/core/config_json.h"
#include "butterfly/train/config/run_keys.h"

namespace butterfly {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

/// The elements of an array that are all of one type; nothing otherwise.
template <typename T>
std::optional<std::vector<T>> elements(const toml::array& array) {
  std::vector<T> values;
  for (const toml::node& element : array) {
    const auto value = std::is_same_v<T, double> && element.is_number() ? element.value<T>() : element.value_exact<T>();
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

/// The node as the alternative that `kind` holds; nothing where it is something else.
std::optional<KeyValue> value_of(const toml::node& node, const KeyValue& kind) {
  const auto as_value = [](auto value) { return value ? std::optional<KeyValue>(*value) : std::nullopt; };
  switch (kind.index()) {
    case 0:
      return as_value(node.value_exact<bool>());
    case 1:
      return as_value(node.value_exact<std::int64_t>());
    case 2: {
      const auto number = node.is_number() ? node.value<double>() : std::nullopt;
      return as_value(number && std::isfinite(*number) ? number : std::nullopt);
    }
    case 3:
      return as_value(node.value_exact<std::string>());
    case 4:
      return node.is_array() ? as_value(elements<std::string>(*node.as_array())) : std::nullopt;
    default:
      return node.is_array() ? as_value(elements<double>(*node.as_array())) : std::nullopt;
  }
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  /// `prefix` is the table's name with a point, empty for the file itself.
  Status read(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      const auto known = std::ranges::find(run_keys(), name, &RunKey::name);
      if (known != run_keys().end()) {
        BF_TRY(set(*known, node));
      } else if (node.is_table() && !names_below(name + ".").empty()) {
        BF_TRY(read(*node.as_table(), name + "."));
      } else {
        return unknown_key(fmt::format("{}: line {}", file_, key.source().begin.line), name, names_below(prefix));
      }
    }
    return {};
  }

  const RunConfig& config() const { return config_; }

 private:
  Status set(const RunKey& key, const toml::node& node) {
    const KeyValue kind = key.get(config_);
    const auto value = value_of(node, kind);
    if (!value) return wrong(key, node, fmt::format("expected {}", kind_of(kind)));
    const Status set = key.set(config_, *value);
    return set ? set : wrong(key, node, set.error().message);
  }

  Status wrong(const RunKey& key, const toml::node& node, const std::string& expected) const {
    return make_error(ErrorCode::kBadData, "{}: line {}: {} is {}, {}", file_, node.source().begin.line, key.name,
                      shown(node), expected);
  }

  static std::vector<std::string> names_below(const std::string& prefix) {
    std::vector<std::string> names;
    for (const RunKey& key : run_keys()) {
      if (!key.name.starts_with(prefix)) continue;
      const std::size_t end = key.name.find('.', prefix.size());
      const std::string name = key.name.substr(0, end);
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  std::string file_;
  RunConfig config_;
};

}  // namespace

Result<RunConfig> parse_run_config(const std::string& text, const std::string& name) {
  BF_ASSIGN_OR_RETURN(const toml::table table, parse_toml(text, name));
  Reader reader(name);
  BF_TRY(reader.read(table, ""));
  return reader.config();
}

Result<RunConfig> read_run_config(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_toml_text(path, kMaxFileBytes, "the file of a run"));
  return parse_run_config(text, path);
}

std::string to_toml(const RunConfig& config) {
  std::string text, table;
  for (const RunKey& key : run_keys()) {
    const std::size_t point = key.name.find('.');
    const std::string in = point == std::string::npos ? "" : key.name.substr(0, point);
    if (in != table) text += fmt::format("\n[{}]\n", in);
    table = in;
    text +=
        fmt::format("{} = {}\n", key.name.substr(point == std::string::npos ? 0 : point + 1), to_toml(key.get(config)));
  }
  return text;
}

std::string fingerprint(const RunConfig& config) {
  std::string text = to_json(config.shape) + "\n";
  for (const RunKey& key : run_keys()) {
    if (key.role == KeyRole::kDecides) text += fmt::format("{} = {}\n", key.name, to_toml(key.get(config)));
  }
  return to_hex(sha256(as_bytes(text)));
}

}  // namespace butterfly
