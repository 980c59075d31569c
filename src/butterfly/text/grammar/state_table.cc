#include "butterfly/text/grammar/state_table.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace butterfly {
namespace {

/// Items of one state and frames of one stack. An ambiguous grammar may have more: then those that end soonest are
/// kept, so that what is written is valid all the same.
constexpr std::size_t kItemsMax = 512;
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max() / 2;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
  hash *= 0xFF51AFD7ED558CCDu;
  return hash ^ (hash >> 33);
}

}  // namespace

StateTable::StateTable(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  states_.push_back({.bytes_needed = kNever});  // kDead
  rows_.assign(grammar_->class_count, kDead);
  const Stack root = intern_stack(0, {.accepts = true});
  start_ = intern_state({{grammar_->rules[grammar_->root].entry, root}});
}

bool StateTable::fits(const Frame& item) const {
  return stacks_[item.stack].depth + grammar_->nodes[item.node].depth_needed <= grammar_->limits.depth_max;
}

std::uint32_t StateTable::bytes_needed(const Frame& item) const {
  return std::min(kNever, grammar_->nodes[item.node].bytes_needed + stacks_[item.stack].bytes_needed);
}

std::uint64_t StateTable::hash(std::uint64_t seed, const std::vector<Frame>& frames) const {
  for (const Frame& frame : frames) seed = mix(mix(seed, frame.node), stacks_[frame.stack].hash);
  return seed;
}

/// In an order that does not depend on when which stack was made.
void StateTable::sort_and_cut(std::vector<Frame>& frames) const {
  const auto before = [&](const Frame& a, const Frame& b) {
    return std::tuple(a.node, stacks_[a.stack].hash, a.stack) < std::tuple(b.node, stacks_[b.stack].hash, b.stack);
  };
  std::ranges::sort(frames, before);
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  if (frames.size() <= kItemsMax) return;
  std::ranges::stable_sort(frames, {}, [&](const Frame& frame) { return bytes_needed(frame); });
  frames.resize(kItemsMax);
  std::ranges::sort(frames, before);
}

StateTable::Stack StateTable::intern_stack(std::uint32_t depth, Call call) {
  sort_and_cut(call.frames);
  const std::uint64_t key = hash(mix(depth, call.accepts ? 1 : 2), call.frames);
  const auto [first, last] = stacks_by_hash_.equal_range(key);
  for (auto found = first; found != last; ++found) {
    const StackInfo& info = stacks_[found->second];
    const bool same = info.depth == depth && info.accepts == call.accepts &&
                      std::equal(call.frames.begin(), call.frames.end(), frames_.begin() + info.frames_begin,
                                 frames_.begin() + info.frames_end);
    if (same) return found->second;
  }
  StackInfo info{.depth = depth, .accepts = call.accepts, .bytes_needed = call.accepts ? 0 : kNever, .hash = key};
  for (const Frame& frame : call.frames) info.bytes_needed = std::min(info.bytes_needed, bytes_needed(frame));
  info.frames_begin = static_cast<std::uint32_t>(frames_.size());
  frames_.insert(frames_.end(), call.frames.begin(), call.frames.end());
  info.frames_end = static_cast<std::uint32_t>(frames_.size());
  stacks_.push_back(info);
  const auto stack = static_cast<Stack>(stacks_.size() - 1);
  stacks_by_hash_.emplace(key, stack);
  memory_ += sizeof(StackInfo) + call.frames.size() * sizeof(Frame) + 40;
  return stack;
}

/// The state of a text after which these items are possible: rules that end there return to their callers at once.
StateTable::State StateTable::intern_state(std::vector<Frame> items, Ending ending) {
  std::set<std::pair<Grammar::Node, Stack>> seen;
  std::vector<Frame> kept;
  bool accepts = ending == Ending::kHere;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Frame item = items[i];
    if (!fits(item) || !seen.emplace(item.node, item.stack).second) continue;
    const Grammar::NodeInfo& node = grammar_->nodes[item.node];
    if (node.has_edges()) kept.push_back(item);
    if (!node.final) continue;
    const StackInfo& stack = stacks_[item.stack];
    accepts = accepts || stack.accepts;
    items.insert(items.end(), frames_.begin() + stack.frames_begin, frames_.begin() + stack.frames_end);
  }
  if (kept.empty() && !accepts) return kDead;
  sort_and_cut(kept);
  const std::uint64_t key = hash(accepts ? 1 : 2, kept);
  const auto [first, last] = states_by_hash_.equal_range(key);
  for (auto found = first; found != last; ++found) {
    const StateInfo& info = states_[found->second];
    const bool same = info.accepts == accepts && std::equal(kept.begin(), kept.end(), items_.begin() + info.items_begin,
                                                            items_.begin() + info.items_end);
    if (same) return found->second;
  }
  StateInfo info{.bytes_needed = accepts ? 0 : kNever, .accepts = accepts};
  for (const Frame& item : kept) info.bytes_needed = std::min(info.bytes_needed, bytes_needed(item));
  info.items_begin = static_cast<std::uint32_t>(items_.size());
  items_.insert(items_.end(), kept.begin(), kept.end());
  info.items_end = static_cast<std::uint32_t>(items_.size());
  states_.push_back(info);
  const auto state = static_cast<State>(states_.size() - 1);
  states_by_hash_.emplace(key, state);
  rows_.resize(states_.size() * grammar_->class_count, kUnknown);
  memory_ += sizeof(StateInfo) + kept.size() * sizeof(Frame) + grammar_->class_count * sizeof(State) + 40;
  return state;
}

