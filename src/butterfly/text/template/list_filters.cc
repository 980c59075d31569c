// Filters of lists and dicts.
#include <algorithm>
#include <charconv>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

/// item.a.b for "a.b"; parts that are numbers are indices.
Result<Value> follow(Runtime& runtime, Value item, const Value& path, const Value* standard = nullptr) {
  if (!path.is_string()) return runtime.subscript(item, path);
  std::string_view rest = path.str();
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    std::int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && read.ec == std::errc() && read.ptr == part.data() + part.size();
    BF_ASSIGN_OR_RETURN(const Value key,
                        number ? Result<Value>(Value::integer(index)) : runtime.text(MarkedText(part)));
    BF_ASSIGN_OR_RETURN(item, runtime.subscript(item, key));
    if (item.is_undefined() && standard != nullptr) item = *standard;
    if (part.size() == rest.size()) return item;
    rest.remove_prefix(part.size() + 1);
  }
}

Result<Value> in_lower_case(Runtime& runtime, Value value) {
  if (!value.is_string()) return value;
  return find_text_method("lower")(runtime, value.text(), {});
}

/// What items are compared by: `attribute` of each, without case where that is asked for.
Result<Value> sort_key(Runtime& runtime, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->is_none()) {
    BF_ASSIGN_OR_RETURN(key, follow(runtime, item, *attribute));
  }
  if (case_sensitive) return key;
  return in_lower_case(runtime, std::move(key));
}

bool is_true(const Arguments& arguments, std::size_t index, std::string_view name) {
  const Value* value = arguments.find(index, name);
  return value != nullptr && value->truth();
}

struct Keyed {
  Value key;
  Value item;
};

Status sort_by_key(Runtime& runtime, std::vector<Keyed>& all, bool reverse) {
  Status failed;
  std::ranges::stable_sort(all, [&](const Keyed& a, const Keyed& b) {
    if (!failed) return false;
    const Result<int> order = reverse ? runtime.order(b.key, a.key) : runtime.order(a.key, b.key);
    if (!order) failed = tl::unexpected(order.error());
    return order && *order < 0;
  });
  return failed;
}

Result<Value> filter_length(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const std::size_t length, runtime.length(arguments.values[0]));
  return Value::integer(static_cast<std::int64_t>(length));
}

Result<Value> filter_first(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> filter_last(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> filter_list(Runtime& runtime, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(std::vector<Value> items, runtime.iterate(arguments.values[0]));
  return runtime.list(std::move(items));
}

Result<Value> filter_reverse(Runtime& runtime, const Arguments& arguments) {
  const Value& value = arguments.values[0];
  if (value.is_string()) {
    const Value borders[] = {Value::none(), Value::none(), Value::integer(-1)};
    return runtime.slice(value, borders);
  }
  BF_ASSIGN_OR_RETURN(std::vector<Value> items, runtime.iterate(value));
  std::ranges::reverse(items);
  return runtime.list(std::move(items), ListForm::kGenerator);
}

Result<Value> pairs_of(Runtime& runtime, const Value& value, ListForm form) {
  if (value.is_undefined()) return runtime.list({}, form);
  if (!value.is_dict()) {
    return make_error(ErrorCode::kInvalidArgument, "Can only get item pairs from a mapping, not from '{}'",
                      value.type_name());
  }
  std::vector<Value> pairs;
  BF_TRY(runtime.budget().step(value.dict().entries.size()));
  for (const auto& [key, member] : value.dict().entries) {
    BF_ASSIGN_OR_RETURN(Value pair, runtime.list({key, member}, ListForm::kTuple));
    pairs.push_back(std::move(pair));
  }
  return runtime.list(std::move(pairs), form);
}

Result<Value> filter_items(Runtime& runtime, const Arguments& arguments) {
  return pairs_of(runtime, arguments.values[0], ListForm::kGenerator);
}

Result<Value> filter_dictsort(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("dictsort", {"value", "case_sensitive", "by", "reverse"}));
  const Value* by = arguments.find(2, "by");
  const bool by_value = by != nullptr && by->is_string() && by->str() == "value";
  if (by != nullptr && !by_value && (!by->is_string() || by->str() != "key")) {
    return make_error(ErrorCode::kInvalidArgument, "dictsort goes by \"key\" or \"value\"");
  }
  BF_ASSIGN_OR_RETURN(const Value pairs, pairs_of(runtime, arguments.values[0], ListForm::kList));
  std::vector<Keyed> all;
  for (const Value& pair : pairs.items()) {
    Value key = pair.items()[by_value ? 1 : 0];
    if (!is_true(arguments, 1, "case_sensitive")) {
      BF_ASSIGN_OR_RETURN(key, in_lower_case(runtime, std::move(key)));
    }
    all.push_back({std::move(key), pair});
  }
  BF_TRY(sort_by_key(runtime, all, is_true(arguments, 3, "reverse")));
  std::vector<Value> sorted;
  for (Keyed& each : all) sorted.push_back(std::move(each.item));
  return runtime.list(std::move(sorted));
}

Result<Value> filter_sort(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("sort", {"value", "reverse", "case_sensitive", "attribute"}));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  std::vector<Keyed> all;
  for (const Value& item : items) {
    BF_ASSIGN_OR_RETURN(
        Value key, sort_key(runtime, item, arguments.find(3, "attribute"), is_true(arguments, 2, "case_sensitive")));
    all.push_back({std::move(key), item});
  }
  BF_TRY(sort_by_key(runtime, all, is_true(arguments, 1, "reverse")));
  std::vector<Value> sorted;
  for (Keyed& each : all) sorted.push_back(std::move(each.item));
  return runtime.list(std::move(sorted));
}

