// Methods of strings.
#include <algorithm>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

constexpr auto kAbsent = std::string_view::npos;

/// A string argument; null where it is absent or none. Errors: kInvalidArgument for another type.
Result<const MarkedText*> text_argument(const Arguments& arguments, std::size_t index, std::string_view name) {
  const Value* value = arguments.find(index, name);
  if (value == nullptr || value->is_none()) return nullptr;
  if (!value->is_string()) {
    if (value->is_undefined()) return tl::unexpected(used_undefined(*value).error());
    return make_error(ErrorCode::kInvalidArgument, "'{}' must be a string, not '{}'", name, value->type_name());
  }
  return &value->text();
}

Result<const MarkedText*> needed_text(const Arguments& arguments, std::size_t index, std::string_view name) {
  BF_ASSIGN_OR_RETURN(const MarkedText* text, text_argument(arguments, index, name));
  if (text == nullptr) return make_error(ErrorCode::kInvalidArgument, "the argument '{}' must be a string", name);
  return text;
}

Result<std::int64_t> whole_argument(const Arguments& arguments, std::size_t index, std::string_view name,
                                    std::int64_t standard) {
  const Value* value = arguments.find(index, name);
  if (value == nullptr || value->is_none()) return standard;
  if (!value->is_whole()) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' must be a whole number, not '{}'", name, value->type_name());
  }
  return value->as_int();
}

template <bool Left, bool Right>
Result<Value> strip(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("strip", {"chars"}));
  BF_ASSIGN_OR_RETURN(const MarkedText* chars, text_argument(arguments, 0, "chars"));
  BF_TRY(runtime.budget().step_bytes(self.size() * (chars == nullptr ? 1 : 1 + chars->size())));
  std::string_view set = chars == nullptr ? std::string_view() : std::string_view(chars->bytes);
  const std::string_view* wanted = chars == nullptr ? nullptr : &set;
  const std::size_t begin = Left ? leading(self.bytes, wanted) : 0;
  std::size_t end = self.size();
  if (Right && begin < end) end -= trailing(std::string_view(self.bytes).substr(begin), wanted);
  return runtime.text(self.slice(begin, end));
}

Result<Value> make_list(Runtime& runtime, const MarkedText& self, const std::vector<Line>& parts) {
  BF_TRY(runtime.budget().check(parts.size() * (StringNode::kOverhead + sizeof(Value)) + 2 * self.size()));
  BF_TRY(runtime.budget().step(parts.size()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const Line& part : parts) {
    BF_ASSIGN_OR_RETURN(Value item, runtime.text(self.slice(part.begin, part.end)));
    items.push_back(std::move(item));
  }
  return runtime.list(std::move(items));
}

/// Without a separator: words.
std::vector<Line> split_words(std::string_view text, std::size_t most) {
  std::vector<Line> parts;
  std::size_t at = leading(text, nullptr);
  while (at < text.size()) {
    if (parts.size() == most) {
      parts.push_back({at, text.size() - trailing(text.substr(at), nullptr), text.size()});
      break;
    }
    std::size_t end = at;
    while (end < text.size()) {
      const Character c = character_at(text, end);
      if (is_python_space(c.code)) break;
      end += c.size;
    }
    parts.push_back({at, end, end});
    at = end + leading(text.substr(end), nullptr);
  }
  return parts;
}

template <bool FromRight>
Result<Value> split(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("split", {"sep", "maxsplit"}));
  BF_ASSIGN_OR_RETURN(const MarkedText* separator, text_argument(arguments, 0, "sep"));
  BF_ASSIGN_OR_RETURN(const std::int64_t limit, whole_argument(arguments, 1, "maxsplit", -1));
  BF_TRY(runtime.budget().step_bytes(4 * self.size()));
  const std::size_t room = 1 + runtime.budget().room() / sizeof(Line);
  const std::size_t most = limit < 0 ? self.size() + 1 : static_cast<std::size_t>(limit);
  std::vector<Line> parts;
  if (separator == nullptr) {
    parts = split_words(self.bytes, std::min(room, FromRight ? self.size() + 1 : most));
    BF_TRY(runtime.budget().check(parts.size() * sizeof(Line)));
    if (FromRight && parts.size() > most) {
      const std::size_t joined = parts.size() - most;
      parts[joined - 1].begin = parts[0].begin;
      parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(joined - 1));
    }
    return make_list(runtime, self, parts);
  }
  if (separator->empty()) return make_error(ErrorCode::kInvalidArgument, "empty separator");
  const std::string& cut = separator->bytes;
  if (FromRight) {
    BF_TRY(runtime.budget().step_bytes(self.size() * cut.size()));  // rfind compares anew at every place
    std::size_t end = self.size();
    while (parts.size() < most && end >= cut.size()) {
      const std::size_t found = self.bytes.rfind(cut, end - cut.size());
      if (found == kAbsent) break;
      BF_TRY(runtime.budget().check(parts.size() * sizeof(Line)));
      parts.push_back({found + cut.size(), end, end});
      end = found;
    }
    parts.push_back({0, end, end});
    std::ranges::reverse(parts);
    return make_list(runtime, self, parts);
  }
  std::size_t begin = 0;
  while (parts.size() < most) {
    const std::size_t found = find_text(self.bytes, cut, begin);
    if (found == kAbsent) break;
    BF_TRY(runtime.budget().check(parts.size() * sizeof(Line)));
    parts.push_back({begin, found, found});
    begin = found + cut.size();
  }
  parts.push_back({begin, self.size(), self.size()});
  return make_list(runtime, self, parts);
}

