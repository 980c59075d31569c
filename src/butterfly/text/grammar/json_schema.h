// JSON schemas as grammars of the JSON texts that they allow: the subset of OpenAI's structured outputs and some more.
//
// type (one or a list), properties, required, additionalProperties, items, minItems, maxItems, enum, const, anyOf,
// allOf and oneOf of one schema, $ref within the schema (also recursive), $defs, minLength, maxLength, pattern, format,
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (whole numbers up to 1000), true and false as
// schemas. What only describes (title, description, default, examples, ...) is passed over; any other keyword is
// refused with its path.
//
// Properties come in the order in which the schema has them. Properties that it does not name are written only where it
// has additionalProperties that allow them, or no properties at all. Thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "butterfly/base/json.h"
#include "butterfly/base/result.h"
#include "butterfly/text/grammar/grammar.h"

namespace butterfly {

/// Errors: kInvalidArgument naming keyword and path.
Result<std::shared_ptr<const Grammar>> compile_json_schema(const nlohmann::ordered_json& schema);
Result<std::shared_ptr<const Grammar>> compile_json_schema_text(std::string_view text);

/// Any JSON object.
Result<std::shared_ptr<const Grammar>> compile_json_object();

}  // namespace butterfly