Result<Value> filter_unique(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("unique", {"value", "case_sensitive", "attribute"}));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    BF_ASSIGN_OR_RETURN(
        Value key, sort_key(runtime, item, arguments.find(2, "attribute"), is_true(arguments, 1, "case_sensitive")));
    bool known = false;
    for (std::size_t i = 0; i < seen.size() && !known; ++i) {
      BF_ASSIGN_OR_RETURN(known, runtime.equal(seen[i], key));
    }
    if (known) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return runtime.list(std::move(kept), ListForm::kGenerator);
}

Result<Value> extreme(Runtime& runtime, const Arguments& arguments, int wanted) {
  BF_TRY(arguments.check(wanted < 0 ? "min" : "max", {"value", "case_sensitive", "attribute"}));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Keyed best;
  for (std::size_t i = 0; i < items.size(); ++i) {
    BF_ASSIGN_OR_RETURN(Value key, sort_key(runtime, items[i], arguments.find(2, "attribute"),
                                            is_true(arguments, 1, "case_sensitive")));
    int order = wanted;
    if (i > 0) {
      BF_ASSIGN_OR_RETURN(order, runtime.order(key, best.key));
    }
    if (order == wanted) best = {std::move(key), items[i]};
  }
  return best.item;
}

Result<Value> filter_min(Runtime& runtime, const Arguments& arguments) {
  return extreme(runtime, arguments, -1);
}

Result<Value> filter_max(Runtime& runtime, const Arguments& arguments) {
  return extreme(runtime, arguments, 1);
}

Result<Value> filter_sum(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("sum", {"iterable", "attribute", "start"}));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  const Value* attribute = arguments.find(1, "attribute");
  const Value* start = arguments.find(2, "start");
  Value total = start != nullptr ? *start : Value::integer(0);
  for (const Value& item : items) {
    BF_ASSIGN_OR_RETURN(const Value part, sort_key(runtime, item, attribute, true));
    BF_ASSIGN_OR_RETURN(total, runtime.binary(Operator::kAdd, total, part));
  }
  return total;
}

Result<Value> filter_join(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("join", {"value", "d", "attribute"}));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  const Value* between = arguments.find(1, "d");
  MarkedText separator;
  if (between != nullptr) {
    BF_ASSIGN_OR_RETURN(separator, runtime.show(*between));
  }
  MarkedText out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    BF_ASSIGN_OR_RETURN(const Value part, sort_key(runtime, items[i], arguments.find(2, "attribute"), true));
    BF_ASSIGN_OR_RETURN(const MarkedText shown, runtime.show(part));
    if (i > 0) out.append(separator);
    out.append(shown);
    BF_TRY(runtime.budget().step_bytes(separator.size() + shown.size()));
    BF_TRY(runtime.budget().check(2 * out.cost()));
  }
  return runtime.text(std::move(out));
}