Result<Value> splitlines(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("splitlines", {"keepends"}));
  const Value* keep = arguments.find(0, "keepends");
  BF_TRY(runtime.budget().step_bytes(8 * self.size()));
  std::vector<Line> lines = split_lines(self.bytes, 1 + runtime.budget().room() / sizeof(Line));
  BF_TRY(runtime.budget().check(lines.size() * sizeof(Line)));
  if (keep != nullptr && keep->truth()) {
    for (Line& line : lines) line.end = line.next;
  }
  return make_list(runtime, self, lines);
}

template <bool AtEnd>
Result<Value> matches(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  const char* name = AtEnd ? "endswith" : "startswith";
  BF_TRY(arguments.check(name, {"prefix"}, 1));
  const Value& wanted = arguments.values.empty() ? arguments.named[0].second : arguments.values[0];
  const auto one = [&](const Value& value) -> Result<bool> {
    if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
    if (!value.is_string()) {
      return make_error(ErrorCode::kInvalidArgument, "{}() needs a string or a tuple of strings, not '{}'", name,
                        value.type_name());
    }
    return AtEnd ? self.bytes.ends_with(value.str()) : self.bytes.starts_with(value.str());
  };
  if (!wanted.is_list() || wanted.list().form != ListForm::kTuple) {
    BF_ASSIGN_OR_RETURN(const bool found, one(wanted));
    return Value::boolean(found);
  }
  BF_TRY(runtime.budget().step(wanted.items().size()));
  for (const Value& value : wanted.items()) {
    BF_ASSIGN_OR_RETURN(const bool found, one(value));
    if (found) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Result<Value> replace(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("replace", {"old", "new", "count"}, 2));
  BF_ASSIGN_OR_RETURN(const MarkedText* old, needed_text(arguments, 0, "old"));
  BF_ASSIGN_OR_RETURN(const MarkedText* fresh, needed_text(arguments, 1, "new"));
  BF_ASSIGN_OR_RETURN(const std::int64_t limit, whole_argument(arguments, 2, "count", -1));
  BF_TRY(runtime.budget().step_bytes(self.size()));
  MarkedText out;
  std::size_t begin = 0;
  for (std::int64_t done = 0; limit < 0 || done < limit; ++done) {
    std::size_t found = find_text(self.bytes, old->bytes, begin);
    if (old->empty()) {
      // Python puts it before every character and at the end.
      if (done > 0) found = begin < self.size() ? begin + character_at(self.bytes, begin).size : kAbsent;
    }
    if (found == kAbsent) break;
    out.append(self, begin, found);
    out.append(*fresh);
    begin = found + old->size();
    BF_TRY(runtime.budget().step_bytes(fresh->size()));
    BF_TRY(runtime.budget().check(2 * out.cost()));
  }
  out.append(self, begin, self.size());
  return runtime.text(std::move(out));
}

template <LetterCase Wanted>
Result<Value> change_case(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check(Wanted == LetterCase::kUpper ? "upper" : "lower", {}));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  BF_TRY(runtime.budget().check(3 * self.cost()));
  return runtime.text(in_case(self, Wanted));
}

