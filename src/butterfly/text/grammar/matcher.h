// Which tokens may come next so that the text stays one that a grammar accepts, and is whole before its tokens run out.
// A TokenAutomaton is a grammar over the tokens of one model: it is thread-safe, and all requests with that grammar
// share it and what it found out. A GrammarMatcher is one text on its way through it; it belongs to one thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/grammar/grammar.h"
#include "butterfly/text/grammar/state_table.h"
#include "butterfly/text/grammar/token_trie.h"

namespace butterfly {

struct AutomatonLimits {
  std::size_t states_bytes = std::size_t{64} << 20;  // beyond it, what was found out is forgotten
  std::size_t masks_bytes = std::size_t{32} << 20;   // the least recently used go first
  std::size_t items_per_mask = 30'000;               // a mask that would look at more leaves the rest of its tokens out
};

class TokenAutomaton {
 public:
  using State = StateTable::State;
  static constexpr std::uint32_t kNotKnown = ~0u;
  static constexpr std::uint32_t kUnreachable = kNotKnown - 1;  // for want of tokens

  TokenAutomaton(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                 const AutomatonLimits& limits = {});

  const TokenTrie& trie() const { return *trie_; }

 private:
  friend class GrammarMatcher;
  using Bits = std::vector<std::uint64_t>;
  struct Mask {
    Bits bits{};
    std::vector<State> ends{};       // where the tokens lead, each once
    std::uint32_t bytes_needed = 0;  // of the worst of them
    std::uint32_t tokens_needed = 0;
    bool knows_tokens = false;
    std::list<State>::iterator used{};
  };
  /// What was found out since the last time that it became too much.
  struct Knowledge {
    explicit Knowledge(const std::shared_ptr<const Grammar>& grammar) : table(grammar) {}
    StateTable table;
    std::vector<std::uint32_t> tokens_needed{};  // by state; 0: not known yet, otherwise one more
    std::vector<std::uint32_t> marks{};          // by state, of the walk that is under way
    std::uint32_t walk = 0;
    std::unordered_map<State, Mask> masks{};
    std::list<State> recent{};
    std::size_t masks_bytes = 0;
  };
  enum class FirstSpace : std::uint8_t { kKept, kStripped };

  /// Every token that `state` allows; with at most `tokens_left` tokens to a whole text after it.
  void walk(Knowledge& known, State state, FirstSpace first, std::uint32_t tokens_left, Mask& mask);
  void set(Bits& bits, std::int32_t token) const;
  Mask& mask_of(Knowledge& known, State state);
  void add_shortest(Knowledge& known, State state, Mask& mask);
  void find_tokens_needed(Knowledge& known, Mask& mask);
  struct Open;
  std::uint32_t tokens_needed(Knowledge& known, State state);
  Open open_state(Knowledge& known, State state);
  template <typename Visit>
  void for_shortest(Knowledge& known, State state, Visit visit);
  std::uint32_t known_tokens(Knowledge& known, State state);

  const std::shared_ptr<const Grammar> grammar_;  // shared with other automata, of other models
  const std::shared_ptr<const TokenTrie> trie_;   // shared with automata of other grammars
  const AutomatonLimits limits_;
  std::mutex mutex_;                      // guards all below
  std::shared_ptr<Knowledge> knowledge_;  // shared with matchers that have not moved on to a newer one
  std::vector<State> way_;                // states along the walk
};

class GrammarMatcher {
 public:
  struct Options {
    int tokens_max = 0;                 // of the whole text
    bool first_in_text = false;         // the text starts anew, as StreamingDetokenizer has it
    std::vector<TokenId> end_tokens{};  // allowed where the text is whole
  };
  /// Errors: kInvalidArgument where no text of this number of tokens is whole, naming how many it takes; for an end
  /// token that is text.
  static Result<GrammarMatcher> create(std::shared_ptr<TokenAutomaton> automaton, Options options);

  /// One bit for each token of the vocabulary, valid until the next call. At least one is set until the text is
  /// complete().
  std::span<const std::uint64_t> mask();

  /// Errors: kInvalidArgument for a token that leads to no whole text; then nothing has changed.
  Status accept(TokenId token);

  /// A token that stands before the text, and counts as one of `tokens_max`.
  void pass();
  int tokens_left() const { return options_.tokens_max - accepted_; }
  const std::vector<TokenId>& end_tokens() const { return options_.end_tokens; }

  /// The text so far is whole.
  bool accepts() const { return accepts_; }
  /// And nothing may follow it; without end tokens a text ends as soon as it is whole.
  bool complete() const { return accepts_ && (!goes_on_ || options_.end_tokens.empty()); }

  /// Tokens to a whole text at least, along the way with the fewest bytes.
  std::uint32_t tokens_needed();

 private:
  GrammarMatcher(std::shared_ptr<TokenAutomaton> automaton, Options options);
  void refresh();
  void note();

  std::shared_ptr<TokenAutomaton> automaton_;  // shared by all requests with this grammar
  Options options_;
  std::shared_ptr<TokenAutomaton::Knowledge> known_;
  TokenAutomaton::State state_ = 0;
  int accepted_ = 0;
  bool at_start_ = false;
  bool accepts_ = false;
  bool goes_on_ = true;
  std::vector<std::uint64_t> bits_;
};

}  // namespace butterfly
