// Runs a template. One per rendering; not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

/// Names of a block; those of the blocks around it show through.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::map<std::string, Value, std::less<>> names;
};

class Interpreter {
 public:
  Interpreter(Runtime& runtime, const Template& parsed) : runtime_(runtime), template_(parsed) {}

  /// The text of the template with the names of `globals`. Errors: kInvalidArgument naming line and expression.
  Result<MarkedText> run(std::shared_ptr<Scope> globals);

  /// The text of a macro's body with its parameters; called by macros.
  Result<Value> call_macro(const MacroSyntax& macro, const std::shared_ptr<Scope>& around, Arguments arguments);

 private:
  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };
  class LoopObject;
  class MacroObject;

  Result<Flow> execute(const Body& body);
  Result<Flow> execute(const Statement& statement);
  Result<Flow> execute_if(const Statement& statement);
  /// `depth`: how many calls of `loop` this one is inside of.
  Result<Flow> execute_for(const Statement& statement, const Value& over, int depth);
  Result<Flow> iteration(const Statement& loop, const std::shared_ptr<LoopObject>& state);
  Result<std::vector<Value>> loop_items(const Statement& loop, const Value& over);
  /// loop(items): the text of the same loop over them, in the scope around it.
  Result<Value> recur(const Statement& loop, const std::shared_ptr<Scope>& around, const Value& over, int depth);
  Result<Flow> execute_with(const Statement& statement);
  Status execute_set(const Statement& statement);
  Status execute_call(const Statement& statement);
  Status write(const Expression& expression);
  Status write(const MarkedText& text);
  Status assign(const Target& target, Value value);
  /// The text that `body` writes.
  Result<Value> capture(const Body& body);

  Result<Value> evaluate(const Expression& expression);
  Result<Value> compute(const Expression& expression);
  Result<Value> name(const Expression& expression);
  Result<Value> list(const Expression& expression);
  Result<Value> dict(const Expression& expression);
  Result<Value> negate(const Expression& expression);
  Result<Value> compare(const Expression& expression);
  Result<Value> concat(const Expression& expression);
  Result<Value> conditional(const Expression& expression);
  Result<Value> slice(const Expression& expression);
  Result<Value> call(const Expression& expression);
  Result<Value> filter(const Expression& expression);
  Result<Arguments> arguments(const Expression& expression, std::size_t first);
  Status unpack(const Expression& expression, Arguments& given);
  Value make_macro(const MacroSyntax& macro);
  /// What a macro takes beyond its parameters becomes `varargs` and `kwargs`.
  Status take_further(const MacroSyntax& macro, Arguments& arguments);
  /// `body` in a scope of its own around `work`.
  template <typename Work>
  auto in_scope(std::shared_ptr<Scope> parent, Work work);
  Error located(Error error, const SourcePlace& place);

  Runtime& runtime_;
  const Template& template_;
  std::shared_ptr<Scope> scope_;
  MarkedText* out_ = nullptr;                      // where statements write
  const Value* filtered_ = nullptr;                // the text of a block that goes through filters
  std::vector<std::shared_ptr<Scope>> kept_;       // scopes that macros were defined in
  std::vector<std::unique_ptr<Charged>> charges_;  // of kept scopes
  bool error_is_located_ = false;
};

}  // namespace butterfly::chat
