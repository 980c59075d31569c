#include "butterfly/text/grammar/json_pieces.h"

#include <map>
#include <string>

#include "butterfly/text/grammar/regex.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

constexpr std::uint32_t kIndentMost = 16;

GrammarBuilder::ByteSet bytes_of(std::string_view characters) {
  GrammarBuilder::ByteSet set;
  for (const char c : characters) set.set(static_cast<unsigned char>(c));
  return set;
}

/// What a string shows as it is.
CodePointSet plain_characters() {
  return CodePointSet(0x20, 0x10FFFF).without(CodePointSet::of("\"\\"));
}

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

}  // namespace

GrammarBuilder::Expr JsonPieces::call(std::optional<GrammarBuilder::Rule>& rule, const char* name,
                                      Expr (JsonPieces::*make)()) {
  if (!rule) {
    rule = builder_.add_rule(name);
    const GrammarBuilder::Rule made = *rule;
    builder_.set_rule(made, (this->*make)());
  }
  return builder_.call(*rule);
}

GrammarBuilder::Expr JsonPieces::gap() {
  return call(gap_, "white space", &JsonPieces::make_gap);
}

GrammarBuilder::Expr JsonPieces::make_gap() {
  const Expr line = builder_.sequence({builder_.bytes("\n"), builder_.repeat(builder_.bytes(" "), 0, kIndentMost)});
  return builder_.optional(builder_.choice({builder_.bytes(" "), line}));
}

GrammarBuilder::Expr JsonPieces::colon() {
  return builder_.sequence({builder_.bytes(":"), builder_.optional(builder_.bytes(" "))});
}

/// One character, by itself or as any of its escapes; surrogates in pairs alone.
GrammarBuilder::Expr JsonPieces::any_character() {
  const Expr hex = builder_.byte_set(bytes_of(kHexDigits));
  const Expr d = builder_.byte_set(bytes_of("dD"));
  const Expr plain = builder_.sequence({builder_.byte_set(bytes_of("0123456789abcefABCEF")), hex, hex, hex});
  const Expr below = builder_.sequence({d, builder_.byte_set(bytes_of("01234567")), hex, hex});
  const Expr pair = builder_.sequence({d, builder_.byte_set(bytes_of("89abAB")), hex, hex, builder_.bytes("\\u"), d,
                                       builder_.byte_set(bytes_of("cdefCDEF")), hex, hex});
  const Expr code = builder_.sequence({builder_.bytes("u"), builder_.choice({plain, below, pair})});
  const Expr escape = builder_.choice({builder_.byte_set(bytes_of("\"\\/bfnrt")), code});
  return builder_.choice({builder_.characters(plain_characters()), builder_.sequence({builder_.bytes("\\"), escape})});
}

GrammarBuilder::Expr JsonPieces::make_string() {
  return quoted(builder_.repeat(any_character(), 0));
}

GrammarBuilder::Expr JsonPieces::string(std::uint32_t least, std::uint32_t most) {
  if (least == 0 && most == GrammarBuilder::kUnbounded) return call(string_, "string", &JsonPieces::make_string);
  return quoted(builder_.repeat(any_character(), least, most));
}

GrammarBuilder::Expr JsonPieces::characters(const CodePointSet& set) {
  std::vector<Expr> options;
  CodePointSet plain = set;
  CodePointSet not_plain(0, 0x1F);
  not_plain.add(CodePointSet::of("\"\\"));
  plain = plain.without(not_plain);
  if (!plain.empty()) options.push_back(builder_.characters(plain));
  std::vector<std::string> escapes;
  for (char32_t c = 0; c <= '\\'; ++c) {
    if (!not_plain.contains(c) || !set.contains(c)) continue;
    const std::string text = dump_json(nlohmann::json(std::string(1, static_cast<char>(c))));
    escapes.push_back(text.substr(1, text.size() - 2));
  }
  if (!escapes.empty()) options.push_back(builder_.any_of(escapes));
  if (options.empty()) return builder_.characters({});
  return builder_.choice(std::move(options));
}

