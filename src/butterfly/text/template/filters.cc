// Filters of single values: texts, numbers, JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

/// The method `Name` of the value's text.
Result<Value> text_filter(Runtime& runtime, std::string_view method, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const MarkedText self, runtime.show(arguments.values[0]));
  Arguments rest = arguments;
  rest.values.erase(rest.values.begin());
  return find_text_method(method)(runtime, self, rest);
}

Result<Value> filter_upper(Runtime& runtime, const Arguments& arguments) {
  return text_filter(runtime, "upper", arguments);
}

Result<Value> filter_lower(Runtime& runtime, const Arguments& arguments) {
  return text_filter(runtime, "lower", arguments);
}

Result<Value> filter_capitalize(Runtime& runtime, const Arguments& arguments) {
  return text_filter(runtime, "capitalize", arguments);
}

Result<Value> filter_trim(Runtime& runtime, const Arguments& arguments) {
  return text_filter(runtime, "strip", arguments);
}

Result<Value> filter_replace(Runtime& runtime, const Arguments& arguments) {
  Arguments shown = arguments;
  for (std::size_t i = 1; i < std::min<std::size_t>(shown.values.size(), 3); ++i) {
    BF_ASSIGN_OR_RETURN(MarkedText text, runtime.show(shown.values[i]));
    BF_ASSIGN_OR_RETURN(shown.values[i], runtime.text(std::move(text)));
  }
  return text_filter(runtime, "replace", shown);
}

Result<Value> filter_center(Runtime& runtime, const Arguments& arguments) {
  Arguments given = arguments;
  if (given.find(1, "width") == nullptr) given.values.push_back(Value::integer(80));
  return text_filter(runtime, "center", given);
}

/// Words begin after white space and after - ( { [ <.
Result<Value> filter_title(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("title", {"value"}));
  BF_ASSIGN_OR_RETURN(const MarkedText self, runtime.show(arguments.values[0]));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  MarkedText out;
  bool first = true;
  for (std::size_t at = 0; at < self.size();) {
    const Character c = character_at(self.bytes, at);
    append_in_case(out, self, at, at + c.size, first ? LetterCase::kUpper : LetterCase::kLower);
    first = is_python_space(c.code) ||
            (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) != std::string_view::npos);
    at += c.size;
  }
  return runtime.text(std::move(out));
}

Result<Value> filter_indent(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("indent", {"s", "width", "first", "blank"}));
  BF_ASSIGN_OR_RETURN(const MarkedText self, runtime.show(arguments.values[0]));
  const Value* width = arguments.find(1, "width");
  const Value* first = arguments.find(2, "first");
  const Value* blank = arguments.find(3, "blank");
  MarkedText indention("    ");
  if (width != nullptr && width->is_string()) {
    indention = width->text();
  } else if (width != nullptr) {
    if (!width->is_whole()) return make_error(ErrorCode::kInvalidArgument, "'width' must be a number or a string");
    const std::int64_t spaces = std::max<std::int64_t>(width->as_int(), 0);
    BF_TRY(runtime.budget().check(static_cast<std::size_t>(spaces)));
    indention = MarkedText(std::string(static_cast<std::size_t>(spaces), ' '));
  }
  BF_TRY(runtime.budget().step_bytes(8 * self.size()));
  std::vector<Line> lines = split_lines(self.bytes, 1 + runtime.budget().room() / sizeof(Line));
  BF_TRY(runtime.budget().check(lines.size() * sizeof(Line)));
  // A text that ends with a line end has an empty last line; so has an empty text.
  if (lines.empty() || lines.back().next > lines.back().end) lines.push_back({self.size(), self.size(), self.size()});
  const bool indents_blank = blank != nullptr && blank->truth();
  MarkedText out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    const bool is_blank = lines[i].begin == lines[i].end;
    const bool wanted = i == 0 ? first != nullptr && first->truth() : indents_blank || !is_blank;
    if (wanted) out.append(indention);
    out.append(self, lines[i].begin, lines[i].end);
    BF_TRY(runtime.budget().check(2 * out.cost() + indention.cost()));
    BF_TRY(runtime.budget().step_bytes(indention.size()));
  }
  return runtime.text(std::move(out));
}

