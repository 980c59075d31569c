// Expressions.
#include <algorithm>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/interpreter.h"

namespace butterfly::chat {

Result<Value> Interpreter::evaluate(const Expression& expression) {
  const TemplateLevel level(runtime_.budget());
  Result<Value> value;
  if (Status entered = level.entered(); !entered) {
    value = tl::unexpected(entered.error());
  } else if (Status counted = runtime_.budget().step(); !counted) {
    value = tl::unexpected(counted.error());
  } else {
    value = compute(expression);
  }
  if (!value) return tl::unexpected(located(std::move(value).error(), expression.place));
  return value;
}

Result<Value> Interpreter::compute(const Expression& expression) {
  using Kind = Expression::Kind;
  const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i]); };
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return name(expression);
    case Kind::kList:
    case Kind::kTuple:
      return list(expression);
    case Kind::kDict:
      return dict(expression);
    case Kind::kNegate:
    case Kind::kPlus:
      return negate(expression);
    case Kind::kNot: {
      BF_ASSIGN_OR_RETURN(const Value value, part(0));
      return Value::boolean(!value.truth());
    }
    case Kind::kAnd:
    case Kind::kOr: {
      BF_ASSIGN_OR_RETURN(Value left, part(0));
      if (left.truth() == (expression.kind == Kind::kOr)) return left;
      return part(1);
    }
    case Kind::kBinary: {
      BF_ASSIGN_OR_RETURN(const Value left, part(0));
      BF_ASSIGN_OR_RETURN(const Value right, part(1));
      return runtime_.binary(expression.operators[0], left, right);
    }
    case Kind::kCompare:
      return compare(expression);
    case Kind::kConcat:
      return concat(expression);
    case Kind::kConditional:
      return conditional(expression);
    case Kind::kAttribute: {
      BF_ASSIGN_OR_RETURN(const Value value, part(0));
      return runtime_.attribute(value, expression.name);
    }
    case Kind::kSubscript: {
      BF_ASSIGN_OR_RETURN(const Value value, part(0));
      BF_ASSIGN_OR_RETURN(const Value key, part(1));
      return runtime_.subscript(value, key);
    }
    case Kind::kSlice:
      return slice(expression);
    case Kind::kCall:
      return call(expression);
    case Kind::kFilter:
      return filter(expression);
    case Kind::kTest: {
      BF_ASSIGN_OR_RETURN(const Arguments given, arguments(expression, 0));
      BF_ASSIGN_OR_RETURN(const bool fits, call_test(runtime_, expression.name, given));
      return Value::boolean(fits);
    }
  }
  return Value();
}

Result<Value> Interpreter::name(const Expression& expression) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto found = scope->names.find(expression.name);
    if (found != scope->names.end()) return found->second;
  }
  Value global = find_global(runtime_, expression.name);
  if (!global.is_undefined()) return global;
  return Value::undefined(fmt::format("'{}' is undefined", expression.name));
}

Result<Value> Interpreter::list(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& part : expression.parts) {
    BF_ASSIGN_OR_RETURN(Value item, evaluate(*part));
    items.push_back(std::move(item));
  }
  return runtime_.list(std::move(items),
                       expression.kind == Expression::Kind::kTuple ? ListForm::kTuple : ListForm::kList);
}

