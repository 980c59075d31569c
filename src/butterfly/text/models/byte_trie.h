// Strings and their values, found by walking from byte to byte. Nodes lie in breadth-first order, so that the children
// of a node are neighbours and a node needs no table of its own. Immutable after creation, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
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
    const auto label = static_cast<unsigned char>(byte);
    if (node == kRoot) return root_[label];
    const Inner& inner = nodes_[node];
    if (inner.count == 0) return kNone;
    const void* found = std::memchr(labels_.data() + inner.first, label, inner.count);
    return found == nullptr ? kNone : static_cast<Node>(static_cast<const unsigned char*>(found) - labels_.data());
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
  struct Inner {
    std::uint32_t first = 0;  // child
    std::uint32_t count = 0;  // of children
    std::int32_t value = -1;
  };
  std::vector<Inner> nodes_;
  std::vector<unsigned char> labels_;  // by node: the byte that leads to it
  std::array<Node, 256> root_{};
};

}  // namespace butterfly
