#include "butterfly/model/format/tokenizer/tokenizer_json_steps.h"

#include <algorithm>
#include <array>
#include <utility>

#include "butterfly/base/json.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/tokenizer/base64.h"
#include "butterfly/text/steps/published_patterns.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

using nlohmann::json;

tl::unexpected<Error> unsupported(const char* what, const std::string& name) {
  return make_error(ErrorCode::kUnsupported, "tokenizer.json: the {} \"{}\" is not supported", what, printable(name));
}

/// Calls `read(step)` for each step, in order, of what may be a sequence of sequences.
template <typename Read>
Status for_each_step(const json& step, const char* what, const char* members, const Read& read) {
  if (step.is_null()) return {};
  if (json_string(step, "type") != "Sequence") return read(step);
  const json& steps = json_member(step, members);
  if (!steps.is_array()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: a sequence of {}s is {}, expected an array", what,
                      steps.type_name());
  }
  for (const json& inner : steps) BF_TRY(for_each_step(inner, what, members, read));
  return {};
}

/// {"Regex": "..."} or {"String": "..."}.
struct JsonPattern {
  std::string text;
  bool is_regex = false;
};
Result<JsonPattern> read_pattern(const json& step, const char* what) {
  const json& pattern = json_member(step, "pattern");
  std::string expression = json_string(pattern, "Regex");
  std::string literal = json_string(pattern, "String");
  if (expression.empty() == literal.empty()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: a {} has neither a Regex nor a String as pattern", what);
  }
  const bool is_regex = !expression.empty();
  return JsonPattern{is_regex ? std::move(expression) : std::move(literal), is_regex};
}

Status read_bert_normalizer(const json& json_step, NormalizerStep& step) {
  step.kind = NormalizerStep::Kind::kBert;
  step.clean = json_bool_or(json_step, "clean_text", true);
  step.han = json_bool_or(json_step, "handle_chinese_chars", true);
  step.lowercase = json_bool_or(json_step, "lowercase", true);
  step.strip_accents = json_bool_or(json_step, "strip_accents", step.lowercase);
  return {};
}

Status read_normalizer(const json& json_step, std::vector<NormalizerStep>& steps) {
  using Kind = NormalizerStep::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 8> kPlain{{{"NFC", Kind::kNfc},
                                                                            {"NFD", Kind::kNfd},
                                                                            {"NFKC", Kind::kNfkc},
                                                                            {"NFKD", Kind::kNfkd},
                                                                            {"Lowercase", Kind::kLowercase},
                                                                            {"StripAccents", Kind::kStripAccents},
                                                                            {"Nmt", Kind::kNmt},
                                                                            {"ByteLevel", Kind::kByteLevel}}};
  const std::string type = json_string(json_step, "type");
  NormalizerStep step;
  if (const auto* plain = std::ranges::find(kPlain, type, &std::pair<std::string_view, Kind>::first);
      plain != kPlain.end()) {
    step.kind = plain->second;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = json_bool_or(json_step, "strip_left", true);
    step.right = json_bool_or(json_step, "strip_right", true);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    BF_ASSIGN_OR_RETURN(JsonPattern pattern, read_pattern(json_step, "Replace"));
    step.pattern = std::move(pattern.text);
    step.is_regex = pattern.is_regex;
    step.content = json_string(json_step, "content");
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = json_string(json_step, "prepend");
  } else if (type == "Append") {
    step.kind = Kind::kAppend;
    step.content = json_string(json_step, "append");
  } else if (type == "Precompiled") {
    step.kind = Kind::kPrecompiled;
    BF_ASSIGN_OR_RETURN(step.content, decode_base64(json_string(json_step, "precompiled_charsmap")));
  } else if (type == "BertNormalizer") {
    BF_TRY(read_bert_normalizer(json_step, step));
  } else {
    return unsupported("normalizer", type);
  }
  steps.push_back(std::move(step));
  return {};
}

Result<SplitBehavior> read_behavior(const json& step, SplitBehavior fallback) {
  if (json_member(step, "behavior").is_null()) return fallback;
  const std::string name = json_string(step, "behavior");
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported("Split behavior", name);
}

Result<PreTokenizerStep::Prepend> read_prepend(const json& step) {
  using Prepend = PreTokenizerStep::Prepend;
  const std::string scheme = json_string(step, "prepend_scheme");
  if (scheme.empty()) return json_bool_or(step, "add_prefix_space", true) ? Prepend::kAlways : Prepend::kNever;
  if (scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme == "never") return Prepend::kNever;
  return unsupported("Metaspace prepend_scheme", scheme);
}

