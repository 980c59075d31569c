// Numbers within bounds as expressions over their digits. Plain functions.
#pragma once

#include <optional>
#include <string>

#include "butterfly/base/json.h"
#include "butterfly/base/result.h"
#include "butterfly/text/grammar/grammar_builder.h"

namespace butterfly {

/// What a schema asks of a number.
struct NumberBounds {
  nlohmann::json minimum{};  // null: none
  nlohmann::json maximum{};
  nlohmann::json exclusive_minimum{};
  nlohmann::json exclusive_maximum{};
  nlohmann::json multiple_of{};
  bool whole = false;  // no fraction

  bool none() const {
    return minimum.is_null() && maximum.is_null() && exclusive_minimum.is_null() && exclusive_maximum.is_null() &&
           multiple_of.is_null();
  }
};

/// Whole numbers have up to 18 digits, others up to 15 and no exponent: so that no two of them become one double.
/// Errors: kInvalidArgument for bounds that no number is within or that have more digits; for a multipleOf that is not
/// a whole number from 1 to 1000.
Result<GrammarBuilder::Expr> add_number(GrammarBuilder& builder, const NumberBounds& bounds);

}  // namespace butterfly
