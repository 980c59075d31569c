#include "butterfly/text/grammar/grammar_compiler.h"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

#include "butterfly/base/text/printable.h"

namespace butterfly {
namespace {

constexpr std::uint32_t kNoNode = ~0u;
constexpr std::uint32_t kCopiesInline = 32;  // more repetitions of something large call a rule for it
constexpr std::size_t kCostMost = 100;

}  // namespace

std::string GrammarCompiler::rule_name(std::uint32_t rule) const {
  return rule < builder_.rules_.size() ? printable(builder_.rules_[rule].name) : "of a repetition";
}

std::uint32_t GrammarCompiler::set_id(const GrammarBuilder::ByteSet& set) {
  const auto [found, is_new] = set_ids_.try_emplace(set.to_string(), static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return found->second;
}

std::uint32_t GrammarCompiler::new_node() {
  drafts_.emplace_back();
  return static_cast<std::uint32_t>(drafts_.size() - 1);
}

Status GrammarCompiler::check_size() const {
  if (drafts_.size() <= 3 * std::size_t{limits_.nodes_max} && edges_ <= limits_.edges_max) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "the grammar is too large: more than {} places in its texts, or {} ways between them",
                    limits_.nodes_max, limits_.edges_max);
}

/// Places that a copy of the expression takes, about.
std::size_t GrammarCompiler::cost(Expr expr) const {
  const GrammarBuilder::Node& node = builder_.nodes_[expr];
  if (node.kind == Kind::kBytes) return builder_.literals_[node.first].size();
  if (node.kind == Kind::kGraph) return builder_.graphs_[node.first].edges.size();
  std::size_t sum = 1;
  for (const Expr part : node.parts) {
    sum += cost(part);
    if (sum > kCostMost) break;
  }
  return sum;
}

Status GrammarCompiler::add_repeat(const GrammarBuilder::Node& node, std::uint32_t from, std::uint32_t to) {
  const std::uint32_t least = node.first;
  const std::uint32_t most = node.last;
  const Expr body = node.parts[0];
  const std::uint32_t copies = most == GrammarBuilder::kUnbounded ? least : most;
  std::uint32_t rule = kNoNode;
  if (copies > kCopiesInline && cost(body) > 2) {
    rule = static_cast<std::uint32_t>(bodies_.size());
    bodies_.push_back(body);
  }
  const auto add_one = [&](std::uint32_t begin, std::uint32_t end) -> Status {
    if (rule == kNoNode) return add(body, begin, end);
    drafts_[begin].calls.push_back({rule, end});
    ++edges_;
    return check_size();
  };
  std::uint32_t at = from;
  for (std::uint32_t i = 0; i < copies; ++i) {
    if (i >= least) drafts_[at].empty.push_back(to);
    const std::uint32_t next = new_node();
    BF_TRY(add_one(at, next));
    at = next;
  }
  if (most != GrammarBuilder::kUnbounded) {
    drafts_[at].empty.push_back(to);
    return check_size();
  }
  const std::uint32_t loop = new_node();
  const std::uint32_t behind = new_node();
  drafts_[at].empty.push_back(loop);
  BF_TRY(add_one(loop, behind));
  drafts_[behind].empty.push_back(loop);
  drafts_[loop].empty.push_back(to);
  return check_size();
}

Status GrammarCompiler::add_graph(const GrammarBuilder::Graph& graph, std::uint32_t from, std::uint32_t to) {
  const auto base = static_cast<std::uint32_t>(drafts_.size());
  for (std::uint32_t i = 0; i < graph.nodes; ++i) new_node();
  drafts_[from].empty.push_back(base);
  for (const auto& edge : graph.edges) BF_TRY(add(edge.expr, base + edge.from, base + edge.to));
  for (const std::uint32_t final : graph.finals) drafts_[base + final].empty.push_back(to);
  return check_size();
}

void GrammarCompiler::add_bytes(const std::string& literal, std::uint32_t from, std::uint32_t to) {
  if (literal.empty()) drafts_[from].empty.push_back(to);
  std::uint32_t at = from;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    const std::uint32_t next = i + 1 == literal.size() ? to : new_node();
    GrammarBuilder::ByteSet one;
    one.set(static_cast<unsigned char>(literal[i]));
    drafts_[at].bytes.push_back({set_id(one), next});
    at = next;
  }
  edges_ += literal.size();
}

Status GrammarCompiler::add_sequence(const std::vector<Expr>& parts, std::uint32_t from, std::uint32_t to) {
  if (parts.empty()) drafts_[from].empty.push_back(to);
  std::uint32_t at = from;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint32_t next = i + 1 == parts.size() ? to : new_node();
    BF_TRY(add(parts[i], at, next));
    at = next;
  }
  return {};
}

