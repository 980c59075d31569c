// One rendering at work: makes values within its budget and does with them what Python would. Not thread-safe.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/text/template/budget.h"
#include "butterfly/text/template/syntax.h"
#include "butterfly/text/template/value.h"

namespace butterfly::chat {

class NamespaceObject;

class Runtime {
 public:
  Runtime(TemplateBudget& budget, std::time_t now) : budget_(budget), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  TemplateBudget& budget() { return budget_; }
  std::time_t now() const { return now_; }

  // Errors of these: kInvalidArgument beyond the budget.
  Result<Value> text(MarkedText text, StringNode::Kind kind = StringNode::Kind::kPlain);
  /// The text as it is in markup: escaped unless it is markup itself.
  Result<MarkedText> escaped(const Value& value);
  Result<Value> list(std::vector<Value> items, ListForm form = ListForm::kList);
  /// The last of equal keys counts, at the place of the first.
  Result<Value> dict(std::vector<DictNode::Entry> entries);
  Result<Value> make_namespace(std::vector<std::pair<std::string, Value>> members);

  /// str(value).
  Result<MarkedText> show(const Value& value);
  Status append_repr(MarkedText& out, const Value& value);
  Result<bool> equal(const Value& left, const Value& right);
  /// Negative, 0 or positive. Errors: kInvalidArgument for what has no order.
  Result<int> order(const Value& left, const Value& right);
  Result<bool> contains(const Value& whole, const Value& part);
  Result<Value> binary(Operator op, const Value& left, const Value& right);
  /// What a loop over the value sees: items, keys, characters.
  Result<std::vector<Value>> iterate(const Value& value);
  Result<std::size_t> length(const Value& value);

  /// value.name and value[key]: undefined where there is none. Errors: of an undefined value.
  Result<Value> attribute(const Value& value, std::string_view name);
  Result<Value> subscript(const Value& value, const Value& key);
  Result<Value> slice(const Value& value, std::span<const Value> borders);
  Result<Value> call(const Value& function, Arguments arguments);

 private:
  Status append_items(MarkedText& out, const Value& value);
  Result<Value> arithmetic(Operator op, const Value& left, const Value& right);
  Result<Value> whole_arithmetic(Operator op, std::int64_t left, std::int64_t right);
  Result<Value> repeat(const Value& what, std::int64_t times);
  Result<Value> add(const Value& left, const Value& right);

  TemplateBudget& budget_;
  const std::time_t now_;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;  // all of them: they alone can hold each other
};

/// `namespace()`.
class NamespaceObject final : public Object, public Charged {
 public:
  static constexpr std::size_t kOverhead = 192;
  NamespaceObject(TemplateBudget* budget, std::vector<std::pair<std::string, Value>> members)
      : Charged(budget, kOverhead + members.size() * kMember), members_(std::move(members)) {}
  std::string type_name() const override { return "Namespace"; }
  Result<Value> attribute(Runtime& runtime, std::string_view name) override;
  /// Errors: of names that are not for templates.
  Status set(Runtime& runtime, const std::string& name, Value value);
  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }
  void clear() { members_.clear(); }
  int depth() const override { return depth_; }

 private:
  static constexpr std::size_t kMember = 160;
  std::vector<std::pair<std::string, Value>> members_;
  std::vector<std::unique_ptr<Charged>> charges_;
  int depth_ = 0;
};

/// A function of this library: a filter, a method, a global.
class FunctionObject final : public Object, public Charged {
 public:
  static constexpr std::size_t kOverhead = 256;
  using Body = std::function<Result<Value>(Runtime&, Arguments&)>;
  FunctionObject(TemplateBudget* budget, int depth, Body body)
      : Charged(budget, kOverhead), depth_(depth), body_(std::move(body)) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Result<Value> call(Runtime& runtime, Arguments arguments) override { return body_(runtime, arguments); }
  int depth() const override { return depth_; }

 private:
  int depth_;
  Body body_;
};

Value make_function(Runtime& runtime, FunctionObject::Body body, int depth = 0);

/// Python's repr() of a number.
std::string show_number(double value);

// What a name means; each gives nothing, or an error, for a name that it does not know.

/// A method of a string, a dict or a list; undefined where there is none.
Value find_method(Runtime& runtime, const Value& self, std::string_view name);
/// One of a string; null where there is none.
using TextMethod = Result<Value> (*)(Runtime& runtime, const MarkedText& self, const Arguments& arguments);
TextMethod find_text_method(std::string_view name);
/// arguments.values[0] is what is filtered.
using Filter = Result<Value> (*)(Runtime& runtime, const Arguments& arguments);
struct NamedFilter {
  std::string_view name;
  Filter filter;
};
/// Those that take or give lists.
std::span<const NamedFilter> list_filters();
bool is_filter(std::string_view name);
/// values[0] is what is filtered. Errors: kUnsupported for an unknown name.
Result<Value> call_filter(Runtime& runtime, std::string_view name, Arguments arguments);
bool is_test(std::string_view name);
Result<bool> call_test(Runtime& runtime, std::string_view name, const Arguments& arguments);
/// range, namespace, raise_exception, ...; undefined where there is none.
Value find_global(Runtime& runtime, std::string_view name);

/// json.dumps(). Errors: for what JSON has no form for.
struct JsonTextStyle {
  bool ascii = false;
  bool sort_keys = false;
  int indent = -1;  // none
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Result<MarkedText> to_json_text(Runtime& runtime, const Value& value, const JsonTextStyle& style);

/// "%s" % arguments. Errors: for what does not fit.
Result<MarkedText> format_percent(Runtime& runtime, const MarkedText& format, std::span<const Value> arguments);

}  // namespace butterfly::chat
