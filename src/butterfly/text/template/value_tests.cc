// Tests, as in "x is defined".
#include <algorithm>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/python_text.h"
#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

namespace {

using Test = Result<bool> (*)(Runtime& runtime, const Value& value, const Arguments& arguments);

Result<const Value*> operand(const Arguments& arguments) {
  if (arguments.values.size() == 2) return &arguments.values[1];
  return make_error(ErrorCode::kInvalidArgument, "the test needs 1 argument, {} were given",
                    arguments.values.size() - 1);
}

template <Operator Op>
Result<bool> compares(Runtime& runtime, const Value& value, const Arguments& arguments) {
  BF_ASSIGN_OR_RETURN(const Value* other, operand(arguments));
  BF_ASSIGN_OR_RETURN(const Value result, runtime.binary(Op, value, *other));
  return result.truth();
}

Result<bool> is_multiple(Runtime& runtime, const Value& value, const Value& of, std::int64_t rest) {
  BF_ASSIGN_OR_RETURN(const Value left, runtime.binary(Operator::kModulo, value, of));
  return runtime.equal(left, Value::integer(rest));
}

Result<bool> has_case(Runtime& runtime, const Value& value, std::string_view method) {
  BF_ASSIGN_OR_RETURN(const MarkedText text, runtime.show(value));
  BF_ASSIGN_OR_RETURN(const Value result, find_text_method(method)(runtime, text, {}));
  return result.truth();
}

bool is_sequence(const Value& value) {
  if (value.is_list()) return value.list().form == ListForm::kList || value.list().form == ListForm::kTuple;
  return value.is_string() || value.is_dict() || value.is_undefined();
}

/// Python's `is`: for what has no identity here, the same value of the same type.
Result<bool> is_same(Runtime& runtime, const Value& value, const Value& other) {
  if (value.type_name() != other.type_name()) return false;
  if (value.is_list()) return &value.list() == &other.list();
  if (value.is_dict()) return &value.dict() == &other.dict();
  return runtime.equal(value, other);
}

struct NamedTest {
  std::string_view name;
  Test test;
};

#define BF_IS(expression) [](Runtime&, const Value& v, const Arguments&) -> Result<bool> { return (expression); }
constexpr NamedTest kTests[] = {
    {"!=", compares<Operator::kNotEqual>},
    {"<", compares<Operator::kLess>},
    {"<=", compares<Operator::kLessEqual>},
    {"==", compares<Operator::kEqual>},
    {">", compares<Operator::kGreater>},
    {">=", compares<Operator::kGreaterEqual>},
    {"boolean", BF_IS(v.is_bool())},
    {"callable", BF_IS(v.is_object() && v.as_object()->callable())},
    {"defined", BF_IS(!v.is_undefined())},
    {"divisibleby",
     [](Runtime& runtime, const Value& value, const Arguments& arguments) -> Result<bool> {
       BF_ASSIGN_OR_RETURN(const Value* by, operand(arguments));
       return is_multiple(runtime, value, *by, 0);
     }},
    {"eq", compares<Operator::kEqual>},
    {"equalto", compares<Operator::kEqual>},
    {"escaped", BF_IS(v.is_object() && false)},
    {"even",
     [](Runtime& runtime, const Value& value, const Arguments&) -> Result<bool> {
       return is_multiple(runtime, value, Value::integer(2), 0);
     }},
    {"false", BF_IS(v.is_bool() && !v.as_bool())},
    {"filter", BF_IS(v.is_string() && is_filter(v.str()))},
    {"float", BF_IS(v.is_float())},
    {"ge", compares<Operator::kGreaterEqual>},
    {"greaterthan", compares<Operator::kGreater>},
    {"gt", compares<Operator::kGreater>},
    {"in", compares<Operator::kIn>},
    {"integer", BF_IS(v.is_int())},
    {"iterable", BF_IS(v.is_list() || v.is_dict() || v.is_string() || v.is_undefined())},
    {"le", compares<Operator::kLessEqual>},
    {"lessthan", compares<Operator::kLess>},
    {"lower",
     [](Runtime& runtime, const Value& value, const Arguments&) { return has_case(runtime, value, "islower"); }},
    {"lt", compares<Operator::kLess>},
    {"mapping", BF_IS(v.is_dict())},
    {"ne", compares<Operator::kNotEqual>},
    {"none", BF_IS(v.is_none())},
    {"number", BF_IS(v.is_number())},
    {"odd",
     [](Runtime& runtime, const Value& value, const Arguments&) -> Result<bool> {
       return is_multiple(runtime, value, Value::integer(2), 1);
     }},
    {"sameas",
     [](Runtime& runtime, const Value& value, const Arguments& arguments) -> Result<bool> {
       BF_ASSIGN_OR_RETURN(const Value* other, operand(arguments));
       return is_same(runtime, value, *other);
     }},
    {"sequence", BF_IS(is_sequence(v))},
    {"string", BF_IS(v.is_string())},
    {"test", BF_IS(v.is_string() && is_test(v.str()))},
    {"true", BF_IS(v.is_bool() && v.as_bool())},
    {"undefined", BF_IS(v.is_undefined())},
    {"upper",
     [](Runtime& runtime, const Value& value, const Arguments&) { return has_case(runtime, value, "isupper"); }},
};
#undef BF_IS

const NamedTest* find_test(std::string_view name) {
  const auto* found = std::ranges::find(kTests, name, &NamedTest::name);
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool is_test(std::string_view name) {
  return find_test(name) != nullptr;
}

Result<bool> call_test(Runtime& runtime, std::string_view name, const Arguments& arguments) {
  BF_TRY(runtime.budget().step());
  const NamedTest* found = find_test(name);
  if (found == nullptr) {
    return make_error(ErrorCode::kUnsupported, "there is no test named '{}'", one_line(name.substr(0, 80)));
  }
  return found->test(runtime, arguments.values[0], arguments);
}

}  // namespace butterfly::chat
