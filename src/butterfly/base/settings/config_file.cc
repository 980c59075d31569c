#include "butterfly/base/settings/config_file.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "butterfly/base/settings/toml_file.h"

namespace butterfly {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

/// The elements of an array that are all of one type; nothing otherwise.
template <typename T>
std::optional<std::vector<T>> elements(const toml::node& node) {
  if (!node.is_array()) return std::nullopt;
  std::vector<T> values;
  for (const toml::node& element : *node.as_array()) {
    const auto value = std::is_same_v<T, double> && element.is_number() ? element.value<T>() : element.value_exact<T>();
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

/// Reads a node into the alternative that it is called with; false where the node is something else.
struct NodeReader {
  const toml::node& node;

  template <typename T>
  static bool take(T& value, const std::optional<T>& found) {
    if (found) value = *found;
    return found.has_value();
  }
  bool operator()(double& value) const {
    return node.is_number() && take(value, node.value<double>()) && std::isfinite(value);
  }
  bool operator()(std::uint64_t& value) const {
    const auto found = node.value_exact<std::int64_t>();
    if (found) value = static_cast<std::uint64_t>(*found);
    return found && *found >= 0;
  }
  bool operator()(std::vector<std::string>& value) const { return take(value, elements<std::string>(node)); }
  bool operator()(std::vector<double>& value) const { return take(value, elements<double>(node)); }
  template <typename T>
  bool operator()(T& value) const {
    return take(value, node.value_exact<T>());
  }
};

class Reader {
 public:
  Reader(std::string file, std::span<const BoundKey> keys) : file_(std::move(file)), keys_(keys) {}

  /// `prefix` is the table's name with a point, empty for the file itself.
  Status read(const toml::table& table, const std::string& prefix) const {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      const auto known = std::ranges::find(keys_, name, &BoundKey::name);
      if (known != keys_.end()) {
        BF_TRY(set(*known, node));
      } else if (node.is_table() && !names_below(name + ".").empty()) {
        BF_TRY(read(*node.as_table(), name + "."));
      } else {
        return unknown_key(fmt::format("{}: line {}", file_, key.source().begin.line), name, names_below(prefix));
      }
    }
    return {};
  }

 private:
  Status set(const BoundKey& key, const toml::node& node) const {
    KeyValue value = key.get();
    if (!std::visit(NodeReader{node}, value)) return wrong(key, node, fmt::format("expected {}", kind_of(value)));
    const Status set = key.set(value);
    return set ? set : wrong(key, node, set.error().message);
  }

  Status wrong(const BoundKey& key, const toml::node& node, const std::string& expected) const {
    return make_error(ErrorCode::kBadData, "{}: line {}: {} is {}, {}", file_, node.source().begin.line, key.name,
                      shown(node), expected);
  }

  std::vector<std::string> names_below(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const BoundKey& key : keys_) {
      if (!key.name.starts_with(prefix)) continue;
      const std::size_t end = key.name.find('.', prefix.size());
      const std::string name = key.name.substr(0, end);
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  std::string file_;
  std::span<const BoundKey> keys_;
};

}  // namespace

std::string flag_name(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key;
}

Status read_keys(const std::string& text, const std::string& file, std::span<const BoundKey> keys) {
  BF_ASSIGN_OR_RETURN(const toml::table table, parse_toml(text, file));
  return Reader(file, keys).read(table, "");
}

Status read_keys_file(const std::string& path, std::string_view what, std::span<const BoundKey> keys) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_toml_text(path, kMaxFileBytes, what));
  return read_keys(text, path, keys);
}

Status set_from_text(const BoundKey& key, const std::string& text) {
  const KeyValue kind = key.get();
  const auto value = parse_value(text, kind, key.list);
  const Status set = value ? key.set(*value) : make_error(ErrorCode::kInvalidArgument, "expected {}", kind_of(kind));
  if (set) return {};
  return make_error(ErrorCode::kInvalidArgument, "--{} is \"{}\", {}", flag_name(key.name), text, set.error().message);
}

std::string keys_to_toml(std::span<const std::pair<std::string, KeyValue>> values) {
  std::string text, table;
  for (const auto& [name, value] : values) {
    const std::size_t point = name.find('.');
    const std::string in = point == std::string::npos ? "" : name.substr(0, point);
    if (in != table) text += fmt::format("\n[{}]\n", in);
    table = in;
    text += fmt::format("{} = {}\n", name.substr(point == std::string::npos ? 0 : point + 1), to_toml(value));
  }
  return text;
}

}  // namespace butterfly
