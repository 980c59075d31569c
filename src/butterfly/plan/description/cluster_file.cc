#include "butterfly/plan/description/cluster_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "butterfly/base/settings/toml_file.h"
#include "butterfly/base/units.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {
namespace {

constexpr std::size_t kMaxFileBytes = 16 << 20;

// Between the coordinator and the node beside it where the file says nothing about processes of one host.
constexpr LinkDescriptor kSameMemory{.latency_us = 0.0, .gb_per_s = 1000.0};

enum class Zero { kAllowed, kRefused };

/// One table of the file, and its name for errors: `cluster.toml: node "a"`.
class Section {
 public:
  Section(const toml::table& table, std::string where) : table_(&table), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool has(std::string_view key) const { return table_->contains(key); }

  Status only(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : *table_) {
      if (std::ranges::find(known, key.str()) == known.end()) return unknown_key(where_, key.str(), known);
    }
    return {};
  }

  Result<std::string> text(std::string_view key) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty() || *value != printable(*value)) return wrong(key, *node, "a name in quotes");
    return *value;
  }

  Result<double> number(std::string_view key, Zero zero = Zero::kRefused) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    const auto value = node->is_number() ? node->value<double>() : std::nullopt;
    const bool allowed = value && std::isfinite(*value) && (*value > 0 || (*value == 0 && zero == Zero::kAllowed));
    if (!allowed) return wrong(key, *node, zero == Zero::kAllowed ? "a number of 0 or more" : "a number above 0");
    return *value;
  }

  Result<int> count(std::string_view key, int max) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < 1 || *value > max) return wrong(key, *node, fmt::format("a whole number from 1 to {}", max));
    return static_cast<int>(*value);
  }

  Result<std::uint64_t> bytes(std::string_view key) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    std::uint64_t value = 0;
    if (const auto number = node->value_exact<std::int64_t>()) {
      value = *number > 0 ? static_cast<std::uint64_t>(*number) : 0;
    } else if (const auto text = node->value_exact<std::string>()) {
      value = parse_bytes(*text);
    }
    if (value == 0) return wrong(key, *node, "a number of bytes above 0 or a size like \"24 GiB\"");
    return value;
  }

  Result<Section> table(std::string_view key, const std::string& name) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    if (!node->is_table()) return wrong(key, *node, "a table");
    return Section(*node->as_table(), name);
  }

  /// The tables of [[key]], none where it is absent.
  Result<std::vector<const toml::table*>> tables(std::string_view key) const {
    std::vector<const toml::table*> found;
    const toml::node* node = table_->get(key);
    if (node == nullptr) return found;
    if (!node->is_array()) return wrong(key, *node, fmt::format("[[{}]]", key));
    for (const toml::node& element : *node->as_array()) {
      if (!element.is_table()) return wrong(key, element, fmt::format("[[{}]]", key));
      found.push_back(element.as_table());
    }
    return found;
  }

  Result<std::vector<std::string>> names(std::string_view key) const {
    BF_ASSIGN_OR_RETURN(const toml::node* node, required(key));
    std::vector<std::string> found;
    if (const toml::array* array = node->as_array()) {
      for (const toml::node& element : *array) {
        if (const auto name = element.value_exact<std::string>()) found.push_back(*name);
      }
      if (found.size() != array->size()) found.clear();
    }
    if (found.size() != 2) return wrong(key, *node, "two names, like [\"a\", \"b\"]");
    return found;
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& [key, value] : *table_) all.emplace_back(key.str());
    return all;
  }

 private:
  Result<const toml::node*> required(std::string_view key) const {
    const toml::node* node = table_->get(key);
    if (node == nullptr) return make_error(ErrorCode::kBadData, "{}: has no {}", where_, key);
    return node;
  }

  tl::unexpected<Error> wrong(std::string_view key, const toml::node& node, std::string_view expected) const {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected {}", where_, key, shown(node), expected);
  }

  const toml::table* table_;  // outlives the section
  std::string where_;
};

/// Where nodes are, while the file is read.
struct Places {
  std::vector<std::string> groups, hosts, sites;  // of each node; empty: none
};

