// A grammar ready to run: rules as automata over bytes whose edges are sets of bytes or calls of rules. It comes from a
// JSON schema (json_schema.h), a regular expression (regex.h) or GBNF (gbnf.h) by way of a GrammarBuilder. Immutable,
// thread-safe, shared by all requests that use it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace butterfly {

struct GrammarLimits {
  std::uint32_t nodes_max = 200'000;    // of all rules together
  std::uint32_t edges_max = 1'000'000;  // what has more is refused
  std::uint32_t depth_max = 128;        // calls within calls; deeper texts are not written
};

class Grammar {
 public:
  using Node = std::uint32_t;
  /// A byte of one of the classes in `set` leads to `to`.
  struct ByteEdge {
    std::uint32_t set = 0;
    Node to = 0;
  };
  struct CallEdge {
    std::uint32_t rule = 0;
    Node to = 0;
    bool tail = false;  // nothing follows in the caller: its own callers are returned to
  };
  struct NodeInfo {
    std::uint32_t bytes_begin = 0, bytes_end = 0;  // in byte_edges
    std::uint32_t calls_begin = 0, calls_end = 0;  // in call_edges
    std::uint32_t bytes_needed = 0;                // to the end of the rule at least
    std::uint32_t depth_needed = 0;                // calls within calls on that shortest way
    bool final = false;                            // the rule may end here
    bool has_edges() const { return bytes_end > bytes_begin || calls_end > calls_begin; }
  };
  struct RuleInfo {
    Node entry = 0;
    std::uint32_t order = 0;  // a rule called first thing by another has the higher one
  };

  std::vector<NodeInfo> nodes;
  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> call_edges;
  std::vector<RuleInfo> rules;
  std::vector<std::uint32_t> rule_at;     // by order
  std::uint32_t root = 0;                 // a rule
  std::array<std::uint8_t, 256> classes;  // bytes of one class are never told apart
  std::uint32_t class_count = 0;
  std::vector<std::vector<std::uint64_t>> sets;  // by ByteEdge::set: one bit for each class
  GrammarLimits limits;

  bool in_set(std::uint32_t set, std::uint32_t byte_class) const {
    return (sets[set][byte_class / 64] >> (byte_class % 64) & 1) != 0;
  }
};

}  // namespace butterfly
