#include "butterfly/plan/partition/custom.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace butterfly {
namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  constexpr std::string_view kSpace = " \t\r";
  for (std::size_t at = line.find_first_not_of(kSpace); at != line.npos; at = line.find_first_not_of(kSpace, at)) {
    const std::size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

struct Borders {
  int first = 0;
  int last = 0;  // not included
};

/// "3-7" or "3".
std::optional<Borders> parse_borders(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_number(text.substr(0, dash));
  const auto last = dash == text.npos ? first : parse_number(text.substr(dash + 1));
  constexpr int kMax = 1 << 20;
  if (!first || !last || *last < *first || *last >= kMax) return std::nullopt;
  return Borders{.first = *first, .last = *last + 1};
}

Result<int> find_node(const std::string& name, const PlanCluster& cluster) {
  std::optional<int> found;
  for (int node = 0; node < cluster.size(); ++node) {
    const NodeDescriptor& descriptor = cluster.nodes[static_cast<std::size_t>(node)];
    if (descriptor.name != name && (descriptor.address.empty() || descriptor.address != name)) continue;
    if (found) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan names '{}', nodes {} and {} are both called so",
                        name, *found, node);
    }
    found = node;
  }
  if (!found) found = parse_number(name);
  if (!found || *found >= cluster.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the custom plan names '{}', none of the {} nodes is called so",
                      name, cluster.size());
  }
  return *found;
}

/// Slices of one group: ascending, each once, no node twice.
Status check_group(std::span<const Share> group, const PlanCluster& cluster) {
  int next = 0;
  const StageAssignment& work = group.front().work;
  const std::string layers = fmt::format("layers {} to {}", work.first_layer, work.last_layer - 1);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const SliceRange& slices = group[i].work.slices;
    if (slices.first < next) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to {} too, after another",
                        slices.first, layers, cluster.name_of(group[i].node));
    }
    if (slices.first > next) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to nobody", next, layers);
    }
    next = slices.last;
    for (std::size_t j = 0; j < i; ++j) {
      if (group[j].node != group[i].node) continue;
      return make_error(ErrorCode::kInvalidArgument, "the custom plan names {} twice in the group of {}",
                        cluster.name_of(group[i].node), layers);
    }
  }
  if (next == kReductionSlices) return {};
  return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to nobody", next, layers);
}

Status check_range(const CustomShare& share, int layers) {
  if (share.first_layer < 0 || share.last_layer <= share.first_layer || share.last_layer > layers) {
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layers {} to {} to {}, the model has 0 to {}",
                      share.first_layer, share.last_layer - 1, share.node, layers - 1);
  }
  if (share.slices.first < 0 || share.slices.last <= share.slices.first || share.slices.last > kReductionSlices) {
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slices {} to {} to {}, there are 0 to {}",
                      share.slices.first, share.slices.last - 1, share.node, kReductionSlices - 1);
  }
  return {};
}

}  // namespace

Result<CustomPlan> parse_custom_plan(std::string_view text) {
  CustomPlan plan;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const auto layers = words.size() < 2 ? std::nullopt : parse_borders(words[1]);
    const bool divided = words.size() == 4 && words[2] == "slices";
    const auto slices = divided ? parse_borders(words[3]) : Borders{.first = 0, .last = kReductionSlices};
    if (!layers || !slices || (words.size() != 2 && !divided)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "line {} of the custom plan is '{}', expected NODE FIRST-LAST [slices FIRST-LAST]", number,
                        fmt::join(words, " "));
    }
    plan.shares.push_back({.node = std::string(words[0]),
                           .first_layer = layers->first,
                           .last_layer = layers->last,
                           .slices = {.first = slices->first, .last = slices->last}});
  }
  return plan;
}

Result<std::vector<Share>> resolve(const CustomPlan& plan, int layers, const PlanCluster& cluster) {
  std::vector<Share> shares;
  int next = 0;
  std::size_t group = 0;  // where the one begins that is being read
  for (const CustomShare& share : plan.shares) {
    BF_ASSIGN_OR_RETURN(const int node, find_node(share.node, cluster));
    BF_TRY(check_range(share, layers));
    const bool same = !shares.empty() && shares[group].work.first_layer == share.first_layer &&
                      shares[group].work.last_layer == share.last_layer && share.slices.first != 0;
    if (!same && share.first_layer < next) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to {} too, after another",
                        share.first_layer, share.node);
    }
    if (!same && share.first_layer > next) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to nobody", next);
    }
    if (!same) {
      if (!shares.empty()) BF_TRY(check_group(std::span(shares).subspan(group), cluster));
      group = shares.size();
    }
    next = share.last_layer;
    shares.push_back({.node = node,
                      .work = {.first_layer = share.first_layer,
                               .last_layer = share.last_layer,
                               .embedding = share.first_layer == 0,
                               .head = share.last_layer == layers,
                               .slices = share.slices}});
  }
  if (next < layers) return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to nobody", next);
  BF_TRY(check_group(std::span(shares).subspan(group), cluster));
  return shares;
}

}  // namespace butterfly