Status read_matmuls(const Section& section, NodeDescriptor& node) {
  if (!section.has("matmuls")) return {};
  BF_ASSIGN_OR_RETURN(const Section matmuls, section.table("matmuls", section.where() + ": matmuls"));
  for (const std::string& type : matmuls.keys()) {
    const auto weights = parse_dtype(type);
    if ((!weights || *weights == DType::kI32) && !is_attention(type)) {
      return make_error(ErrorCode::kBadData,
                        "{}: there are no weights of type \"{}\", there are f32, f16, bf16, q8_0, q4_0, and attention, "
                        "attention_f32, attention_q8_0",
                        matmuls.where(), printable(type));
    }
    BF_ASSIGN_OR_RETURN(const Section rates, matmuls.table(type, matmuls.where() + "." + type));
    BF_TRY(rates.only({"decode_gb_per_s", "prefill_gflops", "cached_gb_per_s"}));
    MatmulRate rate{.type = type};
    BF_ASSIGN_OR_RETURN(rate.decode_gb_per_s, rates.number("decode_gb_per_s"));
    BF_ASSIGN_OR_RETURN(rate.prefill_gflops, rates.number("prefill_gflops"));
    if (rates.has("cached_gb_per_s")) {
      BF_ASSIGN_OR_RETURN(rate.cached_gb_per_s, rates.number("cached_gb_per_s"));
    }
    node.matmuls.push_back(std::move(rate));
  }
  return {};
}

/// What nodes and groups have in common; the name is left out.
Result<NodeDescriptor> read_rates(const Section& section) {
  NodeDescriptor node;
  if (section.has("threads")) {
    BF_ASSIGN_OR_RETURN(node.threads, section.count("threads", 1 << 16));
  }
  BF_ASSIGN_OR_RETURN(node.memory_bytes, section.bytes("memory"));
  BF_ASSIGN_OR_RETURN(node.memory_read_gb_per_s, section.number("memory_gb_per_s"));
  BF_ASSIGN_OR_RETURN(node.fp32_gflops, section.number("fp32_gflops"));
  if (section.has("int8_gops")) {
    BF_ASSIGN_OR_RETURN(node.int8_gops, section.number("int8_gops", Zero::kAllowed));
  }
  BF_TRY(read_matmuls(section, node));
  return node;
}

class Reader {
 public:
  Reader(const toml::table& table, std::string name) : root_(table, std::move(name)) {}

  Result<PlanCluster> read() {
    BF_TRY(root_.only({"coordinator", "node", "group", "links"}));
    BF_TRY(read_nodes());
    BF_TRY(check_names());
    BF_TRY(read_links());
    BF_TRY(place_coordinator());
    number_hosts();
    const Status status = validate(cluster_);
    if (!status) return make_error(ErrorCode::kBadData, "{}: {}", root_.where(), status.error().message);
    return std::move(cluster_);
  }