Result<Value> filter_string(Runtime& runtime, const Arguments& arguments) {
  if (arguments.values[0].is_string()) return arguments.values[0];
  BF_ASSIGN_OR_RETURN(MarkedText shown, runtime.show(arguments.values[0]));
  return runtime.text(std::move(shown));
}

Result<Value> filter_escape(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(MarkedText escaped, runtime.escaped(arguments.values[0]));
  return runtime.text(std::move(escaped), StringNode::Kind::kMarkup);
}

Result<Value> filter_safe(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(MarkedText shown, runtime.show(arguments.values[0]));
  return runtime.text(std::move(shown), StringNode::Kind::kMarkup);
}

Result<Value> filter_wordcount(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const Value words, text_filter(runtime, "split", arguments));
  return Value::integer(static_cast<std::int64_t>(words.items().size()));
}

Result<Value> filter_truncate(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("truncate", {"s", "length", "killwords", "end", "leeway"}));
  BF_ASSIGN_OR_RETURN(const MarkedText self, runtime.show(arguments.values[0]));
  const auto whole = [&](std::size_t index, std::string_view name, std::int64_t standard) {
    const Value* value = arguments.find(index, name);
    return value != nullptr && value->is_whole() ? std::clamp<std::int64_t>(value->as_int(), 0, 1 << 30) : standard;
  };
  const std::int64_t length = whole(1, "length", 255);
  const Value* end = arguments.find(3, "end");
  const MarkedText ellipsis = end != nullptr && end->is_string() ? end->text() : MarkedText("...");
  BF_TRY(runtime.budget().step_bytes(8 * self.size()));
  BF_TRY(runtime.budget().check(self.size() * sizeof(std::size_t)));
  const std::vector<std::size_t> starts = character_starts(self.bytes);
  const auto size = static_cast<std::int64_t>(starts.size() - 1);
  if (size <= length + whole(4, "leeway", 5)) return runtime.text(self);
  const std::int64_t kept = length - static_cast<std::int64_t>(count_characters(ellipsis.bytes));
  if (kept < 0)
    return make_error(ErrorCode::kInvalidArgument, "truncate: the end is longer than the length {}", length);
  MarkedText out = self.slice(0, starts[static_cast<std::size_t>(kept)]);
  const Value* kill = arguments.find(2, "killwords");
  if (kill == nullptr || !kill->truth()) {
    if (const std::size_t space = out.bytes.rfind(' '); space != std::string::npos) out = out.slice(0, space);
  }
  out.append(ellipsis);
  return runtime.text(std::move(out));
}

Result<Value> filter_format(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const MarkedText self, runtime.show(arguments.values[0]));
  if (!arguments.named.empty()) return make_error(ErrorCode::kUnsupported, "format: named arguments are not supported");
  BF_ASSIGN_OR_RETURN(MarkedText out, format_percent(runtime, self, std::span(arguments.values).subspan(1)));
  return runtime.text(std::move(out));
}

/// A number as int() and float() read it from a text; nothing where it is none.
std::optional<double> read_number(std::string_view text) {
  text.remove_prefix(leading(text, nullptr));
  text.remove_suffix(trailing(text, nullptr));
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return {};
  return value;
}

Result<Value> filter_int(Runtime&, const Arguments& arguments) {
  BF_TRY(arguments.check("int", {"value", "default", "base"}));
  const Value& value = arguments.values[0];
  const Value* standard = arguments.find(1, "default");
  const Value* base = arguments.find(2, "base");
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  if (value.is_whole()) return Value::integer(value.as_int());
  std::optional<double> number;
  if (value.is_float()) number = value.as_float();
  if (value.is_string()) {
    std::string_view text = value.str();
    text.remove_prefix(leading(text, nullptr));
    text.remove_suffix(trailing(text, nullptr));
    if (text.starts_with('+')) text.remove_prefix(1);
    const int radix =
        base != nullptr && base->is_whole() ? static_cast<int>(std::clamp<std::int64_t>(base->as_int(), 2, 36)) : 10;
    if (radix == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
    std::int64_t whole = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), whole, radix);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size() && !text.empty()) return Value::integer(whole);
    number = read_number(text);
  }
  if (number && std::isfinite(*number) && std::abs(*number) < 9e18) {
    return Value::integer(static_cast<std::int64_t>(*number));
  }
  return standard != nullptr ? *standard : Value::integer(0);
}

