// How values are read: attributes, subscripts, slices, calls.
#include <algorithm>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

/// What Jinja's sandbox hides; transformers' hides what changes lists and dicts, too.
bool is_unsafe(const Value& value, std::string_view name) {
  if (name.starts_with("__")) return true;
  static constexpr std::string_view kListChanges[] = {"append", "clear", "pop",    "reverse",
                                                      "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (value.is_list()) return std::ranges::find(kListChanges, name) != std::end(kListChanges);
  if (value.is_dict()) return std::ranges::find(kDictChanges, name) != std::end(kDictChanges);
  return false;
}

Value unsafe(const Value& value, std::string_view name) {
  return Value::undefined(
      fmt::format("access to attribute '{}' of '{}' object is not safe in a template", name, value.type_name()));
}

Value missing_attribute(const Value& value, std::string_view name) {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", value.type_name(), name));
}

/// Python's slice.indices().
struct SliceRange {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

Result<std::int64_t> border(const Value& value, std::int64_t standard, std::int64_t size, bool backwards) {
  if (value.is_undefined() || value.is_none()) return standard;
  if (!value.is_whole()) {
    return make_error(ErrorCode::kInvalidArgument, "slice indices must be integers, one is of type '{}'",
                      value.type_name());
  }
  std::int64_t index = value.as_int();
  if (index < 0) index = std::max(index, -size - 1) + size;
  return std::clamp<std::int64_t>(index, backwards ? -1 : 0, backwards ? size - 1 : size);
}

Result<SliceRange> slice_range(std::span<const Value> borders, std::int64_t size) {
  SliceRange range;
  BF_ASSIGN_OR_RETURN(range.step, border(borders[2], 1, std::int64_t{1} << 40, false));
  if (!borders[2].is_none() && !borders[2].is_undefined()) range.step = borders[2].as_int();
  if (range.step == 0) return make_error(ErrorCode::kInvalidArgument, "a slice's step cannot be 0");
  range.step = std::clamp<std::int64_t>(range.step, -(std::int64_t{1} << 40), std::int64_t{1} << 40);
  const bool backwards = range.step < 0;
  BF_ASSIGN_OR_RETURN(range.start, border(borders[0], backwards ? size - 1 : 0, size, backwards));
  BF_ASSIGN_OR_RETURN(range.stop, border(borders[1], backwards ? -1 : size, size, backwards));
  return range;
}

}  // namespace

Result<Value> Runtime::attribute(const Value& value, std::string_view name) {
  BF_TRY(budget_.step());
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  if (is_unsafe(value, name)) {
    if (value.is_dict()) {
      if (const Value* member = value.dict().find(name); member != nullptr && name.starts_with("__")) return *member;
    }
    return unsafe(value, name);
  }
  if (value.is_object()) return value.as_object()->attribute(*this, name);
  Value method = find_method(*this, value, name);
  if (!method.is_undefined()) return method;
  if (value.is_dict()) {
    BF_TRY(budget_.step(1 + std::min<std::size_t>(value.dict().entries.size(), 16) / 8));
    if (const Value* member = value.dict().find(name)) return *member;
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return missing_attribute(value, name);
}

Result<Value> Runtime::subscript(const Value& value, const Value& key) {
  BF_TRY(budget_.step());
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  if (value.is_dict()) {
    if (key.is_string()) {
      if (const Value* member = value.dict().find(key.str())) return *member;
    } else {
      BF_TRY(budget_.step(value.dict().entries.size()));
      for (const auto& [known, member] : value.dict().entries) {
        BF_ASSIGN_OR_RETURN(const bool same, equal(known, key));
        if (same) return member;
      }
    }
  }
  if (key.is_whole()) {
    std::int64_t index = key.as_int();
    if (value.is_list() && (value.list().form == ListForm::kList || value.list().form == ListForm::kTuple)) {
      const auto size = static_cast<std::int64_t>(value.items().size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) return value.items()[static_cast<std::size_t>(index)];
    }
    if (value.is_string()) {
      BF_TRY(budget_.step(1 + value.text().size() / 4));
      BF_TRY(budget_.check(value.text().size() * sizeof(std::size_t)));
      const std::vector<std::size_t> starts = character_starts(value.str());
      const auto size = static_cast<std::int64_t>(starts.size() - 1);
      if (index < 0) index += size;
      if (index >= 0 && index < size) {
        const auto at = static_cast<std::size_t>(index);
        return text(value.text().slice(starts[at], starts[at + 1]));
      }
    }
    return Value::undefined(fmt::format("'{} object' has no element {}", value.type_name(), key.as_int()));
  }
  if (key.is_string()) {
    if (is_unsafe(value, key.str())) return unsafe(value, key.str());
    if (value.is_object()) return value.as_object()->attribute(*this, key.str());
    Value method = find_method(*this, value, key.str());
    return method.is_undefined() ? missing_attribute(value, key.str()) : method;
  }
  return Value::undefined(fmt::format("'{} object' has no such element", value.type_name()));
}

Result<Value> Runtime::slice(const Value& value, std::span<const Value> borders) {
  if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
  const bool string = value.is_string();
  if (!string && !value.is_list()) {
    return make_error(ErrorCode::kInvalidArgument, "a value of type '{}' cannot be sliced", value.type_name());
  }
  BF_TRY(budget_.step(1 + (string ? value.text().size() / 4 : value.items().size() / 8)));
  std::vector<std::size_t> starts;
  if (string) {
    BF_TRY(budget_.check(value.text().size() * sizeof(std::size_t)));
    starts = character_starts(value.str());
  }
  const auto size = static_cast<std::int64_t>(string ? starts.size() - 1 : value.items().size());
  BF_ASSIGN_OR_RETURN(const SliceRange range, slice_range(borders, size));
  if (string && range.step == 1) {
    const auto begin = static_cast<std::size_t>(range.start);
    const auto end = static_cast<std::size_t>(std::max(range.start, range.stop));
    return text(value.text().slice(starts[begin], starts[end]));
  }
  MarkedText characters;
  std::vector<Value> items;
  for (std::int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    const auto at = static_cast<std::size_t>(i);
    if (string) {
      characters.append(value.text(), starts[at], starts[at + 1]);
    } else {
      items.push_back(value.items()[at]);
    }
  }
  if (string) return text(std::move(characters));
  return list(std::move(items), value.list().form);
}

Result<Value> Runtime::call(const Value& function, Arguments arguments) {
  BF_TRY(budget_.step(2));
  if (function.is_undefined()) return tl::unexpected(used_undefined(function).error());
  if (!function.is_object() || !function.as_object()->callable()) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' object is not callable", function.type_name());
  }
  const std::shared_ptr<Object> callee = function.as_object();
  return callee->call(*this, std::move(arguments));
}

}  // namespace butterfly::chat