void StateTable::add_calls(const Frame& item, Calls& calls) const {
  const Grammar::NodeInfo& node = grammar_->nodes[item.node];
  const StackInfo& stack = stacks_[item.stack];
  for (std::uint32_t e = node.calls_begin; e < node.calls_end; ++e) {
    const Grammar::CallEdge& edge = grammar_->call_edges[e];
    const Grammar::RuleInfo& rule = grammar_->rules[edge.rule];
    const std::uint32_t depth = stack.depth + (edge.tail ? 0 : 1);
    if (depth + grammar_->nodes[rule.entry].depth_needed > grammar_->limits.depth_max) continue;
    if (!edge.tail && !fits({edge.to, item.stack})) continue;
    Call& call = calls[{rule.order, depth}];
    if (edge.tail) {
      call.accepts = call.accepts || stack.accepts;
      call.frames.insert(call.frames.end(), frames_.begin() + stack.frames_begin, frames_.begin() + stack.frames_end);
    } else {
      call.frames.push_back({edge.to, item.stack});
    }
  }
}

void StateTable::add_moves(const Frame& item, std::vector<Move>& moves) const {
  const Grammar::NodeInfo& node = grammar_->nodes[item.node];
  for (std::uint32_t e = node.bytes_begin; e < node.bytes_end; ++e) {
    const Grammar::ByteEdge& edge = grammar_->byte_edges[e];
    moves.push_back({edge.set, {edge.to, item.stack}});
  }
}

/// Enters the rules that are called; each after all that call it first thing, so that its stack is whole.
std::uint32_t StateTable::find_moves(State state) {
  Calls calls;
  std::vector<Move> moves;
  for (std::uint32_t i = states_[state].items_begin; i < states_[state].items_end; ++i) {
    add_moves(items_[i], moves);
    add_calls(items_[i], calls);
  }
  while (!calls.empty()) {
    auto first = calls.extract(calls.begin());
    const auto [order, depth] = first.key();
    const Frame entry{grammar_->rules[grammar_->rule_at[order]].entry, intern_stack(depth, std::move(first.mapped()))};
    add_moves(entry, moves);
    add_calls(entry, calls);
  }
  memory_ += moves.size() * sizeof(Move) + sizeof(moves);
  moves_.push_back(std::move(moves));
  states_[state].moves = static_cast<std::uint32_t>(moves_.size() - 1);
  return states_[state].moves;
}

StateTable::State StateTable::expand(State state, std::uint32_t byte_class) {
  const std::uint32_t moves = states_[state].moves == kUnknown ? find_moves(state) : states_[state].moves;
  std::vector<Frame> items;
  for (const Move& move : moves_[moves]) {
    if (grammar_->in_set(move.set, byte_class)) items.push_back(move.to);
  }
  const State next = intern_state(std::move(items));
  rows_[std::size_t{state} * grammar_->class_count + byte_class] = next;
  return next;
}

StateTable::Stack StateTable::adopt_stack(const StateTable& other, Stack stack,
                                          std::unordered_map<Stack, Stack>& known) {
  if (const auto found = known.find(stack); found != known.end()) return found->second;
  const StackInfo& info = other.stacks_[stack];
  Call call{.accepts = info.accepts};
  for (std::uint32_t i = info.frames_begin; i < info.frames_end; ++i) {
    call.frames.push_back({other.frames_[i].node, adopt_stack(other, other.frames_[i].stack, known)});
  }
  return known[stack] = intern_stack(info.depth, std::move(call));
}

StateTable::State StateTable::adopt(const StateTable& other, State state) {
  if (state == kDead) return kDead;
  std::unordered_map<Stack, Stack> known;
  const StateInfo& info = other.states_[state];
  std::vector<Frame> items;
  for (std::uint32_t i = info.items_begin; i < info.items_end; ++i) {
    items.push_back({other.items_[i].node, adopt_stack(other, other.items_[i].stack, known)});
  }
  return intern_state(std::move(items), info.accepts ? Ending::kHere : Ending::kNotHere);
}

}  // namespace butterfly
