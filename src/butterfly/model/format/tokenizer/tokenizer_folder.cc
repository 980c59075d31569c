#include "butterfly/model/format/tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/model/format/tokenizer/sentencepiece_model.h"
#include "butterfly/model/format/tokenizer/tiktoken.h"
#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_steps.h"
#include "butterfly/text/steps/published_patterns.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kTokenizerBytesMax = std::size_t{256} << 20;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

/// vocab.json and merges.txt are the model of a tokenizer.json; what is around it follows from the family.
Result<Vocabulary> read_vocabulary_and_merges(const std::string& vocabulary, const std::string& merges,
                                              const std::string& config) {
  BF_ASSIGN_OR_RETURN(json pieces, parse_tokenizer_object(vocabulary, "vocab.json"));
  json options = json::object();
  if (!config.empty()) {
    BF_ASSIGN_OR_RETURN(options, parse_tokenizer_object(config, "tokenizer_config.json"));
  }
  constexpr std::size_t kQwen2Pieces = 151'643;
  const std::string name = json_string(options, "tokenizer_class");
  const bool qwen = name.empty() ? pieces.size() == kQwen2Pieces : name.starts_with("Qwen2");
  json ranked = json::array();
  for (std::string& line : lines_of(merges)) {
    if (!line.empty() && !line.starts_with("#version")) ranked.push_back(std::move(line));
  }
  json added = json::array();
  for (const auto& [id, token] : json_member(options, "added_tokens_decoder").items()) {
    json entry = token;
    const bool digits = !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!entry.is_object() || !digits) continue;
    entry["id"] = std::stoul(id);
    added.push_back(std::move(entry));
  }
  if (added.empty() && pieces.contains("<|endoftext|>")) {
    added.push_back({{"id", pieces["<|endoftext|>"]}, {"content", "<|endoftext|>"}, {"special", true}});
  }
  const json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", json_bool(options, "add_prefix_space")}, {"use_regex", !qwen}};
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", kQwen2Pattern}}}, {"behavior", "Isolated"}};
  json root = {{"added_tokens", std::move(added)},
               {"pre_tokenizer", level},
               {"decoder", {{"type", "ByteLevel"}}},
               {"model", {{"type", "BPE"}, {"vocab", std::move(pieces)}, {"merges", std::move(ranked)}}}};
  if (qwen) root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, level}}};
  if (qwen) root["normalizer"] = {{"type", "NFC"}};
  return read_tokenizer_json(dump_json(root), config);
}

/// vocab.txt is BERT's: a piece on each line.
Result<Vocabulary> read_word_pieces(const std::string& text, const std::string& config) {
  json options = json::object();
  if (!config.empty()) {
    BF_ASSIGN_OR_RETURN(options, parse_tokenizer_object(config, "tokenizer_config.json"));
  }
  json pieces = json::object();
  std::size_t id = 0;
  for (const std::string& piece : lines_of(text)) pieces[piece] = id++;
  json added = json::array();
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (pieces.contains(name)) added.push_back({{"id", pieces[name]}, {"content", name}, {"special", true}});
  }
  json root = {{"added_tokens", std::move(added)},
               {"normalizer",
                {{"type", "BertNormalizer"},
                 {"lowercase", json_bool_or(options, "do_lower_case", true)},
                 {"handle_chinese_chars", json_bool_or(options, "tokenize_chinese_chars", true)},
                 {"strip_accents", json_member(options, "strip_accents")}}},
               {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
               {"decoder", {{"type", "WordPiece"}}}};
  if (pieces.contains("[CLS]") && pieces.contains("[SEP]")) {
    root["post_processor"] = {
        {"type", "BertProcessing"}, {"cls", {"[CLS]", pieces["[CLS]"]}}, {"sep", {"[SEP]", pieces["[SEP]"]}}};
  }
  root["model"] = {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", std::move(pieces)}};
  return read_tokenizer_json(dump_json(root), config);
}

/// The first file of a directory that is a tokenizer; empty where there is none.
fs::path tokenizer_in(const fs::path& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (is_file(directory / name)) return directory / name;
  }
  std::error_code error;
  std::vector<fs::path> ranks;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".tiktoken" || entry->path().filename() == "tiktoken.model") {
      ranks.push_back(entry->path());
    }
  }
  if (!ranks.empty()) return *std::ranges::min_element(ranks);
  if (is_file(directory / "vocab.json") && is_file(directory / "merges.txt")) return directory / "vocab.json";
  return is_file(directory / "vocab.txt") ? directory / "vocab.txt" : fs::path();
}

Result<Vocabulary> read_by_content(const fs::path& path, const std::string& bytes, const std::string& config) {
  if (path.extension() == ".txt") return read_word_pieces(bytes, config);
  const fs::path merges = path.parent_path() / "merges.txt";
  if (path.filename() == "vocab.json" && is_file(merges)) {
    BF_ASSIGN_OR_RETURN(const std::string ranked, read_file(merges.string(), kTokenizerBytesMax));
    return read_vocabulary_and_merges(bytes, ranked, config);
  }
  if (path.extension() == ".json") return read_tokenizer_json(bytes, config);
  if (looks_like_sentencepiece(bytes)) return read_sentencepiece_model(bytes, config);
  std::error_code ignored;
  const fs::path whole = fs::absolute(path, ignored);
  return read_tiktoken(bytes, whole.parent_path().filename().string() + "/" + whole.filename().string(), config);
}

}  // namespace

Result<Vocabulary> read_tokenizer_file(const std::string& path) {
  const fs::path place(path);
  BF_ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kTokenizerBytesMax));
  const fs::path beside = place.parent_path() / "tokenizer_config.json";
  std::string config;
  if (is_file(beside)) {
    BF_ASSIGN_OR_RETURN(config, read_file(beside.string(), kTokenizerBytesMax));
  }
  auto vocabulary = read_by_content(place, bytes, config);
  if (!vocabulary) return make_error(vocabulary.error().code, "{}: {}", path, vocabulary.error().message);
  return vocabulary;
}

bool has_tokenizer(const std::string& directory) {
  return !tokenizer_in(directory).empty();
}

Result<Vocabulary> read_tokenizer_folder(const std::string& directory) {
  const fs::path path = tokenizer_in(directory);
  if (path.empty()) return Vocabulary{};
  return read_tokenizer_file(path.string());
}

}  // namespace butterfly