Result<std::string> read_replacement(const json& step) {
  const json& replacement = json_member(step, "replacement");
  if (replacement.is_null()) return std::string(kVisibleSpace);
  std::string text = json_string(step, "replacement");
  if (text.empty()) return unsupported("Metaspace replacement", dump_json(replacement));
  return text;
}

Status read_split(const json& json_step, PreTokenizerStep& step) {
  BF_ASSIGN_OR_RETURN(JsonPattern pattern, read_pattern(json_step, "Split"));
  step.pattern = std::move(pattern.text);
  step.is_regex = pattern.is_regex;
  step.invert = json_bool(json_step, "invert");
  BF_ASSIGN_OR_RETURN(step.behavior, read_behavior(json_step, SplitBehavior::kIsolated));
  return {};
}

Status read_metaspace(const json& json_step, PreTokenizerStep& step) {
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  step.is_regex = false;
  BF_ASSIGN_OR_RETURN(step.pattern, read_replacement(json_step));
  BF_ASSIGN_OR_RETURN(step.prepend, read_prepend(json_step));
  step.cut = json_bool_or(json_step, "split", true);
  return {};
}

void read_byte_level(const json& json_step, std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  if (json_bool_or(json_step, "add_prefix_space", true)) steps.push_back({.kind = Kind::kSpacePrefix});
  if (json_bool_or(json_step, "use_regex", true)) {
    steps.push_back({.kind = Kind::kSplit, .pattern = std::string(kGpt2Pattern)});
  }
  steps.push_back({.kind = Kind::kByteLevel});
}

Status read_pre_tokenizer(const json& json_step, std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = json_string(json_step, "type");
  PreTokenizerStep step;
  if (type == "ByteLevel") {
    read_byte_level(json_step, steps);
    return {};
  }
  if (type == "Split") {
    BF_TRY(read_split(json_step, step));
  } else if (type == "Metaspace") {
    BF_TRY(read_metaspace(json_step, step));
  } else if (type == "Whitespace") {
    step = {.pattern = R"(\w+|[^\w\s]+)", .behavior = SplitBehavior::kRemoved, .invert = true};
    step.dialect = PatternDialect::kRust;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::kBert;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    BF_ASSIGN_OR_RETURN(step.behavior, read_behavior(json_step, SplitBehavior::kIsolated));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.individual = json_bool(json_step, "individual_digits");
  } else if (type == "CharDelimiterSplit") {
    step = {.pattern = json_string(json_step, "delimiter"), .is_regex = false, .behavior = SplitBehavior::kRemoved};
    if (step.pattern.empty()) return unsupported("CharDelimiterSplit delimiter", "");
  } else if (type == "UnicodeScripts") {
    step.kind = Kind::kUnicodeScripts;
  } else if (type == "FixedLength") {
    step.kind = Kind::kFixedLength;
    BF_ASSIGN_OR_RETURN(step.length, json_count(json_step, "length", 5, std::size_t{1} << 30));
  } else {
    return unsupported("pre-tokenizer", type);
  }
  steps.push_back(std::move(step));
  return {};
}

Status read_decoder(const json& json_step, std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  const std::string type = json_string(json_step, "type");
  const auto string_or = [&](const char* key, const char* fallback) {
    return json_member(json_step, key).is_string() ? json_string(json_step, key) : std::string(fallback);
  };
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "BPEDecoder") {
    step = {.kind = Kind::kBpe, .pattern = string_or("suffix", "</w>")};
  } else if (type == "WordPiece") {
    step = {.kind = Kind::kWordPiece, .pattern = string_or("prefix", "##")};
    step.cleanup = json_bool_or(json_step, "cleanup", true);
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    BF_ASSIGN_OR_RETURN(step.pattern, read_replacement(json_step));
    BF_ASSIGN_OR_RETURN(const auto prepend, read_prepend(json_step));
    step.prepend = prepend != PreTokenizerStep::Prepend::kNever;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Strip") {
    constexpr std::size_t kMost = 1 << 20;
    step = {.kind = Kind::kStrip, .content = string_or("content", " ")};
    BF_ASSIGN_OR_RETURN(step.left, json_count(json_step, "start", 0, kMost));
    BF_ASSIGN_OR_RETURN(step.right, json_count(json_step, "stop", 0, kMost));
  } else if (type == "Replace") {
    BF_ASSIGN_OR_RETURN(JsonPattern pattern, read_pattern(json_step, "Replace"));
    step = {.kind = Kind::kReplace, .pattern = std::move(pattern.text), .is_regex = pattern.is_regex};
    step.content = json_string(json_step, "content");
  } else if (type == "CTC") {
    step = {.kind = Kind::kCtc, .pattern = string_or("pad_token", "<pad>")};
    step.content = string_or("word_delimiter_token", "|");
    step.cleanup = json_bool_or(json_step, "cleanup", true);
  } else {
    return unsupported("decoder", type);
  }
  steps.push_back(std::move(step));
  return {};
}

