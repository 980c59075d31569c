// What names mean that no template defines: methods of lists and dicts, global functions.
#include <algorithm>
#include <array>

#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

constexpr std::int64_t kRangeMost = 100'000;  // as Jinja's sandbox

enum class DictPart : unsigned char { kKeys, kValues, kItems };

Result<Value> dict_part(Runtime& runtime, const Value& self, DictPart part) {
  std::vector<Value> parts;
  BF_TRY(runtime.budget().step(1 + self.dict().entries.size()));
  for (const auto& [key, member] : self.dict().entries) {
    if (part == DictPart::kItems) {
      BF_ASSIGN_OR_RETURN(Value pair, runtime.list({key, member}, ListForm::kTuple));
      parts.push_back(std::move(pair));
    } else {
      parts.push_back(part == DictPart::kKeys ? key : member);
    }
  }
  return runtime.list(std::move(parts), ListForm::kView);
}

Result<Value> dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  BF_TRY(arguments.check("get", {"key", "default"}, 1));
  const Value& key = *arguments.find(0, "key");
  BF_ASSIGN_OR_RETURN(const bool there, runtime.contains(self, key));
  if (there) return runtime.subscript(self, key);
  const Value* standard = arguments.find(1, "default");
  return standard != nullptr ? *standard : Value::none();
}

Value find_dict_method(Runtime& runtime, const Value& self, std::string_view name) {
  const auto bind = [&](auto body) {
    return make_function(
        runtime, [self, body](Runtime& r, Arguments& a) -> Result<Value> { return body(r, self, a); }, self.depth());
  };
  const auto part = [&](const char* what, DictPart which) {
    return bind([what, which](Runtime& r, const Value& s, const Arguments& a) -> Result<Value> {
      BF_TRY(a.check(what, {}));
      return dict_part(r, s, which);
    });
  };
  if (name == "get") return bind(dict_get);
  if (name == "items") return part("items", DictPart::kItems);
  if (name == "keys") return part("keys", DictPart::kKeys);
  if (name == "values") return part("values", DictPart::kValues);
  if (name == "copy") return bind([](Runtime&, const Value& s, const Arguments&) -> Result<Value> { return s; });
  return {};
}

Value find_list_method(Runtime& runtime, const Value& self, std::string_view name) {
  if (name != "index" && name != "count") return {};
  const bool index = name == "index";
  return make_function(
      runtime,
      [self, index](Runtime& r, Arguments& a) -> Result<Value> {
        BF_TRY(a.check(index ? "index" : "count", {"value"}, 1));
        std::int64_t count = 0;
        for (std::size_t i = 0; i < self.items().size(); ++i) {
          BF_ASSIGN_OR_RETURN(const bool same, r.equal(self.items()[i], *a.find(0, "value")));
          if (same && index) return Value::integer(static_cast<std::int64_t>(i));
          count += same ? 1 : 0;
        }
        if (index) return make_error(ErrorCode::kInvalidArgument, "the value is not in the list");
        return Value::integer(count);
      },
      self.depth());
}

Result<Value> global_range(Runtime& runtime, Arguments& arguments) {
  BF_TRY(arguments.check("range", {"start", "stop", "step"}, 1));
  std::array<std::int64_t, 3> given{0, 0, 1};
  for (std::size_t i = 0; i < arguments.values.size(); ++i) {
    const Value& value = arguments.values[i];
    if (value.is_undefined()) return tl::unexpected(used_undefined(value).error());
    if (!value.is_whole()) {
      return make_error(ErrorCode::kInvalidArgument, "range() needs whole numbers, not '{}'", value.type_name());
    }
    given[i] = value.as_int();
  }
  if (arguments.values.size() == 1) std::swap(given[0], given[1]);
  const auto [start, stop, step] = given;
  if (step == 0) return make_error(ErrorCode::kInvalidArgument, "range() needs a step other than 0");
  std::vector<Value> items;
  std::int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (static_cast<std::int64_t>(items.size()) == kRangeMost) {
      return make_error(ErrorCode::kInvalidArgument, "range() from {} to {} by {} has more than {} numbers", start,
                        stop, step, kRangeMost);
    }
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  BF_TRY(runtime.budget().step(1 + items.size() / 8));
  return runtime.list(std::move(items));
}