/// A tree of the keys; what leaves it, or ends inside it, is none of them.
GrammarBuilder::Expr JsonPieces::other_key(const std::vector<std::string>& keys) {
  std::vector<std::map<char32_t, std::uint32_t>> nodes(1);
  std::vector<bool> is_key(1);
  for (const std::string& key : keys) {
    std::uint32_t node = 0;
    for (std::string_view rest = key; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      rest.remove_prefix(static_cast<std::size_t>(step.size));
      const auto [found, is_new] = nodes[node].try_emplace(step.code_point, static_cast<std::uint32_t>(nodes.size()));
      node = found->second;
      if (!is_new) continue;
      nodes.emplace_back();
      is_key.push_back(false);
    }
    is_key[node] = true;
  }
  const auto other = static_cast<std::uint32_t>(nodes.size());
  std::vector<GrammarBuilder::Edge> edges;
  std::vector<std::uint32_t> finals{other};
  for (std::uint32_t node = 0; node < other; ++node) {
    CodePointSet leaves = plain_characters();
    for (const auto& [c, to] : nodes[node]) {
      leaves = leaves.without({c, c});
      if (!plain_characters().contains(c)) continue;
      edges.push_back({.from = node, .to = to, .expr = builder_.characters({c, c})});
    }
    edges.push_back({.from = node, .to = other, .expr = builder_.characters(leaves)});
    if (!is_key[node]) finals.push_back(node);
  }
  edges.push_back({.from = other, .to = other, .expr = builder_.characters(plain_characters())});
  return quoted(builder_.graph(other + 1, std::move(edges), std::move(finals)));
}

GrammarBuilder::Expr JsonPieces::integer() {
  const Expr digit = builder_.byte_set(bytes_of("0123456789"));
  const Expr more = builder_.sequence({builder_.byte_set(bytes_of("123456789")), builder_.repeat(digit, 0, 17)});
  return builder_.sequence({builder_.optional(builder_.bytes("-")), builder_.choice({builder_.bytes("0"), more})});
}

GrammarBuilder::Expr JsonPieces::number() {
  const Expr digit = builder_.byte_set(bytes_of("0123456789"));
  const Expr fraction = builder_.sequence({builder_.bytes("."), builder_.repeat(digit, 1, 17)});
  const Expr exponent =
      builder_.sequence({builder_.byte_set(bytes_of("eE")), builder_.optional(builder_.byte_set(bytes_of("+-"))),
                         builder_.repeat(digit, 1, 2)});
  return builder_.sequence({integer(), builder_.optional(fraction), builder_.optional(exponent)});
}

GrammarBuilder::Expr JsonPieces::value() {
  return call(value_, "value", &JsonPieces::make_value);
}

GrammarBuilder::Expr JsonPieces::object() {
  return call(object_, "object", &JsonPieces::make_object);
}

GrammarBuilder::Expr JsonPieces::array() {
  return call(array_, "array", &JsonPieces::make_array);
}

GrammarBuilder::Expr JsonPieces::make_value() {
  return builder_.choice({object(), array(), string(), number(), boolean(), null()});
}

GrammarBuilder::Expr JsonPieces::make_object() {
  return members(builder_.sequence({string(), colon(), value()}));
}

GrammarBuilder::Expr JsonPieces::make_array() {
  return elements(value());
}

GrammarBuilder::Expr JsonPieces::members(Expr member) {
  const Expr more = builder_.repeat(builder_.sequence({comma(), member}), 0);
  return builder_.sequence(
      {builder_.bytes("{"), gap(), builder_.optional(builder_.sequence({member, more, gap()})), builder_.bytes("}")});
}

GrammarBuilder::Expr JsonPieces::elements(Expr element, std::uint32_t least, std::uint32_t most) {
  Expr inside = builder_.empty();
  if (most > 0) {
    const std::uint32_t further = most == GrammarBuilder::kUnbounded ? most : most - 1;
    const Expr more = builder_.repeat(builder_.sequence({comma(), element}), least > 0 ? least - 1 : 0, further);
    inside = builder_.sequence({element, more, gap()});
    if (least == 0) inside = builder_.optional(inside);
  }
  return builder_.sequence({builder_.bytes("["), gap(), inside, builder_.bytes("]")});
}

GrammarBuilder::Expr JsonPieces::constant(const nlohmann::ordered_json& value) {
  if (!value.is_structured() || value.empty()) return builder_.bytes(dump_json(value));
  std::vector<Expr> parts{builder_.bytes(value.is_object() ? "{" : "["), gap()};
  bool first = true;
  for (const auto& [key, element] : value.items()) {
    if (!std::exchange(first, false)) parts.push_back(comma());
    if (value.is_object()) {
      parts.push_back(builder_.bytes(dump_json(nlohmann::json(key))));
      parts.push_back(colon());
    }
    parts.push_back(constant(element));
  }
  parts.push_back(gap());
  parts.push_back(builder_.bytes(value.is_object() ? "}" : "]"));
  return builder_.sequence(std::move(parts));
}

}  // namespace butterfly