/// `text` as a regular expression that matches just it.
std::string quoted(const std::string& text) {
  std::string result;
  for (char c : text) {
    const bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
    if (!word) result.push_back('\\');
    result.push_back(c);
  }
  return result;
}

/// The step as an expression whose matches stand alone and which drops nothing; empty where it is none.
std::string isolating_pattern(const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  if (step.kind == Kind::kDigits) return step.individual ? R"(\p{N})" : R"(\p{N}+)";
  if (step.kind != Kind::kSplit || step.dialect != PatternDialect::kOniguruma) return {};
  const bool isolated = step.behavior == SplitBehavior::kIsolated;
  // Removed and inverted keeps the matches and drops what no alternative matches: published patterns match all.
  const bool kept = step.behavior == SplitBehavior::kRemoved && step.invert && !linear_pattern(step.pattern).empty();
  if (!isolated && !kept) return {};
  return step.is_regex ? step.pattern : quoted(step.pattern);
}

bool simplify_byte_level(Vocabulary& vocabulary) {
  using Kind = PreTokenizerStep::Kind;
  const auto& steps = vocabulary.pre_tokenizers;
  const auto& decoders = vocabulary.decoders;
  const bool joined = decoders.size() == 1 && (decoders[0].kind == DecoderStep::Kind::kByteLevel ||
                                               decoders[0].kind == DecoderStep::Kind::kJoinSpaces);
  if (steps.empty() || steps.back().kind != Kind::kByteLevel || !joined || vocabulary.byte_fallback) return false;
  const bool space = steps.front().kind == Kind::kSpacePrefix;
  std::vector<std::string> patterns;
  for (std::size_t i = space ? 1 : 0; i + 1 < steps.size(); ++i) {
    patterns.push_back(isolating_pattern(steps[i]));
    if (patterns.back().empty()) return false;
  }
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.add_space_prefix = space;
  vocabulary.pre_tokenizer = PreTokenizer::kCustom;
  for (const NamedPreTokenizer& named : named_pre_tokenizers()) {
    if (std::ranges::equal(named.patterns(), patterns) && !named.visible_spaces &&
        vocabulary.pre_tokenizer_name.empty()) {
      vocabulary.pre_tokenizer_name = named.name;
    }
  }
  if (patterns.size() == 1) {
    for (PreTokenizer named : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2}) {
      if (patterns[0] == pre_tokenizer_pattern(named)) vocabulary.pre_tokenizer = named;
    }
  }
  if (vocabulary.pre_tokenizer == PreTokenizer::kCustom) {
    vocabulary.custom_pattern = patterns.empty() ? "(?s).+" : patterns[0];
    if (!patterns.empty()) vocabulary.further_patterns.assign(patterns.begin() + 1, patterns.end());
  }
  return true;
}

/// Whether a piece has a visible space that is not its first character: then cutting in front of each matters.
bool has_inner_spaces(const Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.types[id] != TokenType::kNormal) continue;
    if (vocabulary.pieces[id].find(kVisibleSpace, 1) != std::string::npos) return true;
  }
  return false;
}

bool decodes_as_sentencepiece(const Vocabulary& vocabulary) {
  using Kind = DecoderStep::Kind;
  bool strips = false;
  bool bytes = !vocabulary.byte_fallback;
  for (const DecoderStep& step : vocabulary.decoders) {
    bytes = bytes || step.kind == Kind::kByteFallback;
    const bool spaces =
        step.kind == Kind::kReplace && !step.is_regex && step.pattern == kVisibleSpace && step.content == " ";
    const bool strip = step.kind == Kind::kStrip && step.content == " " && step.left == 1 && step.right == 0;
    const bool metaspace = step.kind == Kind::kMetaspace && step.pattern == kVisibleSpace;
    strips = strips || strip || (metaspace && step.prepend);
    const bool known = spaces || strip || metaspace || step.kind == Kind::kFuse || step.kind == Kind::kByteFallback;
    if (!known && step.kind != Kind::kJoinSpaces) return false;
  }
  const bool none = vocabulary.decoders.size() == 1 && vocabulary.decoders[0].kind == Kind::kJoinSpaces;
  return none || (bytes && strips == vocabulary.add_space_prefix);
}

