// Python's operators.
#include <cmath>
#include <cstring>

#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

const char* sign_of(Operator op) {
  static constexpr const char* kSigns[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSigns[static_cast<std::size_t>(op)];
}

tl::unexpected<Error> unsuitable(Operator op, const Value& left, const Value& right) {
  return make_error(ErrorCode::kInvalidArgument, "unsupported operand types for {}: '{}' and '{}'", sign_of(op),
                    left.type_name(), right.type_name());
}

tl::unexpected<Error> too_large() {
  return make_error(ErrorCode::kInvalidArgument, "the result is too large for a whole number of 64 bits");
}

tl::unexpected<Error> division_by_zero() {
  return make_error(ErrorCode::kInvalidArgument, "division by zero");
}

Result<Value> float_arithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return Value::number(left + right);
    case Operator::kSubtract:
      return Value::number(left - right);
    case Operator::kMultiply:
      return Value::number(left * right);
    case Operator::kPower:
      return Value::number(std::pow(left, right));
    default:
      break;
  }
  if (right == 0) return division_by_zero();
  if (op == Operator::kDivide) return Value::number(left / right);
  if (op == Operator::kFloorDivide) return Value::number(std::floor(left / right));
  const double rest = std::fmod(left, right);
  return Value::number(rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest);
}

Result<Value> whole_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_large();
  }
  return Value::integer(result);
}

bool is_sequence_of(const Value& value, ListForm form) {
  return value.is_list() && value.list().form == form;
}

}  // namespace

Result<bool> Runtime::equal(const Value& left, const Value& right) {
  BF_TRY(budget_.step());
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) return left.as_int() == right.as_int();
    return left.as_float() == right.as_float();
  }
  if (left.is_string() && right.is_string()) {
    if (left.str().size() != right.str().size()) return false;
    BF_TRY(budget_.step_bytes(left.str().size()));
    return left.str() == right.str();
  }
  if (left.is_undefined() || left.is_none()) return left.type_name() == right.type_name();
  if (left.is_object() && right.is_object()) return left.as_object() == right.as_object();
  const TemplateLevel level(budget_);
  BF_TRY(level.entered());
  if (left.is_list() && right.is_list()) {
    const auto& a = left.items();
    const auto& b = right.items();
    if (a.size() != b.size() || left.list().form != right.list().form) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      BF_ASSIGN_OR_RETURN(const bool same, equal(a[i], b[i]));
      if (!same) return false;
    }
    return true;
  }
  if (left.is_dict() && right.is_dict()) {
    if (left.dict().entries.size() != right.dict().entries.size()) return false;
    for (const auto& [key, member] : left.dict().entries) {
      BF_ASSIGN_OR_RETURN(const bool known, contains(right, key));
      if (!known) return false;
      BF_ASSIGN_OR_RETURN(const Value other, subscript(right, key));
      BF_ASSIGN_OR_RETURN(const bool same, equal(member, other));
      if (!same) return false;
    }
    return true;
  }
  return false;
}

Result<int> Runtime::order(const Value& left, const Value& right) {
  BF_TRY(budget_.step());
  if (left.is_whole() && right.is_whole()) {
    return left.as_int() < right.as_int() ? -1 : left.as_int() > right.as_int() ? 1 : 0;
  }
  if (left.is_number() && right.is_number()) {
    return left.as_float() < right.as_float() ? -1 : left.as_float() > right.as_float() ? 1 : 0;
  }
  if (left.is_string() && right.is_string()) {
    BF_TRY(budget_.step_bytes(std::min(left.str().size(), right.str().size())));
    const int difference = left.str().compare(right.str());
    return difference < 0 ? -1 : difference > 0 ? 1 : 0;
  }
  const bool lists = left.is_list() && right.is_list() && left.list().form == right.list().form;
  if (!lists) return unsuitable(Operator::kLess, left, right);
  const TemplateLevel level(budget_);
  BF_TRY(level.entered());
  const auto& a = left.items();
  const auto& b = right.items();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    BF_ASSIGN_OR_RETURN(const bool same, equal(a[i], b[i]));
    if (!same) return order(a[i], b[i]);
  }
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

Result<bool> Runtime::contains(const Value& whole, const Value& part) {
  BF_TRY(budget_.step());
  if (whole.is_undefined()) return false;
  if (whole.is_string()) {
    if (!part.is_string()) {
      return make_error(ErrorCode::kInvalidArgument, "'in <string>' needs a string on its left, found '{}'",
                        part.type_name());
    }
    BF_TRY(budget_.step_bytes(whole.str().size() + part.str().size()));
    return find_text(whole.str(), part.str()) != std::string_view::npos;
  }
  if (whole.is_dict()) {
    if (part.is_string()) return whole.dict().find(part.str()) != nullptr;
    for (const auto& [key, member] : whole.dict().entries) {
      BF_ASSIGN_OR_RETURN(const bool same, equal(key, part));
      if (same) return true;
    }
    return false;
  }
  if (!whole.is_list()) {
    return make_error(ErrorCode::kInvalidArgument, "'in' needs a list, a dict or a string on its right, found '{}'",
                      whole.type_name());
  }
  for (const Value& item : whole.items()) {
    BF_ASSIGN_OR_RETURN(const bool same, equal(item, part));
    if (same) return true;
  }
  return false;
}