Result<Value> filter_map(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.values[0].truth()) return runtime.list({}, ListForm::kGenerator);
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  std::vector<Value> mapped;
  const bool by_attribute = arguments.values.size() == 1;
  const Value* attribute = arguments.find(arguments.values.size(), "attribute");
  if (by_attribute && attribute == nullptr) return make_error(ErrorCode::kInvalidArgument, "map needs a filter's name");
  if (!by_attribute && !arguments.values[1].is_string()) {
    return make_error(ErrorCode::kInvalidArgument, "map needs a filter's name, not '{}'",
                      arguments.values[1].type_name());
  }
  for (const Value& item : items) {
    if (by_attribute) {
      const Value* standard = arguments.find(arguments.values.size(), "default");
      BF_ASSIGN_OR_RETURN(Value member, follow(runtime, item, *attribute, standard));
      mapped.push_back(std::move(member));
      continue;
    }
    Arguments inner;
    inner.values.push_back(item);
    inner.values.insert(inner.values.end(), arguments.values.begin() + 2, arguments.values.end());
    inner.named = arguments.named;
    BF_ASSIGN_OR_RETURN(Value result, call_filter(runtime, arguments.values[1].str(), std::move(inner)));
    mapped.push_back(std::move(result));
  }
  return runtime.list(std::move(mapped), ListForm::kGenerator);
}

/// select, reject, selectattr, rejectattr.
Result<Value> choose(Runtime& runtime, const Arguments& arguments, bool wanted, bool by_attribute) {
  if (!arguments.values[0].truth()) return runtime.list({}, ListForm::kGenerator);
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  const std::size_t test = by_attribute ? 2 : 1;
  if (by_attribute && arguments.values.size() < 2) {
    return make_error(ErrorCode::kInvalidArgument, "the name of an attribute is missing");
  }
  const bool tested = arguments.values.size() > test;
  if (tested && !arguments.values[test].is_string()) {
    return make_error(ErrorCode::kInvalidArgument, "the name of a test is expected, not '{}'",
                      arguments.values[test].type_name());
  }
  std::vector<Value> chosen;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      BF_ASSIGN_OR_RETURN(subject, follow(runtime, item, arguments.values[1]));
    }
    bool fits = subject.truth();
    if (tested) {
      Arguments inner;
      inner.values.push_back(std::move(subject));
      inner.values.insert(inner.values.end(), arguments.values.begin() + static_cast<std::ptrdiff_t>(test) + 1,
                          arguments.values.end());
      BF_ASSIGN_OR_RETURN(fits, call_test(runtime, arguments.values[test].str(), inner));
    }
    BF_TRY(runtime.budget().step());
    if (fits == wanted) chosen.push_back(item);
  }
  return runtime.list(std::move(chosen), ListForm::kGenerator);
}

Result<Value> filter_select(Runtime& runtime, const Arguments& arguments) {
  return choose(runtime, arguments, true, false);
}

Result<Value> filter_reject(Runtime& runtime, const Arguments& arguments) {
  return choose(runtime, arguments, false, false);
}

Result<Value> filter_selectattr(Runtime& runtime, const Arguments& arguments) {
  return choose(runtime, arguments, true, true);
}

Result<Value> filter_rejectattr(Runtime& runtime, const Arguments& arguments) {
  return choose(runtime, arguments, false, true);
}

