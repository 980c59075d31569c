#include "butterfly/text/template/interpreter.h"

#include <algorithm>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/lexer.h"

namespace butterfly::chat {

namespace {

constexpr std::uint64_t kIterationSteps = 8;  // each has a scope of its own

}  // namespace

/// `loop`.
class Interpreter::LoopObject final : public Object, public Charged, public std::enable_shared_from_this<LoopObject> {
 public:
  struct Recursion {
    Interpreter* interpreter = nullptr;
    const Statement* loop = nullptr;
    std::weak_ptr<Scope> around{};
  };
  LoopObject(TemplateBudget* budget, std::vector<Value> items, int depth0, Recursion recursion)
      : Charged(budget, 256 + items.size() * sizeof(Value)),
        items_(std::move(items)),
        depth0_(depth0),
        recursion_(std::move(recursion)) {
    for (const Value& item : items_) nesting_ = std::max(nesting_, item.depth());
  }

  std::string type_name() const override { return "LoopContext"; }
  int depth() const override { return nesting_ + 1; }
  std::size_t size() const { return items_.size(); }
  void move_to(std::size_t index) { index_ = index; }
  const Value& current() const { return items_[index_]; }
  /// The loop is over: what it remembers must not keep it alive.
  void end() {
    seen_.reset();
    over_ = true;
  }
  bool callable() const override { return true; }
  Result<Value> call(Runtime&, Arguments arguments) override {
    if (!recursion_.loop->recursive) {
      return make_error(ErrorCode::kInvalidArgument, "the loop is called, but not marked as 'recursive'");
    }
    BF_TRY(arguments.check("loop", {"iterable"}, 1));
    const auto around = recursion_.around.lock();
    if (!around || over_) return make_error(ErrorCode::kInvalidArgument, "the loop is over");
    return recursion_.interpreter->recur(*recursion_.loop, around, *arguments.find(0, "iterable"), depth0_ + 1);
  }

  Result<Value> attribute(Runtime& runtime, std::string_view name) override {
    const auto whole = [](std::size_t value) { return Value::integer(static_cast<std::int64_t>(value)); };
    if (name == "index") return whole(index_ + 1);
    if (name == "index0") return whole(index_);
    if (name == "revindex") return whole(items_.size() - index_);
    if (name == "revindex0") return whole(items_.size() - index_ - 1);
    if (name == "first") return Value::boolean(index_ == 0);
    if (name == "last") return Value::boolean(index_ + 1 == items_.size());
    if (name == "length") return whole(items_.size());
    if (name == "depth") return Value::integer(depth0_ + 1);
    if (name == "depth0") return Value::integer(depth0_);
    if (name == "previtem") return index_ > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem") {
      return index_ + 1 < items_.size() ? items_[index_ + 1] : Value::undefined("there is no next item");
    }
    if (name == "cycle") {
      return make_function(runtime, [index = index_](Runtime&, Arguments& arguments) -> Result<Value> {
        if (arguments.values.empty()) return make_error(ErrorCode::kInvalidArgument, "no items for cycling given");
        return arguments.values[index % arguments.values.size()];
      });
    }
    if (name == "changed") {
      return make_function(runtime, [self = weak_from_this()](Runtime& r, Arguments& arguments) -> Result<Value> {
        const auto loop = self.lock();
        if (!loop) return make_error(ErrorCode::kInvalidArgument, "the loop is over");
        return loop->changed(r, arguments);
      });
    }
    return Object::attribute(runtime, name);
  }

 private:
  Result<Value> changed(Runtime& runtime, const Arguments& arguments) {
    BF_ASSIGN_OR_RETURN(Value now, runtime.list(arguments.values, ListForm::kTuple));
    bool same = false;
    if (seen_) {
      BF_ASSIGN_OR_RETURN(same, runtime.equal(*seen_, now));
    }
    seen_ = std::move(now);
    return Value::boolean(!same);
  }

  const std::vector<Value> items_;
  const int depth0_;
  const Recursion recursion_;
  bool over_ = false;
  int nesting_ = 0;
  std::size_t index_ = 0;
  std::optional<Value> seen_;
};

class Interpreter::MacroObject final : public Object, public Charged {
 public:
  MacroObject(TemplateBudget* budget, Interpreter& interpreter, const MacroSyntax& macro, std::weak_ptr<Scope> around)
      : Charged(budget, 512), interpreter_(interpreter), macro_(macro), around_(std::move(around)) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Result<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return runtime.text(MarkedText(macro_.name));
    return Object::attribute(runtime, name);
  }
  Result<Value> call(Runtime&, Arguments arguments) override {
    return interpreter_.call_macro(macro_, around_.lock(), std::move(arguments));
  }

 private:
  Interpreter& interpreter_;
  const MacroSyntax& macro_;
  std::weak_ptr<Scope> around_;  // the interpreter keeps it
};

