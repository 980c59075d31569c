// Any bytes as a regular expression: refused with a sentence, or a grammar that keeps its promises, in bounded time and
// memory.
#include "butterfly/text/grammar/regex.h"
#include "seeds.h"
#include "use_grammar.h"

namespace {

constexpr const char* kSeeds[] = {
    "a(b|cd)*e{2,5}?", "[^a-z\\d\\]]+|\\u00e9\\x41\\.", "(?:x|(?<n>y)){40}\\s\\W\\S.", "^$|^ab?$", "((a*)*b{0,3}){33}",
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  butterfly::fuzz::write_seeds(*argc, *argv, kSeeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  butterfly::fuzz::use_grammar(butterfly::compile_regex(text), text);
  return 0;
}
