// Any bytes as a JSON schema: refused with a sentence, or a grammar that keeps its promises, in bounded time and
// memory.
#include "butterfly/text/grammar/json_schema.h"
#include "seeds.h"
#include "use_grammar.h"

namespace {

constexpr const char* kSeeds[] = {
    R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"$ref": "#"}}, "required": ["a"]})",
    R"({"anyOf": [{"enum": ["x", 1, {"y": []}]}, {"type": ["integer", "null"], "minimum": -5, "exclusiveMaximum": 1.5e2}]})",
    R"({"type": "array", "items": {"type": "number", "multipleOf": 3}, "minItems": 1, "maxItems": 40})",
    R"({"type": "string", "pattern": "^[a-z]+(b|c){2,}$"})",
    R"({"additionalProperties": {"format": "ipv6"}, "properties": {"k": true}, "$defs": {"n": {"const": null}}})",
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  butterfly::fuzz::write_seeds(*argc, *argv, kSeeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  butterfly::fuzz::use_grammar(butterfly::compile_json_schema_text(text), text);
  return 0;
}
