#include "butterfly/text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include "butterfly/text/grammar/gbnf.h"
#include "butterfly/text/grammar/state_table.h"

namespace butterfly {
namespace {

bool allows(const Result<std::shared_ptr<const Grammar>>& grammar, std::string_view text) {
  EXPECT_TRUE(grammar) << grammar.error().message;
  if (!grammar) return false;
  StateTable table(*grammar);
  StateTable::State state = table.start();
  for (const char c : text) state = table.next(state, static_cast<unsigned char>(c));
  return table.accepts(state);
}

bool valid(std::string_view schema, std::string_view text) {
  return allows(compile_json_schema_text(schema), text);
}

std::string refusal(std::string_view schema) {
  const auto grammar = compile_json_schema_text(schema);
  return grammar ? "" : grammar.error().message;
}

TEST(JsonSchema, PropertiesComeInOrderAndRequiredOnesAlways) {
  constexpr std::string_view kSchema = R"({"type": "object", "required": ["b"], "additionalProperties": false,
    "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}})";
  for (const char* text :
       {R"({"b":true})", R"({"a": 1, "b": false, "c": null})", "{\n  \"b\": true,\n  \"c\": null\n}"}) {
    EXPECT_TRUE(valid(kSchema, text)) << text;
  }
  for (const char* text : {R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,"d":1})", R"({"b":true,})", "{}",
                           R"({,"b":true})", R"({"b" :true})", R"({"b":  true})", R"({"b":true} )"}) {
    EXPECT_FALSE(valid(kSchema, text)) << text;
  }
}

TEST(JsonSchema, FurtherPropertiesHaveOtherNames) {
  constexpr std::string_view kSchema =
      R"({"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}})";
  EXPECT_TRUE(valid(kSchema, R"({"ab":1,"a":"x","abc":"y","é":""})"));
  EXPECT_TRUE(valid(kSchema, R"({"zz":"x"})"));
  EXPECT_FALSE(valid(kSchema, R"({"ab":"x"})"));
  EXPECT_FALSE(valid(kSchema, R"({"\u0061b":"x"})"));
  EXPECT_FALSE(valid(kSchema, R"({"a":1})"));
}

TEST(JsonSchema, StringsAreUtf8WithTheEscapesOfJson) {
  constexpr std::string_view kSchema = R"({"type": "string", "minLength": 2, "maxLength": 3})";
  for (const char* text : {R"("ab")", R"("\n\"")", R"("\u00e9\\x")", R"("\ud83d\ude00é")", "\"日本語\""}) {
    EXPECT_TRUE(valid(kSchema, text)) << text;
  }
  for (const char* text : {R"("a")", R"("abcd")", R"("\ud83dab")", R"("\x")", "\"a\nb\"", "\"a\xFF\"", R"("ab)"}) {
    EXPECT_FALSE(valid(kSchema, text)) << text;
  }
}

TEST(JsonSchema, NumbersStayWithinTheirBounds) {
  constexpr std::string_view kWhole =
      R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 130, "multipleOf": 4})";
  for (int i = -20; i < 150; ++i) {
    EXPECT_EQ(valid(kWhole, std::to_string(i)), i >= -12 && i < 130 && i % 4 == 0) << i;
  }
  constexpr std::string_view kNumber = R"({"type": "number", "exclusiveMinimum": -0.25, "maximum": 12.5})";
  for (const char* text : {"0", "-0.24999", "12.5", "12.50", "3.75", "-0.1", "12"})
    EXPECT_TRUE(valid(kNumber, text)) << text;
  for (const char* text : {"-0.25", "12.51", "13", "100", "-1", "01", "1.", ".5", "1e1"}) {
    EXPECT_FALSE(valid(kNumber, text)) << text;
  }
  EXPECT_TRUE(valid(R"({"type": "integer", "minimum": 0.5})", "1"));
  EXPECT_FALSE(valid(R"({"type": "integer", "minimum": 0.5})", "0"));
  EXPECT_TRUE(valid(R"({"type": "number"})", "-1.5e-7"));
}

TEST(JsonSchema, ReferencesMayRecur) {
  constexpr std::string_view kList = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["next"]}}})";
  EXPECT_TRUE(valid(kList, R"({"next":{"next":{"next":null}}})"));
  EXPECT_FALSE(valid(kList, R"({"next":{"next":{}}})"));
  EXPECT_NE(refusal(R"({"$ref": "#"})").find("left recursion"), std::string::npos);
  EXPECT_NE(refusal(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})").find("never comes"),
            std::string::npos);
}

TEST(JsonSchema, ConstantsPatternsAndFormats) {
  EXPECT_TRUE(valid(R"({"enum": ["a\"b", 1, {"k": [1, 2]}]})", R"({"k": [1,2]})"));
  EXPECT_TRUE(valid(R"({"enum": ["a\"b", 1], "type": "string"})", R"("a\"b")"));
  EXPECT_FALSE(valid(R"({"enum": ["a\"b", 1], "type": "string"})", "1"));
  EXPECT_TRUE(valid(R"({"type": "string", "pattern": "b+"})", R"("a\nbb\"")"));
  EXPECT_FALSE(valid(R"({"type": "string", "pattern": "^b+$"})", R"("abb")"));
  EXPECT_TRUE(valid(R"({"type": "string", "format": "date"})", R"("2024-02-29")"));
  EXPECT_FALSE(valid(R"({"type": "string", "format": "date"})", R"("2023-02-29")"));
  EXPECT_FALSE(valid(R"({"type": "string", "format": "date"})", R"("2023-04-31")"));
  EXPECT_TRUE(valid(R"({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2})", "[null, null]"));
  EXPECT_FALSE(valid(R"({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2})", "[]"));
  EXPECT_TRUE(allows(compile_json_object(), R"({"a": [1, {"b": "c"}], "a": true})"));
  EXPECT_FALSE(allows(compile_json_object(), "[]"));
}

