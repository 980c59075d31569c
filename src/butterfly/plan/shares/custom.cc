#include "butterfly/plan/shares/custom.h"

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

/// A line of a plan as a member of the group that is being read.
struct Member {
  Share share{};
  std::optional<SliceRange> experts{};
};

/// "the experts 0 to 15", "no experts".
std::string experts_text(const SliceRange& experts) {
  return experts.count() <= 0 ? "no experts" : fmt::format("experts {} to {}", experts.first, experts.last - 1);
}

/// The group of a custom plan that has these layers.
class CustomGroup {
 public:
  CustomGroup(const PlanCluster& cluster, std::span<const int> expert_borders)
      : cluster_(cluster), expert_borders_(expert_borders) {}

  bool empty() const { return members_.empty(); }
  /// Whether this is one more of its members.
  bool continues(const CustomShare& share) const {
    if (empty()) return false;
    const StageAssignment& work = members_.front().share.work;
    if (work.first_layer != share.first_layer || work.last_layer != share.last_layer) return false;
    return share.slices.count() == 0 || share.slices.first != 0 || next_slice() == 0;
  }
  void add(Member member) {
    HeldSlices& held = member.share.work.slices;
    if (held.count() == 0) held = HeldSlices(next_slice(), next_slice());
    members_.push_back(std::move(member));
  }

  /// Slices and experts: ascending, each once, no node twice. The shares go to `shares`.
  Status finish(std::vector<Share>& shares) {
    BF_TRY(check_slices());
    BF_TRY(give_experts());
    for (const Member& member : members_) {
      if (member.share.work.slices.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives {} neither slices nor experts of {}",
                          cluster_.name_of(member.share.node), layers());
      }
      shares.push_back(member.share);
    }
    members_.clear();
    return {};
  }

 private:
  int next_slice() const { return empty() ? 0 : members_.back().share.work.slices.last; }
  std::string layers() const {
    const StageAssignment& work = members_.front().share.work;
    return fmt::format("layers {} to {}", work.first_layer, work.last_layer - 1);
  }

  Status check_slices() const {
    int next = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const Share& share = members_[i].share;
      const SliceRange& slices = share.work.slices;
      if (slices.first < next) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to {} too, after another",
                          slices.first, layers(), cluster_.name_of(share.node));
      }
      if (slices.first > next) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to nobody", next,
                          layers());
      }
      next = slices.last;
      for (std::size_t j = 0; j < i; ++j) {
        if (members_[j].share.node != share.node) continue;
        return make_error(ErrorCode::kInvalidArgument, "the custom plan names {} twice in the group of {}",
                          cluster_.name_of(share.node), layers());
      }
    }
    if (next == kReductionSlices) return {};
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slice {} of {} to nobody", next, layers());
  }

  int border(int slice) const { return expert_borders_[static_cast<std::size_t>(slice)]; }

  /// The slice of the experts that begins with this one. Of several that are empty the first: so both who ends and who
  /// begins there mean the same.
  Result<int> slice_at(int expert, const Member& member) const {
    const auto found = std::ranges::lower_bound(expert_borders_, expert);
    if (expert == expert_borders_.back()) return kReductionSlices;
    if (*found == expert) return static_cast<int>(found - expert_borders_.begin());
    return make_error(ErrorCode::kInvalidArgument,
                      "the custom plan gives {} of {} to {}; {} experts are added up in {} slices, one of which has "
                      "experts {} to {} together",
                      experts_text(*member.experts), layers(), cluster_.name_of(member.share.node),
                      expert_borders_.back(), kReductionSlices, *(found - 1), *found - 1);
  }

  /// Where a member has experts of its own, those of all are counted as whole ones.
  Status give_experts() {
    const auto given = std::ranges::find_if(members_, [](const Member& one) { return one.experts.has_value(); });
    if (given == members_.end()) return {};
    if (expert_borders_.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "the custom plan gives experts of {} to {}, the model has none",
                        layers(), cluster_.name_of(given->share.node));
    }
    int next = 0;
    for (Member& member : members_) {
      HeldSlices& held = member.share.work.slices;
      if (!member.experts) member.experts = SliceRange{border(held.first), border(held.last)};
      if (member.experts->count() == 0) member.experts = SliceRange{next, next};
      const auto [first, last] = *member.experts;
      if (last > expert_borders_.back()) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives {} of {} to {}, there are 0 to {}",
                          experts_text(*member.experts), layers(), cluster_.name_of(member.share.node),
                          expert_borders_.back() - 1);
      }
      if (first < next) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives expert {} of {} to {} too, after another",
                          first, layers(), cluster_.name_of(member.share.node));
      }
      if (first > next) break;
      next = last;
      BF_ASSIGN_OR_RETURN(held.experts.first, slice_at(first, member));
      BF_ASSIGN_OR_RETURN(held.experts.last, slice_at(last, member));
    }
    if (next == expert_borders_.back()) return {};
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives expert {} of {} to nobody", next, layers());
  }

  const PlanCluster& cluster_;
  const std::span<const int> expert_borders_;
  std::vector<Member> members_;
};