Status GrammarCompiler::add(Expr expr, std::uint32_t from, std::uint32_t to) {
  BF_TRY(check_size());
  ++edges_;
  const GrammarBuilder::Node& node = builder_.nodes_[expr];
  switch (node.kind) {
    case Kind::kEmpty:
      drafts_[from].empty.push_back(to);
      return {};
    case Kind::kBytes:
      add_bytes(builder_.literals_[node.first], from, to);
      return {};
    case Kind::kSet:
      drafts_[from].bytes.push_back({set_id(builder_.sets_[node.first]), to});
      return {};
    case Kind::kSequence:
      return add_sequence(node.parts, from, to);
    case Kind::kChoice:
      for (const Expr option : node.parts) BF_TRY(add(option, from, to));
      return {};
    case Kind::kRepeat:
      return add_repeat(node, from, to);
    case Kind::kCall:
      drafts_[from].calls.push_back({node.first, to});
      return {};
    case Kind::kGraph:
      return add_graph(builder_.graphs_[node.first], from, to);
  }
  return {};
}

Status GrammarCompiler::draft_rules() {
  for (const auto& rule : builder_.rules_) {
    if (rule.expr == GrammarBuilder::kNone) {
      return make_error(ErrorCode::kInvalidArgument, "the rule {} is used and nowhere defined", printable(rule.name));
    }
    bodies_.push_back(rule.expr);
  }
  for (std::size_t i = 0; i < bodies_.size(); ++i) {
    const std::uint32_t begin = new_node();
    const std::uint32_t end = new_node();
    BF_TRY(add(bodies_[i], begin, end));
    rules_.push_back({.entry = begin, .end = end});
    owner_.resize(drafts_.size(), static_cast<std::uint32_t>(i));
  }
  return {};
}

/// What can be reached without a byte.
std::vector<std::uint32_t> GrammarCompiler::closure(std::uint32_t node) const {
  std::vector<std::uint32_t> reached{node};
  std::set<std::uint32_t> seen{node};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const Draft& draft = drafts_[reached[i]];
    const auto visit = [&](std::uint32_t next) {
      if (seen.insert(next).second) reached.push_back(next);
    };
    for (const std::uint32_t next : draft.empty) visit(next);
    for (const Edge& call : draft.calls) {
      if (rules_[call.label].nullable) visit(call.to);
    }
  }
  return reached;
}

void GrammarCompiler::find_nullable() {
  std::vector<std::set<std::uint32_t>> callers(rules_.size());
  for (std::size_t i = 0; i < drafts_.size(); ++i) {
    for (const Edge& call : drafts_[i].calls) callers[call.label].insert(owner_[i]);
  }
  std::vector<std::uint32_t> work(rules_.size());
  for (std::uint32_t i = 0; i < work.size(); ++i) work[i] = i;
  while (!work.empty()) {
    const std::uint32_t at = work.back();
    work.pop_back();
    RuleDraft& rule = rules_[at];
    if (rule.nullable) continue;
    const auto reached = closure(rule.entry);
    if (std::ranges::find(reached, rule.end) == reached.end()) continue;
    rule.nullable = true;
    work.insert(work.end(), callers[at].begin(), callers[at].end());
  }
}

void GrammarCompiler::add_node(std::uint32_t draft, std::vector<std::uint32_t>& kept,
                               std::vector<std::uint32_t>& place) {
  Grammar& grammar = *grammar_;
  Grammar::NodeInfo node;
  std::vector<Edge> bytes;
  std::vector<Edge> calls;
  for (const std::uint32_t reached : closure(draft)) {
    bytes.insert(bytes.end(), drafts_[reached].bytes.begin(), drafts_[reached].bytes.end());
    calls.insert(calls.end(), drafts_[reached].calls.begin(), drafts_[reached].calls.end());
    if (reached == rules_[owner_[draft]].end) node.final = true;
  }
  for (auto* edges : {&bytes, &calls}) {
    for (Edge& edge : *edges) {
      if (place[edge.to] == kNoNode) {
        place[edge.to] = static_cast<std::uint32_t>(kept.size());
        kept.push_back(edge.to);
      }
      edge.to = place[edge.to];
    }
    std::ranges::sort(*edges);
    edges->erase(std::unique(edges->begin(), edges->end()), edges->end());
  }
  node.bytes_begin = static_cast<std::uint32_t>(grammar.byte_edges.size());
  for (const Edge& edge : bytes) grammar.byte_edges.push_back({.set = edge.label, .to = edge.to});
  node.bytes_end = static_cast<std::uint32_t>(grammar.byte_edges.size());
  node.calls_begin = static_cast<std::uint32_t>(grammar.call_edges.size());
  for (const Edge& edge : calls) grammar.call_edges.push_back({.rule = edge.label, .to = edge.to});
  node.calls_end = static_cast<std::uint32_t>(grammar.call_edges.size());
  grammar.nodes.push_back(node);
}

