#include "butterfly/text/grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace butterfly {
namespace {

constexpr std::uint32_t kAnyNumber = ~0u;
/// Longer texts count as one token for each byte: to know better would take too long.
constexpr std::uint32_t kSpelledBytesMax = 2048;

}  // namespace

TokenAutomaton::TokenAutomaton(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                               const AutomatonLimits& limits)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      limits_(limits),
      knowledge_(std::make_shared<Knowledge>(grammar_)),
      way_(trie_->depth_max() + 1) {}

void TokenAutomaton::set(Bits& bits, std::int32_t token) const {
  for (; token >= 0; token = trie_->same_as(token)) {
    bits[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (static_cast<std::size_t>(token) % 64);
  }
}

void TokenAutomaton::walk(Knowledge& known, State state, FirstSpace first, std::uint32_t tokens_left, Mask& mask) {
  StateTable& table = known.table;
  const auto& nodes = trie_->nodes();
  const std::uint32_t visited = ++known.walk * 2;
  const std::uint32_t ended = visited + 1;
  std::size_t items = 0;
  mask.bits.assign((static_cast<std::size_t>(trie_->vocab()) + 63) / 64, 0);
  way_[0] = state;
  for (std::uint32_t i = 1; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const bool stripped = first == FirstSpace::kStripped && node.depth == 1 && node.byte == ' ';
    const State next = stripped ? state : table.next(way_[node.depth - 1], node.byte);
    if (next == StateTable::kDead) {
      i = node.end;
      continue;
    }
    way_[node.depth] = next;
    ++i;
    if (next >= known.marks.size()) known.marks.resize(table.size() * 2);
    if (known.marks[next] < visited) {
      known.marks[next] = visited;
      items += 1 + table.items(next);
      if (items > limits_.items_per_mask) break;
    }
    if (node.token < 0 || stripped) continue;
    if (tokens_left != kAnyNumber && tokens_needed(known, next) > tokens_left) continue;
    set(mask.bits, node.token);
    if (known.marks[next] == ended) continue;
    known.marks[next] = ended;
    mask.ends.push_back(next);
    mask.bytes_needed = std::max(mask.bytes_needed, table.bytes_needed(next));
  }
}

/// The tokens on the ways with the fewest bytes, of which there is always one, and where they lead.
template <typename Visit>
void TokenAutomaton::for_shortest(Knowledge& known, State state, Visit visit) {
  StateTable& table = known.table;
  const auto& nodes = trie_->nodes();
  std::vector<State> way(trie_->depth_max() + 1);
  way[0] = state;
  for (std::uint32_t i = 1; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const State before = way[node.depth - 1];
    const State next = table.bytes_needed(before) == 0 ? StateTable::kDead : table.next(before, node.byte);
    if (next == StateTable::kDead || table.bytes_needed(next) + 1 != table.bytes_needed(before)) {
      i = node.end;
      continue;
    }
    way[node.depth] = next;
    ++i;
    if (node.token >= 0) visit(node.token, next);
  }
}

std::uint32_t TokenAutomaton::known_tokens(Knowledge& known, State state) {
  if (known.table.bytes_needed(state) == 0) return 0;
  if (state >= known.tokens_needed.size()) known.tokens_needed.resize(known.table.size() * 2);
  return known.tokens_needed[state] - 1;  // kNotKnown where it is not known
}

/// A state whose tokens are counted once those of the states behind it are.
struct TokenAutomaton::Open {
  State state = StateTable::kDead;
  std::vector<State> next{};
};

TokenAutomaton::Open TokenAutomaton::open_state(Knowledge& known, State state) {
  Open open{.state = state};
  const std::uint32_t bytes = known.table.bytes_needed(state);
  if (bytes > kSpelledBytesMax) return open;
  std::vector<bool> seen;
  for_shortest(known, state, [&](std::int32_t, State to) {
    if (to >= seen.size()) seen.resize(known.table.size() * 2);
    if (!seen[to]) open.next.push_back(to);
    seen[to] = true;
  });
  return open;
}

/// Tokens to a whole text along the ways with the fewest bytes: each token on such a way takes one, so that this number
/// can always be kept to.
std::uint32_t TokenAutomaton::tokens_needed(Knowledge& known, State state) {
  if (const std::uint32_t tokens = known_tokens(known, state); tokens != kNotKnown) return tokens;
  std::vector<Open> open;
  open.push_back(open_state(known, state));
  while (!open.empty()) {
    const State at = open.back().state;
    std::uint32_t best = kUnreachable;
    State unknown = StateTable::kDead;
    for (const State to : open.back().next) {
      const std::uint32_t tokens = known_tokens(known, to);
      if (tokens == kNotKnown) unknown = to;
      if (tokens < kUnreachable) best = std::min(best, tokens + 1);
    }
    if (unknown != StateTable::kDead) {
      open.push_back(open_state(known, unknown));
      continue;
    }
    const std::uint32_t bytes = known.table.bytes_needed(at);
    if (bytes > kSpelledBytesMax && trie_->has_all_bytes()) best = bytes;
    (void)known_tokens(known, at);  // makes room
    known.tokens_needed[at] = best + 1;
    open.pop_back();
  }
  return known_tokens(known, state);
}

void TokenAutomaton::find_tokens_needed(Knowledge& known, Mask& mask) {
  if (mask.knows_tokens) return;
  for (const State end : mask.ends) mask.tokens_needed = std::max(mask.tokens_needed, tokens_needed(known, end));
  mask.knows_tokens = true;
}

/// A walk that was cut short may have missed them.
void TokenAutomaton::add_shortest(Knowledge& known, State state, Mask& mask) {
  for_shortest(known, state, [&](std::int32_t token, State to) {
    if (tokens_needed(known, to) >= tokens_needed(known, state)) return;
    set(mask.bits, token);
    mask.ends.push_back(to);
    mask.bytes_needed = std::max(mask.bytes_needed, known.table.bytes_needed(to));
  });
}

TokenAutomaton::Mask& TokenAutomaton::mask_of(Knowledge& known, State state) {
  if (const auto found = known.masks.find(state); found != known.masks.end()) {
    known.recent.splice(known.recent.begin(), known.recent, found->second.used);
    return found->second;
  }
  Mask mask;
  walk(known, state, FirstSpace::kKept, kAnyNumber, mask);
  add_shortest(known, state, mask);
  const std::size_t bytes = mask.bits.size() * 8 + mask.ends.size() * sizeof(State) + sizeof(Mask);
  while (!known.recent.empty() && known.masks_bytes + bytes > limits_.masks_bytes) {
    const auto oldest = known.masks.find(known.recent.back());
    known.masks_bytes -= oldest->second.bits.size() * 8 + oldest->second.ends.size() * sizeof(State) + sizeof(Mask);
    known.masks.erase(oldest);
    known.recent.pop_back();
  }
  known.recent.push_front(state);
  mask.used = known.recent.begin();
  known.masks_bytes += bytes;
  return known.masks.emplace(state, std::move(mask)).first->second;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<TokenAutomaton> automaton, Options options)
    : automaton_(std::move(automaton)), options_(std::move(options)) {
  at_start_ = options_.first_in_text && automaton_->trie().strips_first_space();
}

Result<GrammarMatcher> GrammarMatcher::create(std::shared_ptr<TokenAutomaton> automaton, Options options) {
  for (const TokenId token : options.end_tokens) {
    const std::string_view bytes = automaton->trie().bytes(token);
    if (bytes.empty()) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "token {} is to end the text and is text of {} bytes, which the grammar may need", token.value,
                      bytes.size());
  }
  GrammarMatcher matcher(std::move(automaton), std::move(options));
  {
    const std::lock_guard lock(matcher.automaton_->mutex_);
    matcher.known_ = matcher.automaton_->knowledge_;
    matcher.state_ = matcher.known_->table.start();
    matcher.note();
  }
  // Mostly there is no need to count tokens.
  const bool spells = matcher.automaton_->trie().has_all_bytes();
  const std::uint32_t bytes = matcher.known_->table.bytes_needed(matcher.state_);
  if (spells && static_cast<std::int64_t>(bytes) <= matcher.options_.tokens_max) return matcher;
  const std::uint32_t needed = matcher.tokens_needed();
  if (needed == TokenAutomaton::kUnreachable) {
    return make_error(ErrorCode::kInvalidArgument, "the tokens of this model cannot spell what the grammar asks for");
  }
  if (static_cast<std::int64_t>(needed) > matcher.options_.tokens_max) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the shortest text that the grammar allows takes {} tokens, {} may be generated", needed,
                      matcher.options_.tokens_max);
  }
  return matcher;
}