template <typename Work>
auto Interpreter::in_scope(std::shared_ptr<Scope> parent, Work work) {
  auto inner = std::make_shared<Scope>();
  inner->parent = std::move(parent);
  std::shared_ptr<Scope> before = std::exchange(scope_, std::move(inner));
  auto result = work();
  scope_ = std::move(before);
  return result;
}

Result<MarkedText> Interpreter::run(std::shared_ptr<Scope> globals) {
  scope_ = std::make_shared<Scope>();
  scope_->parent = std::move(globals);
  MarkedText out;
  out_ = &out;
  BF_TRY(execute(template_.body));
  return out;
}

Error Interpreter::located(Error error, const SourcePlace& place) {
  if (error_is_located_) return error;
  error_is_located_ = true;
  constexpr std::size_t kQuoted = 60;
  std::string quoted = template_.source.substr(place.begin, std::min(place.end - place.begin, kQuoted));
  if (place.end - place.begin > kQuoted) quoted += "...";
  const std::string message = fmt::format("{} (in '{}')", error.message, one_line(quoted));
  return template_error(error.code, template_.source, place.begin, message).value();
}

Status Interpreter::write(const MarkedText& text) {
  TemplateBudget& budget = runtime_.budget();
  BF_TRY(budget.step_bytes(text.size()));
  const std::size_t before = out_->cost();
  BF_TRY(budget.check(2 * text.size() + (out_->marks.empty() && !text.marks.empty() ? before : 0)));
  out_->append(text);
  budget.take(out_->cost() - before);
  return {};
}

Status Interpreter::write(const Expression& expression) {
  BF_ASSIGN_OR_RETURN(const Value value, evaluate(expression));
  if (value.is_string()) return write(value.text());
  auto shown = runtime_.show(value);
  if (!shown) return tl::unexpected(located(std::move(shown).error(), expression.place));
  return write(*shown);
}

Result<Value> Interpreter::capture(const Body& body) {
  MarkedText text;
  MarkedText* before = std::exchange(out_, &text);
  const auto flow = execute(body);
  out_ = before;
  runtime_.budget().give_back(text.cost());
  if (!flow) return tl::unexpected(flow.error());
  return runtime_.text(std::move(text));
}