bool simplify_sentencepiece(Vocabulary& vocabulary) {
  using Kind = PreTokenizerStep::Kind;
  using Prepend = PreTokenizerStep::Prepend;
  const auto& steps = vocabulary.pre_tokenizers;
  Vocabulary simple;  // of its fields, those that say what happens to spaces
  bool spaces = false;
  for (const NormalizerStep& step : vocabulary.normalizers) {
    const bool prepends = step.kind == NormalizerStep::Kind::kPrepend && step.content == kVisibleSpace;
    const bool replaces = step.kind == NormalizerStep::Kind::kReplace && !step.is_regex && step.pattern == " " &&
                          step.content == kVisibleSpace;
    if (!prepends && !replaces) return false;
    simple.add_space_prefix = simple.add_space_prefix || prepends;
    spaces = spaces || replaces;
  }
  if (steps.size() == 1 && steps[0].kind == Kind::kMetaspace && steps[0].pattern == kVisibleSpace &&
      vocabulary.normalizers.empty()) {
    if (steps[0].cut && has_inner_spaces(vocabulary)) return false;
    spaces = true;
    simple.add_space_prefix = steps[0].prepend != Prepend::kNever;
    simple.space_prefix_once = steps[0].prepend == Prepend::kFirst;
    simple.space_prefix_if_none = true;
  } else if (!steps.empty()) {
    return false;
  }
  simple.decoders = vocabulary.decoders;
  simple.byte_fallback = vocabulary.byte_fallback;
  const bool missing = vocabulary.unknown.value < 0 && vocabulary.drops_unknown && !vocabulary.byte_fallback;
  if (!spaces || !vocabulary.normalized.empty() || vocabulary.ignore_merges || missing ||
      !decodes_as_sentencepiece(simple))
    return false;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  vocabulary.add_space_prefix = simple.add_space_prefix;
  vocabulary.space_prefix_once = simple.space_prefix_once;
  vocabulary.space_prefix_if_none = simple.space_prefix_if_none;
  vocabulary.normalizers.clear();
  return true;
}

}  // namespace

const json& json_member(const json& object, const char* key) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string json_string(const json& object, const char* key) {
  const json& value = json_member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool json_bool(const json& object, const char* key) {
  return json_bool_or(object, key, false);
}

bool json_bool_or(const json& object, const char* key, bool fallback) {
  const json& value = json_member(object, key);
  return value.is_boolean() ? value.get<bool>() : fallback;
}

Result<std::size_t> json_count(const json& object, const char* key, std::size_t fallback, std::size_t most) {
  const json& value = json_member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: {} is {}, expected 0 to {}", key,
                      printable(dump_json(value)), most);
  }
  return value.get<std::size_t>();
}

Result<std::vector<NormalizerStep>> read_normalizers(const json& normalizer) {
  std::vector<NormalizerStep> steps;
  BF_TRY(for_each_step(normalizer, "normalizer", "normalizers",
                       [&](const json& step) { return read_normalizer(step, steps); }));
  return steps;
}

Result<std::vector<PreTokenizerStep>> read_pre_tokenizers(const json& pre_tokenizer) {
  std::vector<PreTokenizerStep> steps;
  BF_TRY(for_each_step(pre_tokenizer, "pre-tokenizer", "pretokenizers",
                       [&](const json& step) { return read_pre_tokenizer(step, steps); }));
  return steps;
}

Result<std::vector<DecoderStep>> read_decoders(const json& decoder) {
  std::vector<DecoderStep> steps;
  if (decoder.is_null()) steps.push_back({.kind = DecoderStep::Kind::kJoinSpaces});
  BF_TRY(for_each_step(decoder, "decoder", "decoders", [&](const json& step) { return read_decoder(step, steps); }));
  return steps;
}

void simplify_kind(Vocabulary& vocabulary) {
  const bool affixes = !vocabulary.continuing_prefix.empty() || !vocabulary.word_suffix.empty();
  if (vocabulary.kind != TokenizerKind::kBpe || affixes) return;
  const bool composed =
      vocabulary.normalizers.empty() ||
      (vocabulary.normalizers.size() == 1 && vocabulary.normalizers[0].kind == NormalizerStep::Kind::kNfc);
  if (!(composed && simplify_byte_level(vocabulary)) && !simplify_sentencepiece(vocabulary)) return;
  vocabulary.pre_tokenizers.clear();
  vocabulary.decoders.clear();
}

}  // namespace butterfly