Result<Value> capitalize(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("capitalize", {}));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  MarkedText out;
  const std::size_t first = self.empty() ? 0 : character_at(self.bytes, 0).size;
  append_in_case(out, self, 0, first, LetterCase::kUpper);
  append_in_case(out, self, first, self.size(), LetterCase::kLower);
  return runtime.text(std::move(out));
}

Result<Value> title(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("title", {}));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  MarkedText out;
  bool after_letter = false;
  for (std::size_t at = 0; at < self.size();) {
    const Character c = character_at(self.bytes, at);
    append_in_case(out, self, at, at + c.size, after_letter ? LetterCase::kLower : LetterCase::kUpper);
    after_letter = is_upper(c.code) || is_lower(c.code);
    at += c.size;
  }
  return runtime.text(std::move(out));
}

template <bool FromRight, bool MustBeThere>
Result<Value> find(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("find", {"sub", "start", "end"}, 1));
  BF_ASSIGN_OR_RETURN(const MarkedText* part, needed_text(arguments, 0, "sub"));
  BF_ASSIGN_OR_RETURN(const std::int64_t start, whole_argument(arguments, 1, "start", 0));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  BF_TRY(runtime.budget().check(self.size() * sizeof(std::size_t)));
  const std::vector<std::size_t> starts = character_starts(self.bytes);
  const auto size = static_cast<std::int64_t>(starts.size() - 1);
  BF_ASSIGN_OR_RETURN(const std::int64_t end, whole_argument(arguments, 2, "end", size));
  const auto byte = [&](std::int64_t index) {
    if (index < 0) index = std::max(index, -size) + size;
    return starts[static_cast<std::size_t>(std::min(index, size))];
  };
  const std::string_view within = std::string_view(self.bytes).substr(0, byte(end));
  std::size_t found = find_text(within, part->bytes, byte(start));
  while (FromRight && found != kAbsent && !part->empty()) {
    BF_TRY(runtime.budget().step_bytes(64 + part->size()));
    const std::size_t next = find_text(within, part->bytes, found + 1);
    if (next == kAbsent) break;
    found = next;
  }
  if (found == kAbsent) {
    if (MustBeThere) return make_error(ErrorCode::kInvalidArgument, "substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<std::int64_t>(count_characters(std::string_view(self.bytes).substr(0, found))));
}

Result<Value> count(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("count", {"sub"}, 1));
  BF_ASSIGN_OR_RETURN(const MarkedText* part, needed_text(arguments, 0, "sub"));
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  if (part->empty()) return Value::integer(static_cast<std::int64_t>(count_characters(self.bytes)) + 1);
  std::int64_t number = 0;
  for (std::size_t at = 0; (at = find_text(self.bytes, part->bytes, at)) != kAbsent; at += part->size()) ++number;
  return Value::integer(number);
}

Result<Value> join(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("join", {"iterable"}, 1));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(*arguments.find(0, "iterable")));
  MarkedText out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      return make_error(ErrorCode::kInvalidArgument, "join() needs strings, element {} is of type '{}'", i,
                        items[i].type_name());
    }
    if (i > 0) out.append(self);
    out.append(items[i].text());
    BF_TRY(runtime.budget().step_bytes(self.size() + items[i].text().size()));
    BF_TRY(runtime.budget().check(2 * out.cost()));
  }
  return runtime.text(std::move(out));
}

