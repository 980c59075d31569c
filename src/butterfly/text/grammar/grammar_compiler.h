// From expressions to a Grammar: nodes with empty edges first (Thompson's construction), then the empty edges and calls
// of rules that may be empty are followed once and for all, and the shortest way to the end of each rule is found. One
// for each grammar; not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/text/grammar/grammar_builder.h"

namespace butterfly {

class GrammarCompiler {
 public:
  /// `builder` outlives it.
  GrammarCompiler(const GrammarBuilder& builder, const GrammarLimits& limits) : builder_(builder), limits_(limits) {}

  /// As GrammarBuilder::build().
  Result<std::shared_ptr<const Grammar>> run(GrammarBuilder::Rule root);

 private:
  using Kind = GrammarBuilder::Kind;
  using Expr = GrammarBuilder::Expr;
  struct Edge {
    std::uint32_t label = 0;  // of bytes: the set; of calls: the rule
    std::uint32_t to = 0;
    auto operator<=>(const Edge&) const = default;
  };
  struct Draft {
    std::vector<std::uint32_t> empty{};
    std::vector<Edge> bytes{};
    std::vector<Edge> calls{};
  };
  struct RuleDraft {
    std::uint32_t entry = 0;
    std::uint32_t end = 0;
    bool nullable = false;
  };

  Status draft_rules();
  Status add(Expr expr, std::uint32_t from, std::uint32_t to);
  void add_bytes(const std::string& literal, std::uint32_t from, std::uint32_t to);
  Status add_sequence(const std::vector<Expr>& parts, std::uint32_t from, std::uint32_t to);
  Status add_repeat(const GrammarBuilder::Node& node, std::uint32_t from, std::uint32_t to);
  Status add_graph(const GrammarBuilder::Graph& graph, std::uint32_t from, std::uint32_t to);
  std::uint32_t new_node();
  std::size_t cost(Expr expr) const;
  void find_nullable();
  std::vector<std::uint32_t> closure(std::uint32_t node) const;
  void add_node(std::uint32_t draft, std::vector<std::uint32_t>& kept, std::vector<std::uint32_t>& place);
  Status make_nodes();
  Status find_order();
  void find_distances();
  void drop_dead_ends();
  void make_classes();
  Status check_size() const;
  std::string rule_name(std::uint32_t rule) const;
  std::uint32_t set_id(const GrammarBuilder::ByteSet& set);

  const GrammarBuilder& builder_;
  const GrammarLimits limits_;
  std::vector<Draft> drafts_;
  std::size_t edges_ = 0;
  std::vector<RuleDraft> rules_;
  std::vector<Expr> bodies_;  // of rules, those of repetitions at the end
  std::vector<std::uint32_t> owner_;
  std::vector<GrammarBuilder::ByteSet> sets_;
  std::map<std::string, std::uint32_t> set_ids_;
  std::shared_ptr<Grammar> grammar_ = std::make_shared<Grammar>();  // as GrammarBuilder gives it out
};

}  // namespace butterfly
