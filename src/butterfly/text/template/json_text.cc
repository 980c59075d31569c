// JSON and formats as Python writes them.
#include <algorithm>
#include <array>
#include <cmath>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonTextStyle& style) : runtime_(runtime), style_(style) {}

  Status write(const Value& value, int level);
  MarkedText take() { return std::move(out_); }

 private:
  void write_string(const MarkedText& text);
  Status write_key(const Value& key);
  Status write_list(const Value& value, int level);
  Status write_dict(const Value& value, int level);
  void new_line(int level) {
    if (style_.indent < 0) return;
    out_.append("\n");
    out_.append(std::string(static_cast<std::size_t>(level * style_.indent), ' '));
  }

  Runtime& runtime_;
  const JsonTextStyle& style_;
  MarkedText out_;
};

void JsonWriter::write_string(const MarkedText& text) {
  out_.append("\"");
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.bytes, at);
    const auto code = static_cast<std::uint32_t>(c.code);
    std::string escaped;
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kEscapes = "\"\\nrtfb";
    if (const std::size_t which = code < 0x80 ? kPlain.find(static_cast<char>(code)) : std::string_view::npos;
        which != std::string_view::npos) {
      escaped = fmt::format("\\{}", kEscapes[which]);
    } else if (code < 0x20 || (style_.ascii && code >= 0x80 && code < 0x10000) || (style_.ascii && code == 0x7F)) {
      escaped = code == 0x7F ? "\x7f" : fmt::format("\\u{:04x}", code);
    } else if (style_.ascii && code >= 0x10000) {
      escaped =
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    if (escaped.empty()) {
      out_.append(text, at, at + c.size);
    } else {
      out_.append(escaped, text.mark(at));
    }
    at += c.size;
  }
  out_.append("\"");
}

Status JsonWriter::write_key(const Value& key) {
  if (key.is_string()) {
    write_string(key.text());
    return {};
  }
  if (key.is_list() || key.is_dict() || key.is_object() || key.is_undefined()) {
    return make_error(ErrorCode::kInvalidArgument, "a key of type '{}' cannot be written as JSON", key.type_name());
  }
  out_.append("\"");
  BF_TRY(write(key, 0));
  out_.append("\"");
  return {};
}

Status JsonWriter::write_list(const Value& value, int level) {
  if (value.list().form != ListForm::kList && value.list().form != ListForm::kTuple) {
    return make_error(ErrorCode::kInvalidArgument, "a value of type '{}' cannot be written as JSON", value.type_name());
  }
  out_.append("[");
  bool first = true;
  for (const Value& item : value.items()) {
    if (!first) out_.append(style_.item_separator);
    first = false;
    new_line(level + 1);
    BF_TRY(write(item, level + 1));
  }
  if (!first) new_line(level);
  out_.append("]");
  return {};
}

Status JsonWriter::write_dict(const Value& value, int level) {
  std::vector<DictNode::Entry> entries = value.dict().entries;
  if (style_.sort_keys) {
    Status failed;
    BF_TRY(runtime_.budget().step(16 * entries.size()));
    std::ranges::stable_sort(entries, [&](const DictNode::Entry& a, const DictNode::Entry& b) {
      const Result<int> order = runtime_.order(a.first, b.first);
      if (!order) failed = tl::unexpected(order.error());
      return order && *order < 0;
    });
    BF_TRY(std::move(failed));
  }
  out_.append("{");
  bool first = true;
  for (const auto& [key, member] : entries) {
    if (!first) out_.append(style_.item_separator);
    first = false;
    new_line(level + 1);
    BF_TRY(write_key(key));
    out_.append(style_.key_separator);
    BF_TRY(write(member, level + 1));
  }
  if (!first) new_line(level);
  out_.append("}");
  return {};
}