/// To the newest knowledge, and to none where the old one has become too much. The automaton is locked.
void GrammarMatcher::refresh() {
  TokenAutomaton& automaton = *automaton_;
  if (automaton.knowledge_->table.memory() > automaton.limits_.states_bytes) {
    automaton.knowledge_ = std::make_shared<TokenAutomaton::Knowledge>(automaton.grammar_);
  }
  if (known_ == automaton.knowledge_) return;
  state_ = automaton.knowledge_->table.adopt(known_->table, state_);
  known_ = automaton.knowledge_;
}

void GrammarMatcher::note() {
  accepts_ = known_->table.accepts(state_);
  goes_on_ = known_->table.goes_on(state_);
}

std::uint32_t GrammarMatcher::tokens_needed() {
  const std::lock_guard lock(automaton_->mutex_);
  refresh();
  return automaton_->tokens_needed(*known_, state_);
}

std::span<const std::uint64_t> GrammarMatcher::mask() {
  TokenAutomaton& automaton = *automaton_;
  const std::lock_guard lock(automaton.mutex_);
  refresh();
  const auto left = static_cast<std::uint32_t>(std::max(options_.tokens_max - accepted_ - 1, 0));
  TokenAutomaton::Mask tight;
  if (at_start_) {
    automaton.walk(*known_, state_, TokenAutomaton::FirstSpace::kStripped, left, tight);
    bits_ = tight.bits;
  } else {
    TokenAutomaton::Mask& mask = automaton.mask_of(*known_, state_);
    bool fits = mask.bytes_needed <= left && automaton.trie().has_all_bytes();
    if (!fits) automaton.find_tokens_needed(*known_, mask);
    fits = fits || mask.tokens_needed <= left;
    if (!fits) {
      automaton.walk(*known_, state_, TokenAutomaton::FirstSpace::kKept, left, tight);
      automaton.add_shortest(*known_, state_, tight);
    }
    bits_ = fits ? mask.bits : tight.bits;
  }
  if (accepts_) {
    for (const TokenId token : options_.end_tokens) {
      const auto id = static_cast<std::size_t>(token.value);
      if (id / 64 < bits_.size()) bits_[id / 64] |= std::uint64_t{1} << (id % 64);
    }
  }
  return bits_;
}

void GrammarMatcher::pass() {
  ++accepted_;
  at_start_ = false;
}

Status GrammarMatcher::accept(TokenId token) {
  TokenAutomaton& automaton = *automaton_;
  const std::lock_guard lock(automaton.mutex_);
  refresh();
  std::string_view bytes = automaton.trie().bytes(token);
  if (at_start_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  TokenAutomaton::State state = bytes.empty() ? StateTable::kDead : state_;
  for (const char byte : bytes) state = known_->table.next(state, static_cast<unsigned char>(byte));
  if (state == StateTable::kDead) {
    return make_error(ErrorCode::kInvalidArgument, "token {} at place {} is none that the grammar allows", token.value,
                      accepted_);
  }
  at_start_ = false;
  state_ = state;
  ++accepted_;
  note();
  return {};
}

}  // namespace butterfly
