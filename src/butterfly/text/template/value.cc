#include "butterfly/text/template/value.h"

#include <algorithm>

namespace butterfly::chat {

namespace {

constexpr std::size_t kIndexFrom = 16;  // entries from which an index pays

}  // namespace

ListNode::ListNode(TemplateBudget* budget, std::vector<Value> v, ListForm f, int d)
    : Charged(budget, kOverhead + v.size() * sizeof(Value)), items(std::move(v)), form(f), depth(d) {}

DictNode::DictNode(TemplateBudget* budget, std::vector<Entry> e, int d)
    : Charged(budget, kOverhead + e.size() * 3 * sizeof(Entry)), entries(std::move(e)), depth(d) {
  if (entries.size() < kIndexFrom) return;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].first.is_string()) index_.emplace(entries[i].first.str(), i);
  }
}

const Value* DictNode::find(std::string_view key) const {
  if (entries.size() >= kIndexFrom) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.str() == key) return &value;
  }
  return nullptr;
}

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

Status Arguments::check(std::string_view function, std::initializer_list<std::string_view> names,
                        std::size_t least) const {
  if (values.size() > names.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{}() takes at most {} arguments, {} were given", function,
                      names.size(), values.size());
  }
  for (const auto& [given, value] : named) {
    const auto* found = std::find(names.begin(), names.end(), given);
    if (found == names.end()) {
      return make_error(ErrorCode::kInvalidArgument, "{}() has no argument '{}'", function, given);
    }
    if (static_cast<std::size_t>(found - names.begin()) < values.size()) {
      return make_error(ErrorCode::kInvalidArgument, "{}() was given '{}' twice", function, given);
    }
  }
  for (std::size_t i = 0; i < least; ++i) {
    if (find(i, names.begin()[i]) == nullptr) {
      return make_error(ErrorCode::kInvalidArgument, "{}() lacks the argument '{}'", function, names.begin()[i]);
    }
  }
  return {};
}

Result<Value> Object::attribute(Runtime&, std::string_view name) {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(), name));
}

Result<Value> Object::call(Runtime&, Arguments) {
  return make_error(ErrorCode::kInvalidArgument, "'{}' object is not callable", type_name());
}

Value Value::undefined(std::string why) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(why))}));
}

Value Value::literal(std::string text) {
  return Value(std::make_shared<const StringNode>(nullptr, MarkedText(std::move(text))));
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_string()) return !str().empty();
  if (is_list()) return list().form == ListForm::kGenerator || !items().empty();
  if (is_dict()) return !dict().entries.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_dict()) return "dict";
  if (is_object()) return as_object()->type_name();
  switch (list().form) {
    case ListForm::kList:
      return "list";
    case ListForm::kTuple:
      return "tuple";
    case ListForm::kView:
      return "dict view";
    case ListForm::kGenerator:
      return "generator";
  }
  return "list";
}

int Value::depth() const {
  if (is_list()) return list().depth;
  if (is_dict()) return dict().depth;
  if (is_object()) return as_object()->depth();
  return 0;
}

Status used_undefined(const Value& value) {
  const auto& why = value.as_undefined().why;
  return make_error(ErrorCode::kInvalidArgument, "{}", why ? *why : "the value is undefined");
}

}  // namespace butterfly::chat
