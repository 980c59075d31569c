// Expressions out of which front ends make a grammar: bytes, sequences, choices, repetitions, rules that call each
// other, and graphs whose edges are expressions. Sizes are bounded: a grammar may come from anyone. Not thread-safe.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/grammar/code_points.h"
#include "butterfly/text/grammar/grammar.h"

namespace butterfly {

class GrammarBuilder {
 public:
  using Expr = std::uint32_t;
  using Rule = std::uint32_t;
  using ByteSet = std::bitset<256>;
  static constexpr std::uint32_t kUnbounded = ~0u;

  /// A rule whose expression comes later; `name` is for errors.
  Rule add_rule(std::string name);
  void set_rule(Rule rule, Expr expr) { rules_[rule].expr = expr; }
  bool is_set(Rule rule) const { return rules_[rule].expr != kNone; }
  const std::string& name(Rule rule) const { return rules_[rule].name; }

  Expr empty();
  Expr bytes(std::string_view literal);
  Expr byte_set(const ByteSet& set);
  /// The UTF-8 of any character of the set; of an empty one no text.
  Expr characters(const CodePointSet& set);
  Expr sequence(std::vector<Expr> parts);
  Expr choice(std::vector<Expr> options);
  /// Any of these texts; common beginnings are shared.
  Expr any_of(const std::vector<std::string>& literals);
  Expr repeat(Expr body, std::uint32_t least, std::uint32_t most = kUnbounded);
  Expr optional(Expr body) { return repeat(body, 0, 1); }
  Expr call(Rule rule);

  /// Texts along the ways from node 0 to a node in `finals`.
  struct Edge {
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    Expr expr = 0;
  };
  Expr graph(std::uint32_t nodes, std::vector<Edge> edges, std::vector<std::uint32_t> finals);

  /// Errors: kInvalidArgument for a rule that calls itself before any byte, one that is not set, a grammar that no text
  /// matches, or one that is too large.
  Result<std::shared_ptr<const Grammar>> build(Rule root, const GrammarLimits& limits = {}) const;

 private:
  friend class GrammarCompiler;
  static constexpr std::uint32_t kNone = ~0u;
  enum class Kind : std::uint8_t { kEmpty, kBytes, kSet, kSequence, kChoice, kRepeat, kCall, kGraph };
  struct Node {
    Kind kind = Kind::kEmpty;
    std::uint32_t first = 0;  // of a set, a rule, a literal or a graph: which; of a repetition: the least
    std::uint32_t last = 0;   // of a repetition: the most
    std::vector<Expr> parts{};
  };
  struct RuleText {
    std::string name{};
    Expr expr = kNone;
  };
  struct Graph {
    std::uint32_t nodes = 0;
    std::vector<Edge> edges{};
    std::vector<std::uint32_t> finals{};
  };
  Expr add(Node node);

  std::vector<Node> nodes_;
  std::vector<RuleText> rules_;
  std::vector<ByteSet> sets_;
  std::vector<std::string> literals_;
  std::vector<Graph> graphs_;
};

}  // namespace butterfly
