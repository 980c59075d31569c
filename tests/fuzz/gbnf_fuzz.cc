// Any bytes as a grammar in GBNF: refused with a sentence, or a grammar that keeps its promises, in bounded time and
// memory.
#include "butterfly/text/grammar/gbnf.h"
#include "seeds.h"
#include "use_grammar.h"

namespace {

constexpr const char* kSeeds[] = {
    "root ::= \"a\" b* | [^x-z]{2,3} # c\nb ::= (\"\\n\" | root)?\n",
    "root ::= item+\nitem ::= \"(\" item \")\" | .\n  | \"\\x41\\u00e9\"\n",
    "root ::= s s\ns ::= \"a\" s s | \"a\"\n",
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  butterfly::fuzz::write_seeds(*argc, *argv, kSeeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  butterfly::fuzz::use_grammar(butterfly::compile_gbnf(text), text);
  return 0;
}