/// Nodes of the grammar are the entries of rules and what bytes and calls lead to.
Status GrammarCompiler::make_nodes() {
  Grammar& grammar = *grammar_;
  std::vector<std::uint32_t> place(drafts_.size(), kNoNode);
  std::vector<std::uint32_t> kept;
  for (const RuleDraft& rule : rules_) {
    place[rule.entry] = static_cast<std::uint32_t>(kept.size());
    grammar.rules.push_back({.entry = place[rule.entry]});
    kept.push_back(rule.entry);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::uint32_t draft = kept[i];
    add_node(draft, kept, place);
    const std::size_t edges = grammar.byte_edges.size() + grammar.call_edges.size();
    if (grammar.nodes.size() <= limits_.nodes_max && edges <= limits_.edges_max) continue;
    edges_ = std::size_t{limits_.edges_max} + 1;
    return check_size();
  }
  for (Grammar::CallEdge& call : grammar.call_edges) {
    const Grammar::NodeInfo& to = grammar.nodes[call.to];
    call.tail = to.final && !to.has_edges();
  }
  return {};
}

/// Rules in an order in which each stands before those that it calls first thing. Errors where there is none.
Status GrammarCompiler::find_order() {
  Grammar& grammar = *grammar_;
  enum class Seen : std::uint8_t { kNew, kOpen, kDone };
  std::vector<Seen> seen(grammar.rules.size(), Seen::kNew);
  std::vector<std::uint32_t> finished;
  struct Visit {
    std::uint32_t rule = 0;
    std::uint32_t next = 0;
  };
  const auto entry_of = [&](std::uint32_t rule) { return grammar.nodes[grammar.rules[rule].entry]; };
  for (std::uint32_t start = 0; start < grammar.rules.size(); ++start) {
    if (seen[start] != Seen::kNew) continue;
    std::vector<Visit> way{{start, entry_of(start).calls_begin}};
    seen[start] = Seen::kOpen;
    while (!way.empty()) {
      Visit& visit = way.back();
      if (visit.next == entry_of(visit.rule).calls_end) {
        seen[visit.rule] = Seen::kDone;
        finished.push_back(visit.rule);
        way.pop_back();
        continue;
      }
      const std::uint32_t callee = grammar.call_edges[visit.next++].rule;
      if (seen[callee] == Seen::kOpen) {
        return make_error(ErrorCode::kInvalidArgument,
                          "left recursion: the rule {} leads back to itself without a character in between",
                          rule_name(callee));
      }
      if (seen[callee] == Seen::kDone) continue;
      seen[callee] = Seen::kOpen;
      way.push_back({callee, entry_of(callee).calls_begin});
    }
  }
  std::ranges::reverse(finished);
  grammar.rule_at = finished;
  for (std::uint32_t i = 0; i < finished.size(); ++i) grammar.rules[finished[i]].order = i;
  return {};
}

/// Knuth's generalisation of Dijkstra's algorithm, https://doi.org/10.1016/0020-0190(77)90002-3: the least bytes to the
/// end of a rule, and among such ways the least depth.
void GrammarCompiler::find_distances() {
  Grammar& grammar = *grammar_;
  struct Caller {
    std::uint32_t from = 0;
    std::uint32_t call = 0;
  };
  std::vector<std::vector<std::uint32_t>> byte_sources(grammar.nodes.size());
  std::vector<std::vector<Caller>> before(grammar.nodes.size());         // calls that lead to a node
  std::vector<std::vector<Caller>> callers(grammar.nodes.size());        // of the rule that a node is the entry of
  using Open = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // bytes, depth, node
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  for (std::uint32_t i = 0; i < grammar.nodes.size(); ++i) {
    Grammar::NodeInfo& node = grammar.nodes[i];
    node.bytes_needed = kNoNode;
    for (std::uint32_t e = node.bytes_begin; e < node.bytes_end; ++e) {
      byte_sources[grammar.byte_edges[e].to].push_back(i);
    }
    for (std::uint32_t e = node.calls_begin; e < node.calls_end; ++e) {
      before[grammar.call_edges[e].to].push_back({i, e});
      callers[grammar.rules[grammar.call_edges[e].rule].entry].push_back({i, e});
    }
    if (node.final) open.push({0, 0, i});
  }
  const auto try_call = [&](const Caller& caller) {
    const Grammar::CallEdge& call = grammar.call_edges[caller.call];
    const Grammar::NodeInfo& to = grammar.nodes[call.to];
    const Grammar::NodeInfo& entry = grammar.nodes[grammar.rules[call.rule].entry];
    if (to.bytes_needed == kNoNode || entry.bytes_needed == kNoNode) return;
    const std::uint32_t depth = std::max(to.depth_needed, entry.depth_needed + (call.tail ? 0 : 1));
    open.push({to.bytes_needed + entry.bytes_needed, depth, caller.from});
  };
  while (!open.empty()) {
    const auto [bytes, depth, at] = open.top();
    open.pop();
    Grammar::NodeInfo& node = grammar.nodes[at];
    if (node.bytes_needed != kNoNode || bytes > kNoNode / 4) continue;
    node.bytes_needed = bytes;
    node.depth_needed = depth;
    for (const std::uint32_t source : byte_sources[at]) open.push({bytes + 1, depth, source});
    for (const Caller& caller : before[at]) try_call(caller);
    for (const Caller& caller : callers[at]) try_call(caller);
  }
}

