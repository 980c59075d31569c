// Any bytes as a file of tiktoken's ranks (the first line is its name, what follows a line of three dashes a
// tokenizer_config.json): refused with a message, or a tokenizer that turns texts into ids of its vocabulary.
#include "butterfly/model/format/tokenizer/tiktoken.h"
#include "seeds.h"
#include "use_tokenizer.h"

namespace {

constexpr const char* kRanks = "IQ== 0\nYQ== 1\nYg== 2\nYWI= 3\nIA== 4\nIGE= 5\n";
constexpr const char* kConfig = R"json({"added_tokens_decoder": {"6": {"content": "<tool>"},
"7": {"content": "<|end|>", "special": true, "lstrip": true}}, "bos_token": "<|end|>", "add_bos_token": true})json";
constexpr const char* kDashes = "\n---\n";

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string folder = butterfly::fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  for (const char* name : {"o200k", "cl100k", "r50k", "qwen", "kimi", "llama-3"}) {
    butterfly::fuzz::write_seed(folder, std::string("seed_") + name,
                                std::string(name) + "\n" + kRanks + kDashes + kConfig);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t line = input.find('\n');
  if (line == std::string::npos) return 0;
  const std::size_t cut = input.find(kDashes, line);
  const std::string config = cut == std::string::npos ? "" : input.substr(cut + std::string_view(kDashes).size());
  const std::string ranks = input.substr(line + 1, cut == std::string::npos ? cut : cut - line - 1);
  (void)butterfly::looks_like_tiktoken(ranks);
  butterfly::fuzz::use_tokenizer(butterfly::read_tiktoken(ranks, input.substr(0, line), config));
  return 0;
}