Result<Value> Runtime::repeat(const Value& what, std::int64_t times) {
  const bool string = what.is_string();
  const std::size_t size = string ? what.text().size() : what.items().size();
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  std::size_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) return too_large();
  BF_TRY(budget_.check(total < (std::size_t{1} << 50) ? total * (string ? 2 : sizeof(Value)) : total));
  BF_TRY(budget_.step(1 + total / 8));
  MarkedText characters;
  std::vector<Value> items;
  for (std::size_t i = 0; size > 0 && i < count; ++i) {
    if (string) {
      characters.append(what.text());
    } else {
      items.insert(items.end(), what.items().begin(), what.items().end());
    }
  }
  if (string) return text(std::move(characters));
  return list(std::move(items), what.list().form);
}

Result<Value> Runtime::add(const Value& left, const Value& right) {
  if (left.is_string() && right.is_string() && (left.is_markup() || right.is_markup())) {
    BF_ASSIGN_OR_RETURN(MarkedText joined, escaped(left));
    BF_ASSIGN_OR_RETURN(const MarkedText rest, escaped(right));
    joined.append(rest);
    return text(std::move(joined), StringNode::Kind::kMarkup);
  }
  if (left.is_string() && right.is_string()) {
    BF_TRY(budget_.step_bytes(left.text().size() + right.text().size()));
    BF_TRY(budget_.check(2 * (left.text().size() + right.text().size())));
    MarkedText joined = left.text();
    joined.append(right.text());
    return text(std::move(joined));
  }
  for (const ListForm form : {ListForm::kList, ListForm::kTuple}) {
    if (!is_sequence_of(left, form) || !is_sequence_of(right, form)) continue;
    const std::size_t total = left.items().size() + right.items().size();
    BF_TRY(budget_.step(1 + total / 8));
    BF_TRY(budget_.check(total * sizeof(Value)));
    std::vector<Value> items;
    items.reserve(total);
    items.insert(items.end(), left.items().begin(), left.items().end());
    items.insert(items.end(), right.items().begin(), right.items().end());
    return list(std::move(items), form);
  }
  return unsuitable(Operator::kAdd, left, right);
}

Result<Value> Runtime::whole_arithmetic(Operator op, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case Operator::kPower:
      return whole_power(left, right);
    default:
      break;
  }
  if (right == 0) return division_by_zero();
  if (op == Operator::kDivide) return Value::number(static_cast<double>(left) / static_cast<double>(right));
  if (right == -1) {
    if (op == Operator::kModulo) return Value::integer(0);
    if (__builtin_sub_overflow(std::int64_t{0}, left, &result)) return too_large();
    return Value::integer(result);
  }
  std::int64_t rest = left % right;
  if (rest != 0 && (rest < 0) != (right < 0)) rest += right;
  return Value::integer(op == Operator::kModulo ? rest : (left - rest) / right);
}

Result<Value> Runtime::arithmetic(Operator op, const Value& left, const Value& right) {
  if (left.is_undefined()) return tl::unexpected(used_undefined(left).error());
  if (right.is_undefined()) return tl::unexpected(used_undefined(right).error());
  if (left.is_whole() && right.is_whole()) return whole_arithmetic(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return float_arithmetic(op, left.as_float(), right.as_float());
  if (op == Operator::kAdd) return add(left, right);
  if (op == Operator::kModulo && left.is_string()) {
    const std::span<const Value> given =
        is_sequence_of(right, ListForm::kTuple) ? std::span<const Value>(right.items()) : std::span(&right, 1);
    BF_ASSIGN_OR_RETURN(MarkedText formatted, format_percent(*this, left.text(), given));
    return text(std::move(formatted));
  }
  const auto repeatable = [](const Value& value) {
    return value.is_string() || is_sequence_of(value, ListForm::kList) || is_sequence_of(value, ListForm::kTuple);
  };
  if (op == Operator::kMultiply && repeatable(left) && right.is_whole()) return repeat(left, right.as_int());
  if (op == Operator::kMultiply && repeatable(right) && left.is_whole()) return repeat(right, left.as_int());
  return unsuitable(op, left, right);
}

Result<Value> Runtime::binary(Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEqual:
    case Operator::kNotEqual: {
      BF_ASSIGN_OR_RETURN(const bool same, equal(left, right));
      return Value::boolean(same == (op == Operator::kEqual));
    }
    case Operator::kIn:
    case Operator::kNotIn: {
      BF_ASSIGN_OR_RETURN(const bool found, contains(right, left));
      return Value::boolean(found == (op == Operator::kIn));
    }
    case Operator::kLess:
    case Operator::kLessEqual:
    case Operator::kGreater:
    case Operator::kGreaterEqual:
      break;
    default:
      return arithmetic(op, left, right);
  }
  if (left.is_undefined()) return tl::unexpected(used_undefined(left).error());
  if (right.is_undefined()) return tl::unexpected(used_undefined(right).error());
  const auto orderable = [](const Value& a, const Value& b) {
    return (a.is_number() && b.is_number()) || (a.is_string() && b.is_string()) || (a.is_list() && b.is_list());
  };
  if (!orderable(left, right)) return unsuitable(op, left, right);
  if (left.is_number() && (std::isnan(left.as_float()) || std::isnan(right.as_float()))) return Value::boolean(false);
  BF_ASSIGN_OR_RETURN(const int order, this->order(left, right));
  switch (op) {
    case Operator::kLess:
      return Value::boolean(order < 0);
    case Operator::kLessEqual:
      return Value::boolean(order <= 0);
    case Operator::kGreater:
      return Value::boolean(order > 0);
    default:
      return Value::boolean(order >= 0);
  }
}

}  // namespace butterfly::chat
