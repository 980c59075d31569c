// Any bytes as a tokenizer.json (and, after a line of three dashes, a tokenizer_config.json): refused with a message,
// or a tokenizer that turns texts into ids of its vocabulary and ids into UTF-8, in bounded time.
#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/text/tokenizer.h"
#include "butterfly/text/utf8.h"
#include "seeds.h"

namespace {

constexpr const char* kSeparator = "\n---\n";

constexpr const char* kByteLevel = R"json({
"added_tokens": [{"id": 4, "content": "<|end|>", "special": true, "lstrip": true},
                 {"id": 5, "content": "<tool>", "rstrip": true}],
"normalizer": {"type": "NFC"},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
  {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": false},
  {"type": "Digits", "individual_digits": true},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "A"}}],
  "special_tokens": {"<|end|>": {"ids": [4]}}},
"model": {"type": "BPE", "unk_token": "<|end|>", "ignore_merges": true,
  "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3}, "merges": ["a b"]}})json";

constexpr const char* kSentencePiece = R"json({
"added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
"model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
  "vocab": {"<unk>": 0, "<0x63>": 1, "\u2581": 2, "a": 3, "b": 4, "ab": 5, "\u2581a": 6},
  "merges": [["\u2581", "a"], ["a", "b"]]}})json";

constexpr const char* kConfig = R"json({"bos_token": {"content": "<|end|>"}, "eos_token": "<tool>",
"add_bos_token": true, "chat_template": [{"name": "default", "template": "x"}]})json";

void require(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using butterfly::fuzz::write_seed;
  const std::string folder = butterfly::fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  write_seed(folder, "seed_byte_level", std::string(kByteLevel) + kSeparator + kConfig);
  write_seed(folder, "seed_sentencepiece", kSentencePiece);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find(kSeparator);
  const std::string config = cut == std::string::npos ? "" : input.substr(cut + std::string(kSeparator).size());
  auto vocabulary = read_tokenizer_json(input.substr(0, cut), config);
  if (!vocabulary) {
    require(!vocabulary.error().message.empty());
    return 0;
  }
  const int vocab = vocabulary->size();
  const auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) return 0;
  for (const char* text : {"", " ", "aab ab<tool> b\n\n 12345 <|end|><unk>", "\u00e9c\u4f60 \U0001F642ccc"}) {
    const auto ids = tokenizer->encode(text);
    if (!ids) continue;
    for (TokenId id : *ids) require(id.value >= 0 && id.value < vocab);
    StreamingDetokenizer detokenizer(*tokenizer);
    std::string streamed;
    for (TokenId id : *ids) streamed += detokenizer.push(id);
    streamed += detokenizer.finish();
    require(!find_invalid_utf8(streamed));
  }
  return 0;
}