/// Pairs of what dict() and namespace() are given.
Result<std::vector<DictNode::Entry>> given_entries(Runtime& runtime, const Arguments& arguments) {
  std::vector<DictNode::Entry> entries;
  if (arguments.values.size() > 1) {
    return make_error(ErrorCode::kInvalidArgument, "at most 1 argument without a name is possible, {} were given",
                      arguments.values.size());
  }
  if (!arguments.values.empty() && arguments.values[0].is_dict()) {
    entries = arguments.values[0].dict().entries;
  } else if (!arguments.values.empty()) {
    BF_ASSIGN_OR_RETURN(const std::vector<Value> pairs, runtime.iterate(arguments.values[0]));
    for (const Value& pair : pairs) {
      if (!pair.is_list() || pair.items().size() != 2) {
        return make_error(ErrorCode::kInvalidArgument, "dict() needs pairs, not '{}'", pair.type_name());
      }
      entries.emplace_back(pair.items()[0], pair.items()[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    BF_ASSIGN_OR_RETURN(Value key, runtime.text(MarkedText(name)));
    entries.emplace_back(std::move(key), value);
  }
  BF_TRY(runtime.budget().step(1 + entries.size()));
  return entries;
}

Result<Value> global_dict(Runtime& runtime, Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(std::vector<DictNode::Entry> entries, given_entries(runtime, arguments));
  return runtime.dict(std::move(entries));
}

Result<Value> global_namespace(Runtime& runtime, Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(std::vector<DictNode::Entry> entries, given_entries(runtime, arguments));
  std::vector<std::pair<std::string, Value>> members;
  for (auto& [key, value] : entries) {
    if (!key.is_string()) return make_error(ErrorCode::kInvalidArgument, "a namespace's names must be strings");
    members.emplace_back(key.str(), std::move(value));
  }
  return runtime.make_namespace(std::move(members));
}

Result<Value> global_raise(Runtime& runtime, Arguments& arguments) {
  BF_TRY(arguments.check("raise_exception", {"message"}, 1));
  BF_ASSIGN_OR_RETURN(const MarkedText message, runtime.show(*arguments.find(0, "message")));
  return make_error(ErrorCode::kInvalidArgument, "the template refuses the conversation: {}",
                    message.bytes.substr(0, 500));
}

Result<Value> global_time(Runtime& runtime, Arguments& arguments) {
  BF_TRY(arguments.check("strftime_now", {"format"}, 1));
  const Value& format = *arguments.find(0, "format");
  if (!format.is_string()) return make_error(ErrorCode::kInvalidArgument, "strftime_now() needs a string");
  if (format.str().size() > 128 || format.str().find('\0') != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument, "strftime_now() takes a format of at most 128 characters");
  }
  // Python has microseconds; the clock of a rendering has none. A width could ask for any size.
  std::string plain;
  for (std::size_t i = 0; i < format.str().size(); ++i) {
    plain += format.str()[i];
    if (plain.back() != '%' || i + 1 == format.str().size()) continue;
    const char letter = format.str()[++i];
    if (letter >= '0' && letter <= '9') {
      return make_error(ErrorCode::kInvalidArgument, "strftime_now() takes no widths, found '%{}'", letter);
    }
    if (letter == 'f') {
      plain.back() = '0';
      plain += "00000";
    } else {
      plain += letter;
    }
  }
  std::tm local{};
  const std::time_t now = runtime.now();
  ::localtime_r(&now, &local);
  std::array<char, 8192> buffer{};
  const std::size_t size = plain.empty() ? 0 : std::strftime(buffer.data(), buffer.size(), plain.c_str(), &local);
  return runtime.text(MarkedText(std::string_view(buffer.data(), size)));
}

/// joiner(): nothing the first time, the separator from then on.
Result<Value> global_joiner(Runtime& runtime, Arguments& arguments) {
  BF_TRY(arguments.check("joiner", {"sep"}));
  const Value* separator = arguments.find(0, "sep");
  return make_function(
      runtime,
      [used = false, separator = separator != nullptr ? *separator : Value::literal(", ")](
          Runtime& r, Arguments&) mutable -> Result<Value> {
        if (std::exchange(used, true)) return separator;
        return r.text(MarkedText());
      },
      separator != nullptr ? separator->depth() : 0);
}

class CyclerObject final : public Object, public Charged {
 public:
  CyclerObject(TemplateBudget* budget, Value items) : Charged(budget, 128), items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return items_.depth(); }
  Result<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "current") return items_.items()[at_];
    if (name == "next" || name == "reset") {
      // Borrowed: a method does not keep the cycler.
      return make_function(runtime, [self = shared_(), next = name == "next"](Runtime&, Arguments&) -> Result<Value> {
        const auto cycler = self.lock();
        if (!cycler) return make_error(ErrorCode::kInvalidArgument, "the cycler is gone");
        if (!next) cycler->at_ = 0;
        if (!next) return Value::none();
        Value current = cycler->items_.items()[cycler->at_];
        cycler->at_ = (cycler->at_ + 1) % cycler->items_.items().size();
        return current;
      });
    }
    return Object::attribute(runtime, name);
  }
  static Value make(Runtime& runtime, Value items) {
    auto made = std::make_shared<CyclerObject>(&runtime.budget(), std::move(items));
    made->self_ = made;
    return Value::object(std::move(made));
  }

 private:
  std::weak_ptr<CyclerObject> shared_() const { return self_; }
  Value items_;
  std::size_t at_ = 0;
  std::weak_ptr<CyclerObject> self_;
};

Result<Value> global_cycler(Runtime& runtime, Arguments& arguments) {
  if (arguments.values.empty()) return make_error(ErrorCode::kInvalidArgument, "cycler() needs at least one item");
  BF_ASSIGN_OR_RETURN(Value items, runtime.list(arguments.values));
  return CyclerObject::make(runtime, std::move(items));
}

struct NamedGlobal {
  std::string_view name;
  Result<Value> (*body)(Runtime& runtime, Arguments& arguments);
};

constexpr NamedGlobal kGlobals[] = {
    {"cycler", global_cycler},       {"dict", global_dict},   {"joiner", global_joiner},
    {"namespace", global_namespace}, {"range", global_range}, {"raise_exception", global_raise},
    {"strftime_now", global_time},
};

}  // namespace

Value find_method(Runtime& runtime, const Value& self, std::string_view name) {
  if (self.is_dict()) return find_dict_method(runtime, self, name);
  if (self.is_list()) return find_list_method(runtime, self, name);
  if (!self.is_string()) return {};
  const TextMethod method = find_text_method(name);
  if (method == nullptr) return {};
  return make_function(runtime, [self, method](Runtime& r, Arguments& a) { return method(r, self.text(), a); });
}

Value find_global(Runtime& runtime, std::string_view name) {
  const auto* found = std::ranges::find(kGlobals, name, &NamedGlobal::name);
  return found == std::end(kGlobals) ? Value() : make_function(runtime, found->body);
}

}  // namespace butterfly::chat