Status check_range(const CustomShare& share, int layers) {
  if (share.first_layer < 0 || share.last_layer <= share.first_layer || share.last_layer > layers) {
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layers {} to {} to {}, the model has 0 to {}",
                      share.first_layer, share.last_layer - 1, share.node, layers - 1);
  }
  const bool none = share.slices.first == 0 && share.slices.last == 0;
  if (!none &&
      (share.slices.first < 0 || share.slices.last <= share.slices.first || share.slices.last > kReductionSlices)) {
    return make_error(ErrorCode::kInvalidArgument, "the custom plan gives slices {} to {} to {}, there are 0 to {}",
                      share.slices.first, share.slices.last - 1, share.node, kReductionSlices - 1);
  }
  if (!share.experts || (0 <= share.experts->first && share.experts->first <= share.experts->last)) return {};
  return make_error(ErrorCode::kInvalidArgument, "the custom plan gives experts {} to {} to {}", share.experts->first,
                    share.experts->last - 1, share.node);
}

/// What follows "slices" or "experts".
std::optional<SliceRange> parse_run(std::string_view text) {
  if (text == "none") return SliceRange{0, 0};
  const auto borders = parse_borders(text);
  if (!borders) return std::nullopt;
  return SliceRange{borders->first, borders->last};
}

std::optional<CustomShare> parse_share(std::span<const std::string_view> words) {
  if (words.size() < 2 || words.size() % 2 != 0) return std::nullopt;
  const auto layers = parse_borders(words[1]);
  if (!layers) return std::nullopt;
  std::optional<SliceRange> slices, experts;
  for (std::size_t at = 2; at < words.size(); at += 2) {
    if (words[at] != "slices" && words[at] != "experts") return std::nullopt;
    std::optional<SliceRange>& run = words[at] == "slices" ? slices : experts;
    if (run) return std::nullopt;
    run = parse_run(words[at + 1]);
    if (!run) return std::nullopt;
  }
  return CustomShare{.node = std::string(words[0]),
                     .first_layer = layers->first,
                     .last_layer = layers->last,
                     .slices = slices.value_or(SliceRange{}),
                     .experts = experts};
}

}  // namespace

Result<CustomPlan> parse_custom_plan(std::string_view text) {
  CustomPlan plan;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    auto share = parse_share(words);
    if (!share) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "line {} of the custom plan is '{}', expected NODE FIRST-LAST [slices FIRST-LAST] [experts FIRST-LAST]",
          number, fmt::join(words, " "));
    }
    plan.shares.push_back(std::move(*share));
  }
  return plan;
}

Result<std::vector<Share>> resolve(const CustomPlan& plan, int layers, const PlanCluster& cluster,
                                   std::span<const int> expert_borders) {
  std::vector<Share> shares;
  int next = 0;
  CustomGroup group(cluster, expert_borders);
  for (const CustomShare& share : plan.shares) {
    BF_ASSIGN_OR_RETURN(const int node, find_node(share.node, cluster));
    BF_TRY(check_range(share, layers));
    if (!group.continues(share)) {
      if (share.first_layer < next) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to {} too, after another",
                          share.first_layer, share.node);
      }
      if (share.first_layer > next) {
        return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to nobody", next);
      }
      if (!group.empty()) BF_TRY(group.finish(shares));
    }
    next = share.last_layer;
    group.add({.share = {.node = node,
                         .work = {.first_layer = share.first_layer,
                                  .last_layer = share.last_layer,
                                  .embedding = share.first_layer == 0,
                                  .head = share.last_layer == layers,
                                  .slices = share.slices}},
               .experts = share.experts});
  }
  if (next < layers) return make_error(ErrorCode::kInvalidArgument, "the custom plan gives layer {} to nobody", next);
  BF_TRY(group.finish(shares));
  return shares;
}

}  // namespace butterfly
