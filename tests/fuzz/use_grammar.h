// What holds of every grammar that was not refused: texts keep to bounds, and from each of their places the shortest
// way to a whole text is as long as it is said to be.
#pragma once

#include <memory>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/grammar/state_table.h"

namespace butterfly::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// Follows the shortest way for at most `steps` bytes.
inline void follow_shortest(StateTable& table, StateTable::State state, int steps) {
  for (; steps > 0 && table.bytes_needed(state) > 0; --steps) {
    StateTable::State shorter = StateTable::kDead;
    for (unsigned byte = 0; byte < 256 && shorter == StateTable::kDead; ++byte) {
      const StateTable::State next = table.next(state, static_cast<unsigned char>(byte));
      if (next != StateTable::kDead && table.bytes_needed(next) + 1 == table.bytes_needed(state)) shorter = next;
    }
    require(shorter != StateTable::kDead);
    state = shorter;
  }
  if (table.bytes_needed(state) == 0) require(table.accepts(state));
}

inline void use_grammar(const Result<std::shared_ptr<const Grammar>>& grammar, std::string_view choices) {
  if (!grammar) return require(!grammar.error().message.empty());
  StateTable table(*grammar);
  StateTable::State state = table.start();
  require(state != StateTable::kDead);
  follow_shortest(table, state, 300);
  for (const char choice : choices.substr(0, 100)) {
    // The next byte that is possible, from the one that the input names.
    StateTable::State next = StateTable::kDead;
    for (unsigned i = 0; i < 256 && next == StateTable::kDead; ++i) {
      next = table.next(state, static_cast<unsigned char>(static_cast<unsigned char>(choice) + i));
    }
    require(next == StateTable::kDead || table.goes_on(state));
    if (next == StateTable::kDead) break;
    require(table.bytes_needed(next) + 1 >= table.bytes_needed(state));
    state = next;
    if (table.memory() > (std::size_t{64} << 20)) break;
  }
  follow_shortest(table, state, 300);
}

}  // namespace butterfly::fuzz
