// A template as a tree. Plain data, immutable after parsing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/text/template/value.h"

namespace butterfly::chat {

/// Bytes of the source, for messages.
struct SourcePlace {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expression {
  enum class Kind : std::uint8_t {
    kConstant,
    kName,         // name
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value
    kNegate,       // parts[0]
    kPlus,         // parts[0]
    kNot,          // parts[0]
    kAnd,          // parts[0], parts[1]
    kOr,           // parts[0], parts[1]
    kBinary,       // operators[0] of parts[0] and parts[1]
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kConcat,       // parts
    kConditional,  // parts: condition, then, else (may be null)
    kAttribute,    // parts[0].name
    kSubscript,    // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], null where left out
    kCall,         // parts[0](parts[1]..., named, *unpacked, **unpacked_named)
    kFilter,       // parts[0]|name(parts[1]..., ...); parts[0] is null for the text of a block
    kTest,         // parts[0] is name(parts[1]..., ...)
  };

  Kind kind = Kind::kConstant;
  SourcePlace place;
  int depth = 1;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr unpacked;        // null: none
  ExpressionPtr unpacked_named;  // null: none
};

/// What `set` and `for` assign to.
struct Target {
  std::string name;
  std::string attribute;      // of a namespace; empty: a name
  std::vector<Target> parts;  // of a tuple; then the name is empty
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr standard;  // null: none
};

/// What macro and call blocks declare.
struct MacroSyntax {
  std::string name;
  std::vector<Parameter> parameters;
  std::shared_ptr<const Body> body;
  bool takes_varargs = false;  // the body speaks of `varargs`: further arguments are its
  bool takes_kwargs = false;   // and of `kwargs`
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Statement {
  enum class Kind : std::uint8_t {
    kText,      // text
    kOutput,    // expression
    kIf,        // branches, otherwise
    kFor,       // target in expression if condition: body, otherwise; recursive
    kSet,       // targets[0] = expression
    kSetBlock,  // targets[0] = the text of body, through the filters of expression where there are any
    kMacro,     // macro
    kCall,      // expression, a call, with macro as its caller
    kFilter,    // the text of body through expression
    kWith,      // targets = values: body
    kGroup,     // body in a scope of its own: generation
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  SourcePlace place;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<Target> targets;
  std::vector<ExpressionPtr> values;
  std::vector<Branch> branches;
  Body body;
  Body otherwise;
  std::optional<MacroSyntax> macro;
  bool recursive = false;
};

struct Template {
  std::string source;
  Body body;
};

/// The line of the source at `place`, from 1.
int line_at(const Template& parsed, std::size_t place);

/// Errors: kBadData naming the line; kUnsupported naming what this library leaves out.
Result<std::shared_ptr<const Template>> parse_template(std::string source);

}  // namespace butterfly::chat