Result<Interpreter::Flow> Interpreter::execute(const Body& body) {
  for (const Statement& statement : body) {
    BF_TRY(runtime_.budget().step());
    auto flow = execute(statement);
    if (!flow) return tl::unexpected(located(std::move(flow).error(), statement.place));
    if (*flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::execute(const Statement& statement) {
  using Kind = Statement::Kind;
  const TemplateLevel level(runtime_.budget());
  BF_TRY(level.entered());
  switch (statement.kind) {
    case Kind::kText:
      BF_TRY(write(MarkedText(statement.text)));
      return Flow::kOn;
    case Kind::kOutput:
      BF_TRY(write(*statement.expression));
      return Flow::kOn;
    case Kind::kIf:
      return execute_if(statement);
    case Kind::kFor: {
      BF_ASSIGN_OR_RETURN(const Value over, evaluate(*statement.expression));
      return execute_for(statement, over, 0);
    }
    case Kind::kSet:
    case Kind::kSetBlock:
    case Kind::kFilter:
      BF_TRY(execute_set(statement));
      return Flow::kOn;
    case Kind::kMacro:
      scope_->names.insert_or_assign(statement.macro->name, make_macro(*statement.macro));
      return Flow::kOn;
    case Kind::kCall:
      BF_TRY(execute_call(statement));
      return Flow::kOn;
    case Kind::kWith:
      return execute_with(statement);
    case Kind::kGroup:
      return in_scope(scope_, [&] { return execute(statement.body); });
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    BF_ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.condition));
    if (condition.truth()) return execute(branch.body);
  }
  return execute(statement.otherwise);
}

Result<std::vector<Value>> Interpreter::loop_items(const Statement& loop, const Value& over) {
  auto items = runtime_.iterate(over);
  if (!items) return tl::unexpected(located(std::move(items).error(), loop.expression->place));
  if (!loop.condition) return items;
  std::vector<Value> chosen;
  for (Value& item : *items) {
    BF_TRY(runtime_.budget().step(kIterationSteps));
    auto fits = in_scope(scope_, [&]() -> Result<Value> {
      BF_TRY(assign(loop.targets[0], item));
      return evaluate(*loop.condition);
    });
    if (!fits) return tl::unexpected(std::move(fits).error());
    if (fits->truth()) chosen.push_back(std::move(item));
  }
  return chosen;
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement, const Value& over, int depth) {
  BF_ASSIGN_OR_RETURN(std::vector<Value> items, loop_items(statement, over));
  if (items.empty()) return execute(statement.otherwise);
  BF_TRY(runtime_.budget().check(2 * items.size() * sizeof(Value)));
  const auto state = std::make_shared<LoopObject>(&runtime_.budget(), std::move(items), depth,
                                                  LoopObject::Recursion{this, &statement, scope_});
  Result<Flow> flow = Flow::kOn;
  for (std::size_t i = 0; i < state->size() && flow && *flow != Flow::kBreak; ++i) {
    state->move_to(i);
    const Status counted = runtime_.budget().step(kIterationSteps);
    flow = counted ? iteration(statement, state) : Result<Flow>(tl::unexpected(counted.error()));
  }
  state->end();
  if (!flow) return flow;
  return Flow::kOn;
}

Result<Value> Interpreter::recur(const Statement& loop, const std::shared_ptr<Scope>& around, const Value& over,
                                 int depth) {
  const TemplateLevel level(runtime_.budget());
  BF_TRY(level.entered());
  MarkedText text;
  MarkedText* before = std::exchange(out_, &text);
  const auto flow = in_scope(around, [&] { return execute_for(loop, over, depth); });
  out_ = before;
  runtime_.budget().give_back(text.cost());
  if (!flow) return tl::unexpected(flow.error());
  return runtime_.text(std::move(text));
}

Result<Interpreter::Flow> Interpreter::iteration(const Statement& loop, const std::shared_ptr<LoopObject>& state) {
  return in_scope(scope_, [&]() -> Result<Flow> {
    BF_TRY(assign(loop.targets[0], state->current()));
    scope_->names.insert_or_assign("loop", Value::object(state));
    return execute(loop.body);
  });
}

Result<Interpreter::Flow> Interpreter::execute_with(const Statement& statement) {
  std::vector<Value> values;
  for (const ExpressionPtr& value : statement.values) {
    BF_ASSIGN_OR_RETURN(Value computed, evaluate(*value));
    values.push_back(std::move(computed));
  }
  return in_scope(scope_, [&]() -> Result<Flow> {
    for (std::size_t i = 0; i < values.size(); ++i) BF_TRY(assign(statement.targets[i], std::move(values[i])));
    return execute(statement.body);
  });
}

Status Interpreter::execute_set(const Statement& statement) {
  if (statement.kind == Statement::Kind::kSet) {
    BF_ASSIGN_OR_RETURN(Value value, evaluate(*statement.expression));
    return assign(statement.targets[0], std::move(value));
  }
  auto captured = in_scope(scope_, [&] { return capture(statement.body); });
  if (!captured) return tl::unexpected(std::move(captured).error());
  Value value = std::move(*captured);
  if (statement.expression) {
    const Value unfiltered = value;
    const Value* before = std::exchange(filtered_, &unfiltered);
    auto filtered = evaluate(*statement.expression);
    filtered_ = before;
    if (!filtered) return tl::unexpected(std::move(filtered).error());
    value = std::move(*filtered);
  }
  if (statement.kind == Statement::Kind::kSetBlock) return assign(statement.targets[0], std::move(value));
  BF_ASSIGN_OR_RETURN(const MarkedText shown, runtime_.show(value));
  return write(shown);
}

Status Interpreter::execute_call(const Statement& statement) {
  const Expression& call = *statement.expression;
  BF_ASSIGN_OR_RETURN(const Value callee, evaluate(*call.parts[0]));
  BF_ASSIGN_OR_RETURN(Arguments given, arguments(call, 1));
  given.named.emplace_back("caller", make_macro(*statement.macro));
  BF_ASSIGN_OR_RETURN(const Value value, runtime_.call(callee, std::move(given)));
  BF_ASSIGN_OR_RETURN(const MarkedText shown, runtime_.show(value));
  return write(shown);
}

Value Interpreter::make_macro(const MacroSyntax& macro) {
  if (std::ranges::find(kept_, scope_) == kept_.end()) {
    kept_.push_back(scope_);
    charges_.push_back(std::make_unique<Charged>(&runtime_.budget(), 512));
  }
  return Value::object(std::make_shared<MacroObject>(&runtime_.budget(), *this, macro, scope_));
}

Status Interpreter::take_further(const MacroSyntax& macro, Arguments& arguments) {
  if (macro.takes_varargs) {
    const std::size_t own = std::min(arguments.values.size(), macro.parameters.size());
    const auto first = arguments.values.begin() + static_cast<std::ptrdiff_t>(own);
    std::vector<Value> further(first, arguments.values.end());
    arguments.values.resize(own);
    BF_ASSIGN_OR_RETURN(Value list, runtime_.list(std::move(further), ListForm::kTuple));
    scope_->names.insert_or_assign("varargs", std::move(list));
  }
  if (!macro.takes_kwargs) return {};
  std::vector<DictNode::Entry> entries;
  std::vector<std::pair<std::string, Value>> own;
  for (auto& [name, value] : arguments.named) {
    const auto same = [&name = name](const Parameter& parameter) { return parameter.name == name; };
    if (name == "caller" || std::ranges::any_of(macro.parameters, same)) {
      own.emplace_back(name, std::move(value));
      continue;
    }
    BF_ASSIGN_OR_RETURN(Value key, runtime_.text(MarkedText(name)));
    entries.emplace_back(std::move(key), std::move(value));
  }
  arguments.named = std::move(own);
  BF_ASSIGN_OR_RETURN(Value dict, runtime_.dict(std::move(entries)));
  scope_->names.insert_or_assign("kwargs", std::move(dict));
  return {};
}

Result<Value> Interpreter::call_macro(const MacroSyntax& macro, const std::shared_ptr<Scope>& around,
                                      Arguments arguments) {
  if (arguments.values.size() > macro.parameters.size() && !macro.takes_varargs) {
    return make_error(ErrorCode::kInvalidArgument, "macro '{}' takes not more than {} arguments, {} were given",
                      macro.name, macro.parameters.size(), arguments.values.size());
  }
  return in_scope(around, [&]() -> Result<Value> {
    scope_->names["caller"] = Value::undefined("No caller defined");
    BF_TRY(take_further(macro, arguments));
    for (auto& [name, value] : arguments.named) {
      const auto same = [&name = name](const Parameter& parameter) { return parameter.name == name; };
      const auto found = std::ranges::find_if(macro.parameters, same);
      if (found == macro.parameters.end() && name != "caller") {
        return make_error(ErrorCode::kInvalidArgument, "macro '{}' takes no argument '{}'", macro.name, name);
      }
      if (found - macro.parameters.begin() < static_cast<std::ptrdiff_t>(arguments.values.size())) {
        return make_error(ErrorCode::kInvalidArgument, "macro '{}' was given '{}' twice", macro.name, name);
      }
      scope_->names.insert_or_assign(name, std::move(value));
    }
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const Parameter& parameter = macro.parameters[i];
      if (i < arguments.values.size()) {
        scope_->names.insert_or_assign(parameter.name, std::move(arguments.values[i]));
      } else if (!scope_->names.contains(parameter.name)) {
        Value standard = Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
        if (parameter.standard) {
          BF_ASSIGN_OR_RETURN(standard, evaluate(*parameter.standard));
        }
        scope_->names.insert_or_assign(parameter.name, std::move(standard));
      }
    }
    return capture(*macro.body);
  });
}

Status Interpreter::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    BF_ASSIGN_OR_RETURN(std::vector<Value> items, runtime_.iterate(value));
    if (items.size() != target.parts.size()) {
      return make_error(ErrorCode::kInvalidArgument, "{} names are to be assigned, but there are {} values",
                        target.parts.size(), items.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) BF_TRY(assign(target.parts[i], std::move(items[i])));
    return {};
  }
  if (target.attribute.empty()) {
    scope_->names.insert_or_assign(target.name, std::move(value));
    return {};
  }
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto found = scope->names.find(target.name);
    if (found == scope->names.end()) continue;
    const bool object = found->second.is_object();
    if (auto* space = object ? dynamic_cast<NamespaceObject*>(found->second.as_object().get()) : nullptr) {
      return space->set(runtime_, target.attribute, std::move(value));
    }
    break;
  }
  return make_error(ErrorCode::kInvalidArgument, "cannot assign attribute '{}' of '{}', which is no namespace",
                    target.attribute, target.name);
}

}  // namespace butterfly::chat