Status JsonWriter::write(const Value& value, int level) {
  const TemplateLevel guard(runtime_.budget());
  BF_TRY(guard.entered());
  BF_TRY(runtime_.budget().step());
  BF_TRY(runtime_.budget().check(2 * out_.cost() + static_cast<std::size_t>(std::max(style_.indent, 0)) * 100));
  if (value.is_none()) {
    out_.append("null");
  } else if (value.is_bool()) {
    out_.append(value.as_bool() ? "true" : "false");
  } else if (value.is_int()) {
    out_.append(std::to_string(value.as_int()));
  } else if (value.is_float()) {
    const double number = value.as_float();
    out_.append(std::isnan(number) ? "NaN" : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity") : "");
    if (std::isfinite(number)) out_.append(show_number(number));
  } else if (value.is_string()) {
    BF_TRY(runtime_.budget().step_bytes(8 * value.text().size()));
    BF_TRY(runtime_.budget().check(2 * value.text().cost()));
    write_string(value.text());
  } else if (value.is_list()) {
    return write_list(value, level);
  } else if (value.is_dict()) {
    return write_dict(value, level);
  } else {
    return make_error(ErrorCode::kInvalidArgument, "Object of type {} is not JSON serializable", value.type_name());
  }
  return {};
}

/// What stands between '%' and the letter.
struct PercentField {
  bool left = false;
  bool zero = false;
  bool sign = false;
  std::size_t width = 0;
  int precision = -1;
  char letter = 's';
};

Result<PercentField> read_field(std::string_view format, std::size_t& at) {
  PercentField field;
  for (; at < format.size() && std::string_view("-0+ #").find(format[at]) != std::string_view::npos; ++at) {
    field.left |= format[at] == '-';
    field.zero |= format[at] == '0';
    field.sign |= format[at] == '+';
  }
  const auto number = [&](std::size_t most) {
    std::size_t value = 0;
    while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
      value = std::min(most, value * 10 + static_cast<std::size_t>(format[at++] - '0'));
    }
    return value;
  };
  field.width = number(10'000);
  if (at < format.size() && format[at] == '.') field.precision = static_cast<int>((++at, number(100)));
  if (at >= format.size()) return make_error(ErrorCode::kInvalidArgument, "incomplete format after '%'");
  field.letter = format[at++];
  return field;
}

Result<MarkedText> format_one(Runtime& runtime, const PercentField& field, const Value& value) {
  if (field.letter == 's') return runtime.show(value);
  if (field.letter == 'r') {
    MarkedText out;
    BF_TRY(runtime.append_repr(out, value));
    return out;
  }
  if (!value.is_number()) {
    return make_error(ErrorCode::kInvalidArgument, "%{} format: a number is required, not '{}'", field.letter,
                      value.type_name());
  }
  const std::string sign = field.sign && value.as_float() >= 0 ? "+" : "";
  const int precision = field.precision < 0 ? 6 : field.precision;
  switch (field.letter) {
    case 'd':
    case 'i':
    case 'u':
      if (value.is_float() && std::abs(value.as_float()) >= 9e18) break;
      return MarkedText(
          sign + std::to_string(value.is_float() ? static_cast<std::int64_t>(value.as_float()) : value.as_int()));
    case 'f':
    case 'F':
      return MarkedText(sign + fmt::format("{:.{}f}", value.as_float(), precision));
    case 'e':
      return MarkedText(sign + fmt::format("{:.{}e}", value.as_float(), precision));
    case 'g':
      return MarkedText(sign + fmt::format("{:.{}g}", value.as_float(), precision));
    case 'x':
    case 'X':
    case 'o':
      if (!value.is_whole() || value.as_int() < 0) break;
      return MarkedText(sign + (field.letter == 'x'   ? fmt::format("{:x}", value.as_int())
                                : field.letter == 'X' ? fmt::format("{:X}", value.as_int())
                                                      : fmt::format("{:o}", value.as_int())));
    default:
      break;
  }
  return make_error(ErrorCode::kInvalidArgument, "the format '%{}' is not supported for this value", field.letter);
}

}  // namespace

Result<MarkedText> to_json_text(Runtime& runtime, const Value& value, const JsonTextStyle& style) {
  JsonWriter writer(runtime, style);
  BF_TRY(writer.write(value, 0));
  return writer.take();
}

Result<MarkedText> format_percent(Runtime& runtime, const MarkedText& format, std::span<const Value> arguments) {
  BF_TRY(runtime.budget().step_bytes(format.size()));
  MarkedText out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t percent = std::min(format.bytes.find('%', at), format.size());
    out.append(format, at, percent);
    BF_TRY(runtime.budget().step());
    BF_TRY(runtime.budget().check(2 * out.cost()));
    if (percent == format.size()) break;
    at = percent + 1;
    BF_ASSIGN_OR_RETURN(const PercentField field, read_field(format.bytes, at));
    if (field.letter == '%') {
      out.append("%");
      continue;
    }
    if (used == arguments.size())
      return make_error(ErrorCode::kInvalidArgument, "not enough arguments for format string");
    BF_ASSIGN_OR_RETURN(MarkedText part, format_one(runtime, field, arguments[used++]));
    if (field.letter == 's' && field.precision >= 0) {
      const std::vector<std::size_t> starts = character_starts(part.bytes);
      part = part.slice(0, starts[std::min(static_cast<std::size_t>(field.precision), starts.size() - 1)]);
    }
    const std::size_t length = count_characters(part.bytes);
    const std::string padding(field.width > length ? field.width - length : 0,
                              field.zero && !field.left && field.letter != 's' ? '0' : ' ');
    if (!field.left) out.append(padding);
    out.append(part);
    if (field.left) out.append(padding);
  }
  const bool lone = arguments.size() == 1 && (arguments[0].is_dict() || arguments[0].is_list());
  if (used < arguments.size() && !lone) {
    return make_error(ErrorCode::kInvalidArgument, "not all arguments were used by the format string");
  }
  return out;
}

}  // namespace butterfly::chat