Result<Value> Interpreter::dict(const Expression& expression) {
  std::vector<DictNode::Entry> entries;
  for (std::size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
    BF_ASSIGN_OR_RETURN(Value key, evaluate(*expression.parts[i]));
    BF_ASSIGN_OR_RETURN(Value value, evaluate(*expression.parts[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.dict(std::move(entries));
}

Result<Value> Interpreter::negate(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.parts[0]));
  const bool minus = expression.kind == Expression::Kind::kNegate;
  if (minus && value.is_float()) return Value::number(-value.as_float());
  return runtime_.binary(minus ? Operator::kSubtract : Operator::kAdd, Value::integer(0), value);
}

/// a < b < c: each pair must fit, and what comes after one that does not is not computed.
Result<Value> Interpreter::compare(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(Value left, evaluate(*expression.parts[0]));
  Value result;
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    BF_ASSIGN_OR_RETURN(Value right, evaluate(*expression.parts[i + 1]));
    BF_ASSIGN_OR_RETURN(result, runtime_.binary(expression.operators[i], left, right));
    if (!result.truth()) return result;
    left = std::move(right);
  }
  return result;
}

Result<Value> Interpreter::concat(const Expression& expression) {
  MarkedText text;
  for (const ExpressionPtr& part : expression.parts) {
    BF_ASSIGN_OR_RETURN(const Value value, evaluate(*part));
    BF_ASSIGN_OR_RETURN(const MarkedText shown, runtime_.show(value));
    BF_TRY(runtime_.budget().check(2 * (text.cost() + shown.cost())));
    text.append(shown);
  }
  return runtime_.text(std::move(text));
}

Result<Value> Interpreter::conditional(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(const Value condition, evaluate(*expression.parts[0]));
  if (condition.truth()) return evaluate(*expression.parts[1]);
  if (expression.parts[2]) return evaluate(*expression.parts[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Result<Value> Interpreter::slice(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.parts[0]));
  Value borders[3] = {Value::none(), Value::none(), Value::none()};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expression.parts[i + 1]) continue;
    BF_ASSIGN_OR_RETURN(borders[i], evaluate(*expression.parts[i + 1]));
  }
  return runtime_.slice(value, borders);
}

Result<Arguments> Interpreter::arguments(const Expression& expression, std::size_t first) {
  Arguments given;
  for (std::size_t i = first; i < expression.parts.size(); ++i) {
    if (!expression.parts[i]) {  // the text of a block that is filtered
      given.values.push_back(*filtered_);
      continue;
    }
    BF_ASSIGN_OR_RETURN(Value value, evaluate(*expression.parts[i]));
    given.values.push_back(std::move(value));
  }
  for (const auto& [name, part] : expression.named) {
    BF_ASSIGN_OR_RETURN(Value value, evaluate(*part));
    given.named.emplace_back(name, std::move(value));
  }
  BF_TRY(unpack(expression, given));
  return given;
}

/// What '*' and '**' unpack.
Status Interpreter::unpack(const Expression& expression, Arguments& given) {
  if (expression.unpacked) {
    BF_ASSIGN_OR_RETURN(const Value list, evaluate(*expression.unpacked));
    BF_ASSIGN_OR_RETURN(const std::vector<Value> items, runtime_.iterate(list));
    BF_TRY(runtime_.budget().check(2 * items.size() * sizeof(Value)));
    given.values.insert(given.values.end(), items.begin(), items.end());
  }
  if (!expression.unpacked_named) return {};
  BF_ASSIGN_OR_RETURN(const Value dict, evaluate(*expression.unpacked_named));
  if (!dict.is_dict()) {
    return make_error(ErrorCode::kInvalidArgument, "'**' unpacks a dict, not '{}'", dict.type_name());
  }
  BF_TRY(runtime_.budget().step(1 + dict.dict().entries.size()));
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is_string())
      return make_error(ErrorCode::kInvalidArgument, "'**' unpacks names, not '{}'", key.type_name());
    const auto same = [&key = key](const auto& named) { return named.first == key.str(); };
    if (std::ranges::any_of(given.named, same)) {
      return make_error(ErrorCode::kInvalidArgument, "the argument '{}' is given twice",
                        one_line(key.str().substr(0, 80)));
    }
    given.named.emplace_back(key.str(), value);
  }
  return {};
}

Result<Value> Interpreter::call(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(const Value callee, evaluate(*expression.parts[0]));
  BF_ASSIGN_OR_RETURN(Arguments given, arguments(expression, 1));
  return runtime_.call(callee, std::move(given));
}

Result<Value> Interpreter::filter(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(Arguments given, arguments(expression, 0));
  return call_filter(runtime_, expression.name, std::move(given));
}

}  // namespace butterfly::chat
