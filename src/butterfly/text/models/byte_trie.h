// Strings and their values, found by walking from byte to byte: a double array, in which a step is one look. The
// children of a node lie at its base, each in the place that its byte says by exclusive or. Immutable after creation,
// thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace butterfly {

class ByteTrie {
 public:
  using Node = std::uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = 0;  // nothing leads back to the root

  ByteTrie() : ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>>{}) {}

  /// Values are not negative. Of equal strings the first stands; empty ones are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries);

  /// Where `byte` leads from `node`, or kNone.
  Node child(Node node, char byte) const {
    const Node place = nodes_[node].base ^ static_cast<unsigned char>(byte);
    return nodes_[place].parent == node ? place : kNone;
  }

  /// Where `text` leads from `node`, or kNone.
  Node walk(Node node, std::string_view text) const {
    for (char byte : text) {
      node = child(node, byte);
      if (node == kNone) break;
    }
    return node;
  }

  /// -1 where no string ends.
  std::int32_t value(Node node) const { return nodes_[node].value; }

  struct Match {
    std::size_t size = 0;
    std::int32_t value = -1;
  };
  /// The longest string that `text` starts with.
  Match longest(std::string_view text) const {
    Match best;
    Node node = kRoot;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, text[i]);
      if (node == kNone) break;
      if (value(node) >= 0) best = {i + 1, value(node)};
    }
    return best;
  }

 private:
  static constexpr Node kUnused = ~Node{0};
  struct Place {
    Node base = 0;  // without children the root's, where no place names this node as its parent
    Node parent = kUnused;
    std::int32_t value = -1;
  };
  std::vector<Place> nodes_;  // blocks of 256
};

}  // namespace butterfly
