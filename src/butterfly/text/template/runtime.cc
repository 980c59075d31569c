#include "butterfly/text/template/runtime.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/utf8.h"

namespace butterfly::chat {

namespace {

Result<int> nesting(int deepest) {
  if (deepest < TemplateBudget::kNesting) return deepest + 1;
  return make_error(ErrorCode::kInvalidArgument, "lists and dicts are nested more than {} deep",
                    TemplateBudget::kNesting);
}

/// What repr() writes for a character; empty: itself.
std::string repr_escape(char32_t character, char quote) {
  const auto code = static_cast<std::uint32_t>(character);
  if (character == static_cast<char32_t>(quote) || character == '\\') {
    return fmt::format("\\{}", static_cast<char>(character));
  }
  if (character == '\n') return "\\n";
  if (character == '\r') return "\\r";
  if (character == '\t') return "\\t";
  if (is_printable(character)) return {};
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

/// Python prefers single quotes.
void append_string_repr(MarkedText& out, const MarkedText& text) {
  const bool single = text.bytes.find('\'') != std::string::npos;
  const char quote = single && text.bytes.find('"') == std::string::npos ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.bytes, at);
    const std::string escape = repr_escape(c.code, quote);
    if (escape.empty()) {
      out.append(text, at, at + c.size);
    } else {
      out.append(escape, text.mark(at));
    }
    at += c.size;
  }
  out.append(std::string_view(&quote, 1));
}

}  // namespace

Runtime::~Runtime() {
  for (const auto& each : namespaces_) each->clear();
}

Result<Value> Runtime::text(MarkedText text, StringNode::Kind kind) {
  BF_TRY(budget_.check(text.cost() + StringNode::kOverhead));
  return Value(std::shared_ptr<const StringNode>(std::make_shared<StringNode>(&budget_, std::move(text), kind)));
}

Result<MarkedText> Runtime::escaped(const Value& value) {
  BF_ASSIGN_OR_RETURN(MarkedText text, show(value));
  if (value.is_markup()) return text;
  BF_TRY(budget_.step_bytes(8 * text.size()));
  BF_TRY(budget_.check(6 * text.cost()));
  MarkedText out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes[at];
    const char* escape = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : nullptr;
    out.append(escape != nullptr ? std::string_view(escape) : std::string_view(&c, 1), text.mark(at));
  }
  return out;
}

Result<Value> Runtime::list(std::vector<Value> items, ListForm form) {
  BF_TRY(budget_.check(items.size() * sizeof(Value) + ListNode::kOverhead));
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  BF_ASSIGN_OR_RETURN(const int depth, nesting(deepest));
  return Value(std::shared_ptr<const ListNode>(std::make_shared<ListNode>(&budget_, std::move(items), form, depth)));
}

Result<Value> Runtime::dict(std::vector<DictNode::Entry> entries) {
  BF_TRY(budget_.check(entries.size() * 3 * sizeof(DictNode::Entry) + DictNode::kOverhead));
  int deepest = 0;
  std::unordered_map<std::string_view, std::size_t> places;
  std::vector<DictNode::Entry> unique;
  unique.reserve(entries.size());
  std::size_t others = 0;
  for (DictNode::Entry& entry : entries) {
    deepest = std::max(deepest, entry.second.depth());
    if (entry.first.is_string()) {
      const auto [place, is_new] = places.try_emplace(entry.first.str(), unique.size());
      if (!is_new) unique[place->second].second = std::move(entry.second);
      if (is_new) unique.push_back(std::move(entry));
      continue;
    }
    if (entry.first.is_list() || entry.first.is_dict() || entry.first.is_undefined()) {
      if (!entry.first.is_list() || entry.first.list().form != ListForm::kTuple) {
        return make_error(ErrorCode::kInvalidArgument, "unhashable type: '{}'", entry.first.type_name());
      }
      deepest = std::max(deepest, entry.first.depth());
    }
    BF_TRY(budget_.step(++others));
    bool found = false;
    for (DictNode::Entry& earlier : unique) {
      if (earlier.first.is_string()) continue;
      BF_ASSIGN_OR_RETURN(found, equal(earlier.first, entry.first));
      if (!found) continue;
      earlier.second = std::move(entry.second);
      break;
    }
    if (!found) unique.push_back(std::move(entry));
  }
  BF_ASSIGN_OR_RETURN(const int depth, nesting(deepest));
  return Value(std::shared_ptr<const DictNode>(std::make_shared<DictNode>(&budget_, std::move(unique), depth)));
}

Result<Value> Runtime::make_namespace(std::vector<std::pair<std::string, Value>> members) {
  BF_TRY(budget_.check(NamespaceObject::kOverhead + 256 * members.size()));
  for (const auto& [name, value] : members) {
    if (name.starts_with('_')) {
      return make_error(ErrorCode::kInvalidArgument, "a namespace cannot hold '{}': names must not begin with '_'",
                        name);
    }
  }
  auto made = std::make_shared<NamespaceObject>(&budget_, std::move(members));
  namespaces_.push_back(made);
  return Value::object(std::move(made));
}