template <bool AtEnd>
Result<Value> remove_affix(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check(AtEnd ? "removesuffix" : "removeprefix", {"affix"}, 1));
  BF_ASSIGN_OR_RETURN(const MarkedText* affix, needed_text(arguments, 0, "affix"));
  BF_TRY(runtime.budget().step_bytes(self.size()));
  const bool there = AtEnd ? self.bytes.ends_with(affix->bytes) : self.bytes.starts_with(affix->bytes);
  if (!there) return runtime.text(self);
  return runtime.text(AtEnd ? self.slice(0, self.size() - affix->size()) : self.slice(affix->size(), self.size()));
}

template <bool FromRight>
Result<Value> partition(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("partition", {"sep"}, 1));
  BF_ASSIGN_OR_RETURN(const MarkedText* separator, needed_text(arguments, 0, "sep"));
  if (separator->empty()) return make_error(ErrorCode::kInvalidArgument, "empty separator");
  BF_TRY(runtime.budget().step_bytes(self.size() * (FromRight ? separator->size() : 1)));
  const std::size_t found = FromRight ? self.bytes.rfind(separator->bytes) : find_text(self.bytes, separator->bytes);
  std::vector<Line> parts;
  if (found == kAbsent) {
    parts = {{0, FromRight ? 0 : self.size(), 0}, {0, 0, 0}, {FromRight ? 0 : self.size(), self.size(), 0}};
  } else {
    parts = {{0, found, 0}, {found, found + separator->size(), 0}, {found + separator->size(), self.size(), 0}};
  }
  BF_ASSIGN_OR_RETURN(const Value items, make_list(runtime, self, parts));
  return runtime.list(items.items(), ListForm::kTuple);
}

enum class Places : unsigned char { kLeft, kRight, kMiddle };

template <Places Where>
Result<Value> justify(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(arguments.check("ljust", {"width", "fillchar"}, 1));
  BF_ASSIGN_OR_RETURN(const std::int64_t width, whole_argument(arguments, 0, "width", 0));
  BF_ASSIGN_OR_RETURN(const MarkedText* fill, text_argument(arguments, 1, "fillchar"));
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(width, 0));
  const std::size_t length = count_characters(self.bytes);
  const std::size_t missing = wanted > length ? wanted - length : 0;
  BF_TRY(runtime.budget().check(missing));
  BF_TRY(runtime.budget().check(5 * missing + self.cost()));
  BF_TRY(runtime.budget().step_bytes(missing + self.size()));
  const std::string one = fill == nullptr ? " " : fill->bytes;
  if (count_characters(one) != 1) return make_error(ErrorCode::kInvalidArgument, "'fillchar' must be one character");
  const std::size_t left = Where == Places::kLeft    ? 0
                           : Where == Places::kRight ? missing
                                                     : missing / 2 + (missing & wanted & 1);
  MarkedText out;
  for (std::size_t i = 0; i < left; ++i) out.append(one);
  out.append(self);
  for (std::size_t i = left; i < missing; ++i) out.append(one);
  return runtime.text(std::move(out));
}

enum class Nature : unsigned char { kDigit, kLetter, kLetterOrDigit, kSpace, kUpper, kLower };

