// Any bytes as a tokenizer.json (and, after a line of three dashes, a tokenizer_config.json): refused with a message,
// or a tokenizer that turns texts into ids of its vocabulary and ids into UTF-8, in bounded time.
#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "seeds.h"
#include "use_tokenizer.h"

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

// Every other component at least once.
constexpr const char* kWordPiece = R"json({
"added_tokens": [{"id": 0, "content": "[UNK]", "special": true}, {"id": 6, "content": "ab", "single_word": true,
  "normalized": true}],
"normalizer": {"type": "Sequence", "normalizers": [{"type": "BertNormalizer", "clean_text": true,
  "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}, {"type": "NFD"}, {"type": "StripAccents"},
  {"type": "Lowercase"}, {"type": "Nmt"}]},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}, {"type": "Whitespace"},
  {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "UnicodeScripts"},
  {"type": "FixedLength", "length": 4}, {"type": "CharDelimiterSplit", "delimiter": "c"}]},
"decoder": {"type": "Sequence", "decoders": [{"type": "WordPiece", "prefix": "##", "cleanup": true},
  {"type": "CTC", "pad_token": "[UNK]", "word_delimiter_token": "|", "cleanup": true}]},
"post_processor": {"type": "BertProcessing", "sep": ["[UNK]", 0], "cls": ["[UNK]", 0]},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
  "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "b": 3, "##b": 4, "1": 5}}})json";

constexpr const char* kUnigram = R"json({
"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "NFKD"},
  {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Append", "append": "b"},
  {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": true},
"decoder": {"type": "Sequence", "decoders": [{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
  {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 2},
  {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "x"}]},
"post_processor": {"type": "RobertaProcessing", "sep": ["b", 3], "cls": ["a", 2]},
"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
  "vocab": [["<unk>", 0], ["\u2581", -2.5], ["a", -3], ["b", -3], ["\u2581a", -1], ["<0x63>", -9]]}})json";

constexpr const char* kWords = R"json({
"normalizer": {"type": "ByteLevel"},
"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithPrevious", "invert": true},
"decoder": null,
"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2}}})json";

constexpr const char* kSuffixes = R"json({
"pre_tokenizer": {"type": "Digits", "individual_digits": false},
"decoder": {"type": "BPEDecoder", "suffix": "</w>"},
"model": {"type": "BPE", "unk_token": "<unk>", "continuing_subword_prefix": "@", "end_of_word_suffix": "</w>",
  "vocab": {"<unk>": 0, "a": 1, "@b</w>": 2, "ab</w>": 3, "@a": 4}, "merges": ["a @b</w>"]}})json";

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using butterfly::fuzz::write_seed;
  const std::string folder = butterfly::fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  write_seed(folder, "seed_byte_level", std::string(kByteLevel) + kSeparator + kConfig);
  write_seed(folder, "seed_sentencepiece", kSentencePiece);
  write_seed(folder, "seed_word_piece", kWordPiece);
  write_seed(folder, "seed_unigram", kUnigram);
  write_seed(folder, "seed_words", kWords);
  write_seed(folder, "seed_suffixes", kSuffixes);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find(kSeparator);
  const std::string config = cut == std::string::npos ? "" : input.substr(cut + std::string(kSeparator).size());
  fuzz::use_tokenizer(read_tokenizer_json(input.substr(0, cut), config));
  return 0;
}
