#include "butterfly/text/grammar/grammar_builder.h"

#include <algorithm>
#include <array>
#include <map>

#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

using ByteRange = std::pair<unsigned char, unsigned char>;

/// The UTF-8 of first..last, which have the same number of bytes, as sequences of ranges of bytes.
void add_sequences(const std::string& first, const std::string& last, std::size_t at, std::vector<ByteRange> before,
                   std::vector<std::vector<ByteRange>>& out) {
  const auto byte = [](const std::string& text, std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t size = first.size();
  if (at == size) return out.push_back(std::move(before));
  const auto is_at_end = [&](const std::string& text, unsigned char end) {
    for (std::size_t i = at + 1; i < size; ++i) {
      if (byte(text, i) != end) return false;
    }
    return true;
  };
  unsigned char low = byte(first, at);
  unsigned char high = byte(last, at);
  if (low == high) {
    before.emplace_back(low, high);
    return add_sequences(first, last, at + 1, std::move(before), out);
  }
  if (!is_at_end(first, 0x80)) {
    std::string end = first.substr(0, at + 1) + std::string(size - at - 1, '\xBF');
    add_sequences(first, end, at, before, out);
    ++low;
  }
  const bool cut_last = !is_at_end(last, 0xBF);
  if (cut_last) --high;
  if (low <= high) {
    std::vector<ByteRange> whole = before;
    whole.emplace_back(low, high);
    for (std::size_t i = at + 1; i < size; ++i) whole.emplace_back(0x80, 0xBF);
    out.push_back(std::move(whole));
  }
  if (cut_last) {
    const std::string begin = last.substr(0, at + 1) + std::string(size - at - 1, '\x80');
    add_sequences(begin, last, at, std::move(before), out);
  }
}

std::string utf8_of(char32_t c) {
  std::string text;
  append_utf8(text, c);
  return text;
}

}  // namespace

GrammarBuilder::Expr GrammarBuilder::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

GrammarBuilder::Rule GrammarBuilder::add_rule(std::string name) {
  rules_.push_back({.name = std::move(name)});
  return static_cast<Rule>(rules_.size() - 1);
}

GrammarBuilder::Expr GrammarBuilder::empty() {
  return add({.kind = Kind::kEmpty});
}

GrammarBuilder::Expr GrammarBuilder::bytes(std::string_view literal) {
  literals_.emplace_back(literal);
  return add({.kind = Kind::kBytes, .first = static_cast<std::uint32_t>(literals_.size() - 1)});
}

GrammarBuilder::Expr GrammarBuilder::byte_set(const ByteSet& set) {
  sets_.push_back(set);
  return add({.kind = Kind::kSet, .first = static_cast<std::uint32_t>(sets_.size() - 1)});
}

GrammarBuilder::Expr GrammarBuilder::characters(const CodePointSet& set) {
  ByteSet ascii;
  std::vector<Expr> options;
  constexpr std::array<char32_t, 4> kLastOfSize{0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  for (const auto& range : set.ranges()) {
    char32_t first = range.first;
    for (const char32_t last_of_size : kLastOfSize) {
      if (first > last_of_size || first > range.last) continue;
      const char32_t last = std::min(range.last, last_of_size);
      if (last <= 0x7F) {
        for (char32_t c = first; c <= last; ++c) ascii.set(c);
      } else {
        std::vector<std::vector<ByteRange>> sequences;
        add_sequences(utf8_of(first), utf8_of(last), 0, {}, sequences);
        for (const auto& ranges : sequences) {
          std::vector<Expr> parts;
          for (const auto& [low, high] : ranges) {
            ByteSet part;
            for (unsigned byte = low; byte <= high; ++byte) part.set(byte);
            parts.push_back(byte_set(part));
          }
          options.push_back(sequence(std::move(parts)));
        }
      }
      first = last + 1;
    }
  }
  if (ascii.any() || options.empty()) options.push_back(byte_set(ascii));
  return choice(std::move(options));
}

GrammarBuilder::Expr GrammarBuilder::sequence(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::kSequence, .parts = std::move(parts)});
}

GrammarBuilder::Expr GrammarBuilder::choice(std::vector<Expr> options) {
  if (options.size() == 1) return options[0];
  return add({.kind = Kind::kChoice, .parts = std::move(options)});
}

GrammarBuilder::Expr GrammarBuilder::any_of(const std::vector<std::string>& literals) {
  std::vector<std::map<char, std::uint32_t>> nodes(1);
  std::vector<std::uint32_t> finals;
  std::vector<Edge> edges;
  for (const std::string& literal : literals) {
    std::uint32_t node = 0;
    for (const char c : literal) {
      const auto [found, is_new] = nodes[node].try_emplace(c, static_cast<std::uint32_t>(nodes.size()));
      const std::uint32_t next = found->second;
      if (is_new) {
        edges.push_back({.from = node, .to = next, .expr = bytes(std::string_view(&c, 1))});
        nodes.emplace_back();
      }
      node = next;
    }
    finals.push_back(node);
  }
  return graph(static_cast<std::uint32_t>(nodes.size()), std::move(edges), std::move(finals));
}

GrammarBuilder::Expr GrammarBuilder::repeat(Expr body, std::uint32_t least, std::uint32_t most) {
  if (least == 1 && most == 1) return body;
  return add({.kind = Kind::kRepeat, .first = least, .last = most, .parts = {body}});
}

GrammarBuilder::Expr GrammarBuilder::call(Rule rule) {
  return add({.kind = Kind::kCall, .first = rule});
}

GrammarBuilder::Expr GrammarBuilder::graph(std::uint32_t nodes, std::vector<Edge> edges,
                                           std::vector<std::uint32_t> finals) {
  graphs_.push_back({.nodes = nodes, .edges = std::move(edges), .finals = std::move(finals)});
  return add({.kind = Kind::kGraph, .first = static_cast<std::uint32_t>(graphs_.size() - 1)});
}

}  // namespace butterfly