/// Pairs of a key and the items that have it, in order of the keys.
Result<Value> filter_groupby(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("groupby", {"value", "attribute", "default", "case_sensitive"}, 2));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  const bool case_sensitive = is_true(arguments, 3, "case_sensitive");
  std::vector<Keyed> all;
  for (const Value& item : items) {
    BF_ASSIGN_OR_RETURN(Value key,
                        follow(runtime, item, *arguments.find(1, "attribute"), arguments.find(2, "default")));
    if (!case_sensitive) {
      BF_ASSIGN_OR_RETURN(key, in_lower_case(runtime, std::move(key)));
    }
    all.push_back({std::move(key), item});
  }
  BF_TRY(sort_by_key(runtime, all, false));
  std::vector<Value> groups;
  for (std::size_t i = 0; i < all.size();) {
    std::vector<Value> members;
    const std::size_t first = i;
    for (bool same = true; same;) {
      members.push_back(all[i++].item);
      if (i == all.size()) break;
      BF_ASSIGN_OR_RETURN(same, runtime.equal(all[first].key, all[i].key));
    }
    BF_ASSIGN_OR_RETURN(Value list, runtime.list(std::move(members)));
    BF_ASSIGN_OR_RETURN(const Value shown, follow(runtime, all[first].item, *arguments.find(1, "attribute"),
                                                  arguments.find(2, "default")));
    BF_ASSIGN_OR_RETURN(Value group, runtime.list({shown, std::move(list)}, ListForm::kTuple));
    groups.push_back(std::move(group));
  }
  return runtime.list(std::move(groups));
}

/// The whole number named `name` at `index`, at least 1.
Result<std::size_t> count_argument(const Arguments& arguments, std::size_t index, std::string_view name) {
  const Value& value = *arguments.find(index, name);
  if (!value.is_whole() || value.as_int() < 1) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' must be a whole number of at least 1", name);
  }
  return static_cast<std::size_t>(value.as_int());
}

/// Lists of `linecount` items; the last is filled up where there is something to fill it with.
Result<Value> filter_batch(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("batch", {"value", "linecount", "fill_with"}, 2));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  BF_ASSIGN_OR_RETURN(const std::size_t count, count_argument(arguments, 1, "linecount"));
  const Value* filling = arguments.find(2, "fill_with");
  const bool fills = filling != nullptr && !filling->is_none();
  std::vector<Value> rows;
  for (std::size_t begin = 0; begin < items.size(); begin += std::min(count, items.size() - begin)) {
    const std::size_t end = begin + std::min(count, items.size() - begin);
    std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(begin),
                           items.begin() + static_cast<std::ptrdiff_t>(end));
    if (fills && row.size() < count) {
      BF_TRY(runtime.budget().step(count));
      BF_TRY(runtime.budget().check(2 * std::min(count, std::size_t{1} << 40) * sizeof(Value)));
      row.resize(count, *filling);
    }
    BF_ASSIGN_OR_RETURN(Value list, runtime.list(std::move(row)));
    rows.push_back(std::move(list));
  }
  return runtime.list(std::move(rows));
}

/// `slices` lists of nearly equal lengths, the longer ones first and the shorter ones filled up by one.
Result<Value> filter_slice(Runtime& runtime, const Arguments& arguments) {
  BF_TRY(arguments.check("slice", {"value", "slices", "fill_with"}, 2));
  BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime.iterate(arguments.values[0]));
  BF_ASSIGN_OR_RETURN(const std::size_t slices, count_argument(arguments, 1, "slices"));
  const Value* filling = arguments.find(2, "fill_with");
  BF_TRY(runtime.budget().step(slices));
  std::vector<Value> rows;
  auto next = items.begin();
  for (std::size_t i = 0; i < slices; ++i) {
    const bool longer = i < items.size() % slices;
    const auto end = next + static_cast<std::ptrdiff_t>(items.size() / slices + (longer ? 1 : 0));
    std::vector<Value> row(next, end);
    next = end;
    if (filling != nullptr && !filling->is_none() && !longer) row.push_back(*filling);
    BF_ASSIGN_OR_RETURN(Value list, runtime.list(std::move(row)));
    rows.push_back(std::move(list));
  }
  return runtime.list(std::move(rows));
}

constexpr NamedFilter kListFilters[] = {
    {"batch", filter_batch},     {"count", filter_length},    {"dictsort", filter_dictsort},
    {"first", filter_first},     {"groupby", filter_groupby}, {"items", filter_items},
    {"join", filter_join},       {"last", filter_last},       {"length", filter_length},
    {"list", filter_list},       {"map", filter_map},         {"max", filter_max},
    {"min", filter_min},         {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse}, {"select", filter_select},   {"selectattr", filter_selectattr},
    {"slice", filter_slice},     {"sort", filter_sort},       {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

std::span<const NamedFilter> list_filters() {
  return kListFilters;
}

}  // namespace butterfly::chat