Result<Value> filter_float(Runtime&, const Arguments& arguments) {
  BF_TRY(arguments.check("float", {"value", "default"}));
  const Value& value = arguments.values[0];
  const Value* standard = arguments.find(1, "default");
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  if (value.is_number()) return Value::number(value.as_float());
  if (value.is_string()) {
    if (const std::optional<double> number = read_number(value.str())) return Value::number(*number);
  }
  return standard != nullptr ? *standard : Value::number(0);
}

Result<Value> filter_abs(Runtime& runtime, const Arguments& arguments) {
  const Value& value = arguments.values[0];
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  if (value.is_float()) return Value::number(std::abs(value.as_float()));
  if (!value.is_whole()) {
    return make_error(ErrorCode::kInvalidArgument, "abs() needs a number, not '{}'", value.type_name());
  }
  if (value.as_int() >= 0) return Value::integer(value.as_int());
  return runtime.binary(Operator::kSubtract, Value::integer(0), value);
}

Result<Value> filter_round(Runtime&, const Arguments& arguments) {
  BF_TRY(arguments.check("round", {"value", "precision", "method"}));
  const Value& value = arguments.values[0];
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  const Value* precision = arguments.find(1, "precision");
  const Value* method = arguments.find(2, "method");
  const std::string how = method != nullptr && method->is_string() ? method->str() : "common";
  if (!value.is_number() || (precision != nullptr && !precision->is_whole())) {
    return make_error(ErrorCode::kInvalidArgument, "round needs numbers, not '{}'", value.type_name());
  }
  const std::int64_t digits = precision == nullptr ? 0 : std::clamp<std::int64_t>(precision->as_int(), -300, 300);
  if (how == "common") {
    if (value.is_whole()) return Value::integer(value.as_int());
    if (digits >= 0) {
      // Through decimal digits, as Python rounds: 2.675 is a little less than that.
      const std::string text = fmt::format("{:.{}f}", value.as_float(), std::min<std::int64_t>(digits, 30));
      return Value::number(read_number(text).value_or(value.as_float()));
    }
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = value.as_float() * scale;
  if (how == "ceil") return Value::number(std::ceil(scaled) / scale);
  if (how == "floor") return Value::number(std::floor(scaled) / scale);
  if (how != "common") return make_error(ErrorCode::kInvalidArgument, "method must be common, ceil or floor");
  return Value::number(std::nearbyint(scaled) / scale);
}

Result<Value> filter_default(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("default", {"value", "default_value", "boolean"}));
  const Value* standard = arguments.find(1, "default_value");
  const Value* by_truth = arguments.find(2, "boolean");
  const Value& value = arguments.values[0];
  const bool missing = value.is_undefined() || (by_truth != nullptr && by_truth->truth() && !value.truth());
  if (!missing) return value;
  if (standard != nullptr) return *standard;
  return runtime.text(MarkedText());
}

Result<Value> filter_tojson(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("tojson", {"x", "ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonTextStyle style;
  if (const Value* ascii = arguments.find(1, "ensure_ascii")) style.ascii = ascii->truth();
  if (const Value* indent = arguments.find(2, "indent"); indent != nullptr && !indent->is_none()) {
    if (!indent->is_whole()) {
      return make_error(ErrorCode::kInvalidArgument, "'indent' must be a number, not '{}'", indent->type_name());
    }
    style.indent = static_cast<int>(std::clamp<std::int64_t>(indent->as_int(), 0, 100));
    style.item_separator = ",";
  }
  if (const Value* separators = arguments.find(3, "separators"); separators != nullptr && !separators->is_none()) {
    const bool pair = separators->is_list() && separators->items().size() == 2 && separators->items()[0].is_string() &&
                      separators->items()[1].is_string();
    if (!pair) return make_error(ErrorCode::kInvalidArgument, "'separators' must be two strings");
    style.item_separator = separators->items()[0].str();
    style.key_separator = separators->items()[1].str();
  }
  if (const Value* sort = arguments.find(4, "sort_keys")) style.sort_keys = sort->truth();
  BF_ASSIGN_OR_RETURN(MarkedText text, to_json_text(runtime, arguments.values[0], style));
  return runtime.text(std::move(text));
}

Result<Value> filter_attr(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("attr", {"obj", "name"}, 2));
  const Value& name = *arguments.find(1, "name");
  if (!name.is_string()) return make_error(ErrorCode::kInvalidArgument, "attr needs a name");
  // Members of dicts are none.
  if (arguments.values[0].is_dict()) return Value();
  return runtime.attribute(arguments.values[0], name.str());
}

/// `text` with every byte but letters, digits and "_.-~" as %XX; in a path '/' stays, in a query a space becomes '+'.
enum class AddressPart : unsigned char { kPath, kQuery };
void append_quoted(MarkedText& out, const MarkedText& text, AddressPart part) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text.bytes[at]);
    const char c = text.bytes[at];
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       (part == AddressPart::kPath && c == '/');
    const bool plus = part == AddressPart::kQuery && c == ' ';
    out.append(plus ? "+" : plain ? std::string(1, c) : fmt::format("%{:02X}", byte), text.mark(at));
  }
}