TEST(JsonSchema, WhatCannotBeKeptToIsNamedWithItsPath) {
  EXPECT_EQ(refusal(R"({"type": "object", "properties": {"a": {"patternProperties": {}}}})"),
            "the schema at #/properties/a: the keyword patternProperties is none that can be kept to");
  EXPECT_EQ(
      refusal(R"({"type": "array", "items": {"type": "text"}})"),
      "the schema at #/items: type is \"text\", expected object, array, string, number, integer, boolean or null");
  for (const char* bad : {"",
                          "[",
                          "3",
                          "false",
                          R"({"type": []})",
                          R"({"$ref": "other.json"})",
                          R"({"$ref": "#/nowhere"})",
                          R"({"uniqueItems": true})",
                          R"({"oneOf": [{}, {}]})",
                          R"({"enum": []})",
                          R"({"minLength": -1})",
                          R"({"minLength": 5, "maxLength": 4})",
                          R"({"minLength": 1e9})",
                          R"({"format": "uri"})",
                          R"x({"pattern": "(?=a)"})x",
                          R"({"pattern": "a", "maxLength": 3})",
                          R"({"minimum": 3, "maximum": 2})",
                          R"({"multipleOf": 0.01})",
                          R"({"required": ["x"], "properties": {"y": {}}})",
                          R"({"anyOf": [{}], "properties": {}})",
                          R"({"properties": 1})",
                          R"({"type": "integer", "minimum": "1"})",
                          R"({"additionalProperties": 3, "type": "object"})"}) {
    EXPECT_FALSE(refusal(bad).empty()) << bad;
  }
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_FALSE(refusal("{\"const\": " + deep + "}").empty());
}

TEST(Gbnf, RulesGroupsAndRepetitions) {
  const auto grammar = compile_gbnf(R"(# numbers
root ::= "[" ws ( number ("," ws number)* )? "]"   # a list
number ::= "-"? [0-9]{1,3}
  | "\x41" [^\x00-\x1F"] "\u00e9"
ws ::= [ \t]*
)");
  EXPECT_TRUE(allows(grammar, "[ 12, -3]"));
  EXPECT_TRUE(allows(grammar, "[Axé,1]"));
  EXPECT_TRUE(allows(grammar, "[]"));
  EXPECT_FALSE(allows(grammar, "[1234]"));
  EXPECT_FALSE(allows(grammar, "[1,]"));
  // Lists that call themselves last have no end in sight but that of the text.
  std::string list = "a";
  for (int i = 0; i < 3000; ++i) list += ",a";
  EXPECT_TRUE(allows(compile_gbnf("root ::= \"a\" | \"a,\" root"), list));
}

TEST(Gbnf, NothingMayFollowWhereOnlyEmptyRulesAreLeft) {
  const auto grammar = compile_gbnf("root ::= \"a\" s s\ns ::= t?\nt ::= # nothing\n");
  ASSERT_TRUE(grammar) << grammar.error().message;
  StateTable table(*grammar);
  const auto after = table.next(table.start(), 'a');
  EXPECT_TRUE(table.accepts(after));
  EXPECT_FALSE(table.goes_on(after));
}

TEST(Gbnf, MistakesAreNamedWithTheirLine) {
  const auto message = [](std::string_view text) {
    const auto grammar = compile_gbnf(text);
    return grammar ? "" : grammar.error().message;
  };
  EXPECT_EQ(message("root ::= \"a\"\nroot ::= \"b\""), "the grammar has the rule root for the second time in line 2");
  EXPECT_EQ(message("root ::= other"), "the rule other is used and nowhere defined");
  EXPECT_EQ(message("root ::= a\na ::= b? a \"x\" | \"y\"\nb ::= \"z\""),
            "left recursion: the rule a leads back to itself without a character in between");
  EXPECT_EQ(message("root ::= <[1]>"), "the grammar has a reference to a token, which is not possible here, in line 1");
  for (const char* bad : {"", "x ::= \"a\"", "root ::= \"a", "root ::= (\"a\"", "root ::= \"a\")", "root = \"a\"",
                          "root ::= [b-a]", "root ::= [", "root ::= \"a\"{2,1}", "root ::= \"\\q\"",
                          "root ::= \"\\ud800\"", "root ::= root", "root ::= \"a\" root", "\xFF"}) {
    EXPECT_FALSE(message(bad).empty()) << bad;
  }
}

TEST(Gbnf, AmbiguityCostsNoMoreThanTheTextIsLong) {
  const auto grammar = compile_gbnf("root ::= s\ns ::= \"a\" s s | \"a\" | \"a\" s");
  EXPECT_TRUE(allows(grammar, std::string(60, 'a')));
  EXPECT_FALSE(allows(grammar, std::string(60, 'a') + "b"));
}

}  // namespace
}  // namespace butterfly