template <Nature Wanted>
Result<Value> is_all(Runtime& runtime, const MarkedText& self, const Arguments&) {
  BF_TRY(runtime.budget().step_bytes(16 * self.size()));
  bool cased = false;
  for (std::size_t at = 0; at < self.size();) {
    const Character c = character_at(self.bytes, at);
    const bool digit = c.code >= '0' && c.code <= '9';
    bool fits = true;
    if (Wanted == Nature::kDigit) fits = digit;
    if (Wanted == Nature::kLetter) fits = is_letter(c.code);
    if (Wanted == Nature::kLetterOrDigit) fits = digit || is_letter(c.code);
    if (Wanted == Nature::kSpace) fits = is_python_space(c.code);
    if (Wanted == Nature::kUpper) fits = !is_lower(c.code);
    if (Wanted == Nature::kLower) fits = !is_upper(c.code);
    if (!fits) return Value::boolean(false);
    cased |= is_upper(c.code) || is_lower(c.code);
    at += c.size;
  }
  const bool needs_case = Wanted == Nature::kUpper || Wanted == Nature::kLower;
  return Value::boolean(!self.empty() && (cased || !needs_case));
}

/// "{} {name}".format(...): fields without a format of their own.
Result<Value> format(Runtime& runtime, const MarkedText& self, const Arguments& arguments) {
  BF_TRY(runtime.budget().step_bytes(self.size()));
  MarkedText out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < self.size();) {
    const char c = self.bytes[at];
    if (c != '{' && c != '}') {
      const std::size_t end = std::min(self.bytes.find_first_of("{}", at), self.size());
      out.append(self, at, end);
      at = end;
      continue;
    }
    BF_TRY(runtime.budget().step());
    BF_TRY(runtime.budget().check(2 * out.cost()));
    if (at + 1 < self.size() && self.bytes[at + 1] == c) {
      out.append(self, at, at + 1);
      at += 2;
      continue;
    }
    const std::size_t end = self.bytes.find('}', at);
    if (c == '}' || end == std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument, "single '{}' encountered in format string", c);
    }
    const std::string field = self.bytes.substr(at + 1, end - at - 1);
    const bool digits =
        !field.empty() && field.size() < 4 && field.find_first_not_of("0123456789") == std::string::npos;
    const bool named = !field.empty() && !digits;
    if (named && field.find_first_of(".[:!{") != std::string::npos) {
      return make_error(ErrorCode::kUnsupported, "the format field '{{{}}}' is not supported", field);
    }
    const std::size_t index = named ? arguments.values.size() : digits ? std::stoul(field) : next++;
    const Value* value = arguments.find(index, named ? std::string_view(field) : std::string_view());
    if (value == nullptr)
      return make_error(ErrorCode::kInvalidArgument, "format() lacks the argument for '{{{}}}'", field);
    BF_ASSIGN_OR_RETURN(const MarkedText shown, runtime.show(*value));
    out.append(shown);
    at = end + 1;
  }
  return runtime.text(std::move(out));
}

struct NamedTextMethod {
  std::string_view name;
  TextMethod method;
};

constexpr NamedTextMethod kTextMethods[] = {
    {"capitalize", capitalize},
    {"casefold", change_case<LetterCase::kLower>},
    {"center", justify<Places::kMiddle>},
    {"count", count},
    {"endswith", matches<true>},
    {"find", find<false, false>},
    {"format", format},
    {"index", find<false, true>},
    {"isalnum", is_all<Nature::kLetterOrDigit>},
    {"isalpha", is_all<Nature::kLetter>},
    {"isdecimal", is_all<Nature::kDigit>},
    {"isdigit", is_all<Nature::kDigit>},
    {"islower", is_all<Nature::kLower>},
    {"isnumeric", is_all<Nature::kDigit>},
    {"isspace", is_all<Nature::kSpace>},
    {"isupper", is_all<Nature::kUpper>},
    {"join", join},
    {"ljust", justify<Places::kLeft>},
    {"lower", change_case<LetterCase::kLower>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", justify<Places::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", matches<false>},
    {"strip", strip<true, true>},
    {"title", title},
    {"upper", change_case<LetterCase::kUpper>},
};

}  // namespace

TextMethod find_text_method(std::string_view name) {
  const auto* found = std::ranges::find(kTextMethods, name, &NamedTextMethod::name);
  return found == std::end(kTextMethods) ? nullptr : found->method;
}

}  // namespace butterfly::chat
