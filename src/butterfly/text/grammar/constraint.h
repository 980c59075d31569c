// What a request asks of the form of its answer, and the automaton that keeps it to that. Plain values; a
// ConstraintCache is thread-safe and belongs to one model.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "butterfly/base/result.h"
#include "butterfly/text/grammar/matcher.h"

namespace butterfly {

struct Constraint {
  enum class Kind : std::uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kGbnf };
  Kind kind = Kind::kNone;
  std::string source{};  // of the schema, the expression or the grammar

  bool none() const { return kind == Kind::kNone; }
  friend bool operator==(const Constraint&, const Constraint&) = default;
};

/// Errors: those of the front end that reads the source.
Result<std::shared_ptr<const Grammar>> compile(const Constraint& constraint);

/// Automata by their source, so that requests with the same one share what it found out. The least recently used go
/// first; requests that have one keep it.
class ConstraintCache {
 public:
  explicit ConstraintCache(std::shared_ptr<const TokenTrie> trie, std::size_t size_max = 32)
      : trie_(std::move(trie)), size_max_(size_max) {}

  /// Null for none. Errors: those of compile().
  Result<std::shared_ptr<TokenAutomaton>> find(const Constraint& constraint);

 private:
  const std::shared_ptr<const TokenTrie> trie_;  // shared with the automata
  const std::size_t size_max_;
  std::mutex mutex_;  // guards recent_
  std::list<std::pair<Constraint, std::shared_ptr<TokenAutomaton>>> recent_;
};

}  // namespace butterfly