 private:
  Status read_nodes() {
    BF_ASSIGN_OR_RETURN(const auto nodes, root_.tables("node"));
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Section section(*nodes[i], fmt::format("{}: node {}", root_.where(), i + 1));
      BF_ASSIGN_OR_RETURN(const std::string name, section.text("name"));
      section = Section(*nodes[i], fmt::format("{}: node \"{}\"", root_.where(), name));
      BF_TRY(section.only(
          {"name", "host", "site", "threads", "memory", "memory_gb_per_s", "fp32_gflops", "int8_gops", "matmuls"}));
      BF_ASSIGN_OR_RETURN(NodeDescriptor node, read_rates(section));
      node.name = name;
      BF_TRY(add(section, std::move(node), ""));
    }
    BF_ASSIGN_OR_RETURN(const auto groups, root_.tables("group"));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Section section(*groups[i], fmt::format("{}: group {}", root_.where(), i + 1));
      BF_ASSIGN_OR_RETURN(const std::string name, section.text("name"));
      section = Section(*groups[i], fmt::format("{}: group \"{}\"", root_.where(), name));
      BF_TRY(section.only({"name", "count", "host", "site", "threads", "memory", "memory_gb_per_s", "fp32_gflops",
                           "int8_gops", "matmuls"}));
      BF_ASSIGN_OR_RETURN(const int count, section.count("count", kMaxDescribedNodes));
      BF_ASSIGN_OR_RETURN(NodeDescriptor node, read_rates(section));
      for (int member = 1; member <= count; ++member) {
        node.name = fmt::format("{}-{}", name, member);
        BF_TRY(add(section, node, name));
      }
    }
    if (cluster_.nodes.empty()) {
      return make_error(ErrorCode::kBadData, "{}: describes no node, expected [[node]] or [[group]]", root_.where());
    }
    return {};
  }

  Status add(const Section& section, NodeDescriptor node, const std::string& group) {
    std::string host = node.name, site;
    if (section.has("host")) {
      BF_ASSIGN_OR_RETURN(host, section.text("host"));
    }
    if (section.has("site")) {
      BF_ASSIGN_OR_RETURN(site, section.text("site"));
    }
    if (cluster_.nodes.size() == kMaxDescribedNodes) {
      return make_error(ErrorCode::kBadData, "{}: describes more than {} nodes", root_.where(), kMaxDescribedNodes);
    }
    cluster_.nodes.push_back(std::move(node));
    places_.hosts.push_back(std::move(host));
    places_.groups.push_back(group);
    places_.sites.push_back(std::move(site));
    return {};
  }

  Status check_names() const {
    std::set<std::string_view> names;
    for (const NodeDescriptor& node : cluster_.nodes) {
      if (names.insert(node.name).second) continue;
      return make_error(ErrorCode::kBadData, "{}: two nodes are named \"{}\"", root_.where(), node.name);
    }
    return {};
  }

  static Result<LinkDescriptor> read_link(const Section& section) {
    LinkDescriptor link;
    BF_ASSIGN_OR_RETURN(link.latency_us, section.number("latency_us", Zero::kAllowed));
    const std::map<std::string_view, double> units{
        {"gb_per_s", 1.0}, {"gbit_per_s", 1.0 / 8}, {"mbit_per_s", 1e-3 / 8}};
    for (const auto& [key, scale] : units) {
      if (!section.has(key)) continue;
      if (link.gb_per_s > 0.0) {
        return make_error(ErrorCode::kBadData, "{}: has {} beside another bandwidth, expected one", section.where(),
                          key);
      }
      BF_ASSIGN_OR_RETURN(const double rate, section.number(key));
      link.gb_per_s = rate * scale;
    }
    if (link.gb_per_s == 0.0) {
      return make_error(ErrorCode::kBadData, "{}: has no gb_per_s, gbit_per_s or mbit_per_s", section.where());
    }
    return link;
  }

  Status read_links() {
    const std::size_t count = cluster_.nodes.size();
    cluster_.links.assign(count * count, {.latency_us = 0.0, .gb_per_s = 0.0});
    if (root_.has("links")) {
      const std::string where = root_.where() + ": links";
      BF_ASSIGN_OR_RETURN(const Section links, root_.table("links", where));
      BF_TRY(links.only({"default", "within_site", "within_host", "between"}));
      LinkDescriptor other;
      BF_TRY(read_rule(links, "default", other, [](std::size_t, std::size_t) { return true; }));
      BF_TRY(read_rule(links, "within_site", other, [&](std::size_t a, std::size_t b) {
        return !places_.sites[a].empty() && places_.sites[a] == places_.sites[b];
      }));
      BF_TRY(read_rule(links, "within_host", within_host_,
                       [&](std::size_t a, std::size_t b) { return places_.hosts[a] == places_.hosts[b]; }));
      BF_TRY(read_pairs(links));
    }
    return {};
  }

  template <typename Applies>
  Status read_rule(const Section& links, std::string_view key, LinkDescriptor& link, const Applies& applies) {
    if (!links.has(key)) return {};
    BF_ASSIGN_OR_RETURN(const Section section, links.table(key, fmt::format("{}.{}", links.where(), key)));
    BF_TRY(section.only({"latency_us", "gb_per_s", "gbit_per_s", "mbit_per_s"}));
    BF_ASSIGN_OR_RETURN(link, read_link(section));
    const std::size_t count = cluster_.nodes.size();
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        if (a != b && applies(a, b)) cluster_.links[a * count + b] = link;
      }
    }
    return {};
  }

  Status read_pairs(const Section& links) {
    BF_ASSIGN_OR_RETURN(const auto pairs, links.tables("between"));
    std::set<std::pair<std::string, std::string>> seen;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      Section section(*pairs[i], fmt::format("{}.between {}", links.where(), i + 1));
      BF_TRY(section.only({"ends", "latency_us", "gb_per_s", "gbit_per_s", "mbit_per_s"}));
      BF_ASSIGN_OR_RETURN(std::vector<std::string> ends, section.names("ends"));
      BF_ASSIGN_OR_RETURN(const LinkDescriptor link, read_link(section));
      BF_ASSIGN_OR_RETURN(const std::vector<std::size_t> left, nodes_called(section, ends[0]));
      BF_ASSIGN_OR_RETURN(const std::vector<std::size_t> right, nodes_called(section, ends[1]));
      std::ranges::sort(ends);
      if (!seen.emplace(ends[0], ends[1]).second) {
        return make_error(ErrorCode::kBadData, "{}: the link between \"{}\" and \"{}\" is there twice", section.where(),
                          ends[0], ends[1]);
      }
      const std::size_t count = cluster_.nodes.size();
      for (std::size_t a : left) {
        for (std::size_t b : right) {
          if (a != b) cluster_.links[a * count + b] = cluster_.links[b * count + a] = link;
        }
      }
    }
    return {};
  }

  /// An end is every node whose name, group, host or site it is.
  Result<std::vector<std::size_t>> nodes_called(const Section& section, const std::string& name) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < cluster_.nodes.size(); ++i) {
      if (cluster_.nodes[i].name == name || places_.groups[i] == name || places_.hosts[i] == name ||
          places_.sites[i] == name) {
        found.push_back(i);
      }
    }
    if (found.empty() || name.empty()) {
      return make_error(ErrorCode::kBadData, "{}: ends names \"{}\", there is no such node, group, host or site",
                        section.where(), printable(name));
    }
    return found;
  }

  /// It reaches the nodes as the node beside it does.
  Status place_coordinator() {
    std::size_t at = 0;
    if (root_.has("coordinator")) {
      BF_ASSIGN_OR_RETURN(const std::string name, root_.text("coordinator"));
      const auto found = std::ranges::find(cluster_.nodes, name, &NodeDescriptor::name);
      if (found == cluster_.nodes.end()) {
        return make_error(ErrorCode::kBadData, "{}: coordinator is \"{}\", there is no such node", root_.where(), name);
      }
      at = static_cast<std::size_t>(found - cluster_.nodes.begin());
    }
    const std::size_t count = cluster_.nodes.size();
    const auto row = cluster_.links.begin() + static_cast<std::ptrdiff_t>(at * count);
    cluster_.coordinator_links.assign(row, row + static_cast<std::ptrdiff_t>(count));
    cluster_.coordinator_links[at] = within_host_.gb_per_s > 0.0 ? within_host_ : kSameMemory;
    return {};
  }

  void number_hosts() {
    std::map<std::string_view, int> numbers;
    for (const std::string& host : places_.hosts) {
      cluster_.host_of_node.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
    }
  }

  Section root_;
  PlanCluster cluster_;
  Places places_;
  LinkDescriptor within_host_{};  // 0 GB/s: the file does not say
};

}  // namespace

Result<PlanCluster> parse_cluster(const std::string& text, const std::string& name) {
  BF_ASSIGN_OR_RETURN(const toml::table table, parse_toml(text, name));
  return Reader(table, name).read();
}

Result<PlanCluster> read_cluster_file(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_toml_text(path, kMaxFileBytes, "a cluster file"));
  return parse_cluster(text, path);
}

}  // namespace butterfly
