// What a template computes with: Python's values as far as chat templates use them. Immutable but for objects; shared
// by reference counts. One rendering at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/template/budget.h"
#include "butterfly/text/template/marked_text.h"

namespace butterfly::chat {

class Value;
class Runtime;

/// Memory of values: charged while it lives. `budget` is null for what belongs to the template itself.
class Charged {
 public:
  Charged(TemplateBudget* budget, std::size_t bytes) : budget_(budget), bytes_(bytes) {
    if (budget_ != nullptr) budget_->take(bytes_);
  }
  ~Charged() {
    if (budget_ != nullptr) budget_->give_back(bytes_);
  }
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;

 private:
  TemplateBudget* budget_;
  std::size_t bytes_;
};

struct Undefined {
  std::shared_ptr<const std::string> why;  // the sentence for those who use it; null: a plain one
};
struct None {};

struct StringNode : Charged {
  static constexpr std::size_t kOverhead = 128;
  /// Text that went through `safe` is markup: what is added to it is escaped for HTML.
  enum class Kind : std::uint8_t { kPlain, kMarkup };
  StringNode(TemplateBudget* budget, MarkedText t, Kind k = Kind::kPlain)
      : Charged(budget, t.cost() + kOverhead), text(std::move(t)), kind(k) {}
  const MarkedText text;
  const Kind kind;
};

/// Python has lists, tuples, views of dicts and generators; they differ in how they look and in what they can.
enum class ListForm : std::uint8_t { kList, kTuple, kView, kGenerator };

struct ListNode : Charged {
  static constexpr std::size_t kOverhead = 96;
  ListNode(TemplateBudget* budget, std::vector<Value> v, ListForm f, int d);
  const std::vector<Value> items;
  const ListForm form;
  const int depth;
};

struct DictNode : Charged {
  static constexpr std::size_t kOverhead = 128;
  using Entry = std::pair<Value, Value>;
  DictNode(TemplateBudget* budget, std::vector<Entry> e, int d);
  const Value* find(std::string_view key) const;
  const std::vector<Entry> entries;
  const int depth;

 private:
  std::unordered_map<std::string_view, std::size_t> index_;  // of string keys, where there are many entries
};

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  /// The positional argument `index`, or the one named `name`, or null.
  const Value* find(std::size_t index, std::string_view name) const;
  /// Errors: kInvalidArgument where there are others than `names` says, in this order.
  Status check(std::string_view function, std::initializer_list<std::string_view> names, std::size_t least = 0) const;
};

/// Namespaces, macros, methods, `loop`.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual Result<Value> attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Result<Value> call(Runtime& runtime, Arguments arguments);
  virtual int depth() const { return 0; }
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  static Value undefined(std::string why);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(std::int64_t value) { return Value(Data(value)); }
  static Value number(double value) { return Value(Data(value)); }
  static Value object(std::shared_ptr<Object> value) { return Value(Data(std::move(value))); }
  /// Part of the template: not charged.
  static Value literal(std::string text);

  explicit Value(std::shared_ptr<const StringNode> node) : data_(std::move(node)) {}
  explicit Value(std::shared_ptr<const ListNode> node) : data_(std::move(node)) {}
  explicit Value(std::shared_ptr<const DictNode> node) : data_(std::move(node)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  /// Python's bools are numbers, too.
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_whole() const { return is_bool() || is_int(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const StringNode>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const ListNode>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const DictNode>>(data_); }
  bool is_object() const { return std::holds_alternative<std::shared_ptr<Object>>(data_); }

  const Undefined& as_undefined() const { return std::get<Undefined>(data_); }
  std::int64_t as_int() const { return is_bool() ? (std::get<bool>(data_) ? 1 : 0) : std::get<std::int64_t>(data_); }
  double as_float() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  bool as_bool() const { return std::get<bool>(data_); }
  const MarkedText& text() const { return std::get<std::shared_ptr<const StringNode>>(data_)->text; }
  bool is_markup() const {
    return is_string() && std::get<std::shared_ptr<const StringNode>>(data_)->kind == StringNode::Kind::kMarkup;
  }
  const std::string& str() const { return text().bytes; }
  const ListNode& list() const { return *std::get<std::shared_ptr<const ListNode>>(data_); }
  const std::vector<Value>& items() const { return list().items; }
  const DictNode& dict() const { return *std::get<std::shared_ptr<const DictNode>>(data_); }
  const std::shared_ptr<Object>& as_object() const { return std::get<std::shared_ptr<Object>>(data_); }

  bool truth() const;
  /// As Python calls the type: "str", "NoneType".
  std::string type_name() const;
  /// Of lists and dicts in it.
  int depth() const;

 private:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const StringNode>,
                            std::shared_ptr<const ListNode>, std::shared_ptr<const DictNode>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

/// "'x' is undefined", or why.
Status used_undefined(const Value& value);

}  // namespace butterfly::chat