Result<Value> NamespaceObject::attribute(Runtime& runtime, std::string_view name) {
  BF_TRY(runtime.budget().step(1 + members_.size() / 8));
  for (const auto& [known, value] : members_) {
    if (known == name) return value;
  }
  return Object::attribute(runtime, name);
}

Status NamespaceObject::set(Runtime& runtime, const std::string& name, Value value) {
  if (name.starts_with('_')) {
    return make_error(ErrorCode::kInvalidArgument, "a namespace cannot hold '{}': names must not begin with '_'", name);
  }
  BF_TRY(runtime.budget().step(1 + members_.size() / 8));
  depth_ = std::max(depth_, value.depth());
  for (auto& [known, old] : members_) {
    if (known != name) continue;
    old = std::move(value);
    return {};
  }
  BF_TRY(runtime.budget().check(kMember));
  charges_.push_back(std::make_unique<Charged>(&runtime.budget(), kMember));
  members_.emplace_back(name, std::move(value));
  return {};
}

Value make_function(Runtime& runtime, FunctionObject::Body body, int depth) {
  return Value::object(std::make_shared<FunctionObject>(&runtime.budget(), depth, std::move(body)));
}

std::string show_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  std::array<char, 64> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed).ptr;
  std::string text(buffer.data(), fixed);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

Result<MarkedText> Runtime::show(const Value& value) {
  if (value.is_string()) {
    BF_TRY(budget_.step_bytes(value.text().size()));
    BF_TRY(budget_.check(value.text().cost()));
    return value.text();
  }
  MarkedText out;
  if (!value.is_undefined()) BF_TRY(append_repr(out, value));
  return out;
}

Status Runtime::append_repr(MarkedText& out, const Value& value) {
  const TemplateLevel level(budget_);
  BF_TRY(level.entered());
  BF_TRY(budget_.step());
  if (value.is_undefined()) {
    out.append("Undefined");
  } else if (value.is_none()) {
    out.append("None");
  } else if (value.is_bool()) {
    out.append(value.as_bool() ? "True" : "False");
  } else if (value.is_int()) {
    out.append(std::to_string(value.as_int()));
  } else if (value.is_float()) {
    out.append(show_number(value.as_float()));
  } else if (value.is_string()) {
    BF_TRY(budget_.step_bytes(8 * value.text().size()));
    append_string_repr(out, value.text());
  } else {
    BF_TRY(append_items(out, value));
  }
  return budget_.check(out.cost());
}

Status Runtime::append_items(MarkedText& out, const Value& value) {
  if (value.is_list()) {
    const ListForm form = value.list().form;
    if (form == ListForm::kGenerator) {
      out.append("<generator object>");
      return {};
    }
    const bool tuple = form == ListForm::kTuple;
    out.append(tuple ? "(" : form == ListForm::kView ? "dict_view([" : "[");
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out.append(", ");
      BF_TRY(append_repr(out, value.items()[i]));
    }
    if (tuple && value.items().size() == 1) out.append(",");
    out.append(tuple ? ")" : form == ListForm::kView ? "])" : "]");
    return {};
  }
  if (value.is_dict()) {
    out.append("{");
    bool first = true;
    for (const auto& [key, member] : value.dict().entries) {
      if (!first) out.append(", ");
      first = false;
      BF_TRY(append_repr(out, key));
      out.append(": ");
      BF_TRY(append_repr(out, member));
    }
    out.append("}");
    return {};
  }
  out.append(fmt::format("<{}>", value.type_name()));
  return {};
}

Result<std::size_t> Runtime::length(const Value& value) {
  if (value.is_undefined()) return std::size_t{0};
  if (value.is_string()) {
    BF_TRY(budget_.step_bytes(value.text().size()));
    return count_characters(value.str());
  }
  if (value.is_dict()) return value.dict().entries.size();
  if (value.is_list() && value.list().form != ListForm::kGenerator) return value.items().size();
  return make_error(ErrorCode::kInvalidArgument, "a value of type '{}' has no length", value.type_name());
}

Result<std::vector<Value>> Runtime::iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    BF_TRY(budget_.step(1 + value.items().size() / 8));
    BF_TRY(budget_.check(value.items().size() * sizeof(Value)));
    return value.items();
  }
  if (value.is_dict()) {
    BF_TRY(budget_.step(1 + value.dict().entries.size() / 8));
    for (const auto& [key, member] : value.dict().entries) items.push_back(key);
    return items;
  }
  if (!value.is_string()) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' object is not iterable", value.type_name());
  }
  const MarkedText& text = value.text();
  BF_TRY(budget_.step(text.size()));
  BF_TRY(budget_.check(text.size() * (StringNode::kOverhead + sizeof(Value))));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_at(text.bytes, at).size;
    BF_ASSIGN_OR_RETURN(Value character, this->text(text.slice(at, at + size)));
    items.push_back(std::move(character));
    at += size;
  }
  return items;
}

}  // namespace butterfly::chat