/// Edges to where no text ends, and calls of rules that have no text but the empty one, which make_nodes() passed over.
void GrammarCompiler::drop_dead_ends() {
  Grammar& grammar = *grammar_;
  const auto is_dead = [&](std::uint32_t node) { return grammar.nodes[node].bytes_needed == kNoNode; };
  std::vector<bool> has_text(grammar.rules.size());
  for (auto rule = grammar.rule_at.rbegin(); rule != grammar.rule_at.rend(); ++rule) {
    const Grammar::NodeInfo& entry = grammar.nodes[grammar.rules[*rule].entry];
    has_text[*rule] = entry.bytes_end > entry.bytes_begin;
    for (std::uint32_t e = entry.calls_begin; e < entry.calls_end; ++e) {
      if (has_text[grammar.call_edges[e].rule]) has_text[*rule] = true;
    }
  }
  std::vector<Grammar::ByteEdge> bytes;
  std::vector<Grammar::CallEdge> calls;
  for (Grammar::NodeInfo& node : grammar.nodes) {
    const Grammar::NodeInfo old = node;
    node.bytes_begin = static_cast<std::uint32_t>(bytes.size());
    for (std::uint32_t e = old.bytes_begin; e < old.bytes_end; ++e) {
      if (!is_dead(grammar.byte_edges[e].to)) bytes.push_back(grammar.byte_edges[e]);
    }
    node.bytes_end = static_cast<std::uint32_t>(bytes.size());
    node.calls_begin = static_cast<std::uint32_t>(calls.size());
    for (std::uint32_t e = old.calls_begin; e < old.calls_end; ++e) {
      const auto& call = grammar.call_edges[e];
      const bool leads_on = has_text[call.rule] && !is_dead(grammar.rules[call.rule].entry);
      if (!is_dead(call.to) && leads_on) calls.push_back(call);
    }
    node.calls_end = static_cast<std::uint32_t>(calls.size());
  }
  grammar.byte_edges = std::move(bytes);
  grammar.call_edges = std::move(calls);
}

void GrammarCompiler::make_classes() {
  Grammar& grammar = *grammar_;
  grammar.classes.fill(0);
  grammar.class_count = 1;
  for (const auto& set : sets_) {
    std::map<std::pair<std::uint8_t, bool>, std::uint8_t> parts;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto next = static_cast<std::uint8_t>(parts.size());
      grammar.classes[byte] = parts.try_emplace({grammar.classes[byte], set[byte]}, next).first->second;
    }
    grammar.class_count = static_cast<std::uint32_t>(parts.size());
  }
  grammar.sets.assign(sets_.size(), std::vector<std::uint64_t>((grammar.class_count + 63) / 64));
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const std::uint32_t c = grammar.classes[byte];
      if (sets_[i][byte]) grammar.sets[i][c / 64] |= std::uint64_t{1} << (c % 64);
    }
  }
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::run(GrammarBuilder::Rule root) {
  BF_TRY(draft_rules());
  // Sets without a byte lead nowhere.
  for (Draft& draft : drafts_) std::erase_if(draft.bytes, [&](const Edge& edge) { return sets_[edge.label].none(); });
  find_nullable();
  BF_TRY(make_nodes());
  BF_TRY(find_order());
  find_distances();
  drop_dead_ends();
  make_classes();
  Grammar& grammar = *grammar_;
  grammar.root = root;
  grammar.limits = limits_;
  const Grammar::NodeInfo& entry = grammar.nodes[grammar.rules[root].entry];
  if (entry.bytes_needed == kNoNode) {
    return make_error(ErrorCode::kInvalidArgument, "no text can ever match: the rule {} never comes to an end",
                      rule_name(root));
  }
  if (entry.depth_needed > limits_.depth_max) {
    return make_error(ErrorCode::kInvalidArgument, "the shortest text is {} rules deep, {} are possible",
                      entry.depth_needed, limits_.depth_max);
  }
  return std::shared_ptr<const Grammar>(std::move(grammar_));
}

Result<std::shared_ptr<const Grammar>> GrammarBuilder::build(Rule root, const GrammarLimits& limits) const {
  return GrammarCompiler(*this, limits).run(root);
}

}  // namespace butterfly