/// A text as part of an address; pairs as a query.
Result<Value> filter_urlencode(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("urlencode", {"value"}));
  const Value& value = arguments.values[0];
  MarkedText out;
  const auto append = [&](const Value& what, AddressPart part) -> Status {
    BF_ASSIGN_OR_RETURN(const MarkedText text, runtime.show(what));
    BF_TRY(runtime.budget().step_bytes(8 * text.size()));
    BF_TRY(runtime.budget().check(2 * out.cost() + 6 * text.cost()));
    append_quoted(out, text, part);
    return {};
  };
  if (!value.is_dict() && !value.is_list()) {
    BF_TRY(append(value, AddressPart::kPath));
    return runtime.text(std::move(out));
  }
  BF_ASSIGN_OR_RETURN(const Value pairs, call_filter(runtime, value.is_dict() ? "items" : "list", {{value}, {}}));
  for (const Value& pair : pairs.items()) {
    if (!pair.is_list() || pair.items().size() != 2) {
      return make_error(ErrorCode::kInvalidArgument, "urlencode needs pairs, not '{}'", pair.type_name());
    }
    if (!out.empty()) out.append("&");
    BF_TRY(append(pair.items()[0], AddressPart::kQuery));
    out.append("=");
    BF_TRY(append(pair.items()[1], AddressPart::kQuery));
  }
  return runtime.text(std::move(out));
}

Result<Value> filter_filesizeformat(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("filesizeformat", {"value", "binary"}));
  BF_ASSIGN_OR_RETURN(const Value given, filter_float(runtime, {{arguments.values[0]}, {}}));
  const Value* asks = arguments.find(1, "binary");
  const bool binary = asks != nullptr && asks->truth();
  const double base = binary ? 1024 : 1000;
  double bytes = given.as_float();
  if (bytes == 1) return runtime.text(MarkedText("1 Byte"));
  if (bytes < base) return runtime.text(MarkedText(fmt::format("{} Bytes", std::trunc(bytes))));
  static constexpr std::string_view kUnits = "kMGTPEZY";
  std::size_t unit = 0;
  for (bytes /= base; bytes >= base && unit + 1 < kUnits.size(); bytes /= base) ++unit;
  const char letter = binary && unit == 0 ? 'K' : kUnits[unit];
  return runtime.text(MarkedText(fmt::format("{:.1f} {}{}", bytes, letter, binary ? "iB" : "B")));
}

constexpr NamedFilter kValueFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"float", filter_float},
    {"forceescape", filter_escape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

Filter find_filter(std::string_view name) {
  for (const std::span<const NamedFilter> table : {std::span<const NamedFilter>(kValueFilters), list_filters()}) {
    const auto found = std::ranges::find(table, name, &NamedFilter::name);
    if (found != table.end()) return found->filter;
  }
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Result<Value> call_filter(Runtime& runtime, std::string_view name, Arguments arguments) {
  const TemplateLevel level(runtime.budget());
  BF_TRY(level.entered());
  BF_TRY(runtime.budget().step(2));
  const Filter filter = find_filter(name);
  for (const char* known : {"pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}) {
    if (name != known) continue;
    return make_error(ErrorCode::kUnsupported, "Jinja's filter '{}' is not supported in chat templates", name);
  }
  if (filter == nullptr) {
    return make_error(ErrorCode::kUnsupported, "there is no filter named '{}'", one_line(name.substr(0, 80)));
  }
  return filter(runtime, arguments);
}

}  // namespace butterfly::chat
