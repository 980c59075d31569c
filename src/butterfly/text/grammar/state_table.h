// The states of a grammar at work: which nodes of its rules a text can have reached, each with the calls around it.
// They are made as bytes ask for them and kept, so that a byte is mostly one look into a table. Calls that were entered
// at the same place of the text share one stack, so ambiguity does not multiply them. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "butterfly/text/grammar/grammar.h"

namespace butterfly {

class StateTable {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;

  explicit StateTable(std::shared_ptr<const Grammar> grammar);

  /// Of the empty text.
  State start() const { return start_; }

  /// Where `byte` leads; kDead where no text goes on so.
  State next(State state, unsigned char byte) {
    const std::uint32_t byte_class = grammar_->classes[byte];
    const State known = rows_[std::size_t{state} * grammar_->class_count + byte_class];
    return known != kUnknown ? known : expand(state, byte_class);
  }

  bool accepts(State state) const { return states_[state].accepts; }
  /// Whether any byte may follow.
  bool goes_on(State state) const { return states_[state].items_end > states_[state].items_begin; }
  /// Ways on which a text can have reached it: what it costs to leave it.
  std::size_t items(State state) const { return states_[state].items_end - states_[state].items_begin; }
  /// Bytes until the grammar accepts, at least. Each state but the dead one has such a way.
  std::uint32_t bytes_needed(State state) const { return states_[state].bytes_needed; }

  std::size_t size() const { return states_.size(); }
  std::size_t memory() const { return memory_; }

  /// The state of another table of the same grammar.
  State adopt(const StateTable& other, State state);

 private:
  using Stack = std::uint32_t;
  static constexpr std::uint32_t kUnknown = ~0u;
  /// Where a call goes on when its rule has ended.
  struct Frame {
    Grammar::Node node = 0;
    Stack stack = 0;
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  struct StackInfo {
    std::uint32_t depth = 0;
    bool accepts = false;  // it may be the end of everything
    std::uint32_t bytes_needed = 0;
    std::uint64_t hash = 0;
    std::uint32_t frames_begin = 0, frames_end = 0;
  };
  struct StateInfo {
    std::uint32_t items_begin = 0, items_end = 0;
    std::uint32_t moves = kUnknown;  // in moves_, once a byte asked
    std::uint32_t bytes_needed = 0;
    bool accepts = false;
  };
  /// What a byte of `set` makes of one item.
  struct Move {
    std::uint32_t set = 0;
    Frame to{};
  };
  struct Call {
    bool accepts = false;
    std::vector<Frame> frames{};
  };
  /// Entered rules by the order in which they are to be looked at, and by depth.
  using Calls = std::map<std::pair<std::uint32_t, std::uint32_t>, Call>;

  enum class Ending : std::uint8_t { kNotHere, kHere };
  State expand(State state, std::uint32_t byte_class);
  std::uint32_t find_moves(State state);
  void add_calls(const Frame& item, Calls& calls) const;
  void add_moves(const Frame& item, std::vector<Move>& moves) const;
  State intern_state(std::vector<Frame> items, Ending ending = Ending::kNotHere);
  Stack intern_stack(std::uint32_t depth, Call call);
  void sort_and_cut(std::vector<Frame>& frames) const;
  bool fits(const Frame& item) const;
  std::uint32_t bytes_needed(const Frame& item) const;
  std::uint64_t hash(std::uint64_t seed, const std::vector<Frame>& frames) const;
  Stack adopt_stack(const StateTable& other, Stack stack, std::unordered_map<Stack, Stack>& known);

  std::shared_ptr<const Grammar> grammar_;  // shared by all tables of the grammar
  std::vector<Frame> frames_;               // of stacks
  std::vector<StackInfo> stacks_;
  std::unordered_multimap<std::uint64_t, Stack> stacks_by_hash_;
  std::vector<Frame> items_;  // of states: a node, and the calls around it
  std::vector<StateInfo> states_;
  std::unordered_multimap<std::uint64_t, State> states_by_hash_;
  std::vector<std::vector<Move>> moves_;
  std::vector<State> rows_;  // by state and class of the byte
  State start_ = kDead;
  std::size_t memory_ = 0;
};

}  // namespace butterfly
