#include "butterfly/model/format/hugging_face/tokenizer_json_pipeline.h"

#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/base/printable.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

using nlohmann::json;

tl::unexpected<Error> unsupported(const char* what, const std::string& name) {
  return make_error(ErrorCode::kUnsupported, "tokenizer.json: the {} \"{}\" is not supported", what, printable(name));
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

class Pipeline {
 public:
  Status read_normalizer(const json& step);
  Status read_pre_tokenizer(const json& step);
  Status apply(Vocabulary& vocabulary) const;

 private:
  Status read_steps(const json& steps, const char* what, Status (Pipeline::*read_step)(const json&));
  Status read_split(const json& step);
  Status read_metaspace(const json& step);

  bool byte_level_ = false;
  bool visible_spaces_ = false;  // spaces become U+2581
  bool space_prefix_ = false;
  bool space_prefix_once_ = false;
  std::vector<std::string> patterns_;
};

Status Pipeline::read_steps(const json& steps, const char* what, Status (Pipeline::*read_step)(const json&)) {
  if (!steps.is_array()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: a sequence of {}s is {}, expected an array", what,
                      steps.type_name());
  }
  for (const json& step : steps) BF_TRY((this->*read_step)(step));
  return {};
}

Status Pipeline::read_normalizer(const json& step) {
  if (step.is_null()) return {};
  const std::string type = json_string(step, "type");
  if (type == "Sequence") {
    return read_steps(json_member(step, "normalizers"), "normalizer", &Pipeline::read_normalizer);
  }
  if (type == "NFC") return {};
  if (type == "Prepend" && json_string(step, "prepend") == kVisibleSpace) {
    space_prefix_ = true;
    return {};
  }
  if (type == "Replace" && json_string(json_member(step, "pattern"), "String") == " " &&
      json_string(step, "content") == kVisibleSpace) {
    visible_spaces_ = true;
    return {};
  }
  return unsupported("normalizer", type);
}

Status Pipeline::read_pre_tokenizer(const json& step) {
  if (step.is_null()) return {};
  const std::string type = json_string(step, "type");
  if (type == "Sequence") {
    return read_steps(json_member(step, "pretokenizers"), "pre-tokenizer", &Pipeline::read_pre_tokenizer);
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    space_prefix_ = !step.contains("add_prefix_space") || json_bool(step, "add_prefix_space");
    const bool uses_pattern = !step.contains("use_regex") || json_bool(step, "use_regex");
    if (uses_pattern) patterns_.emplace_back(pre_tokenizer_pattern(PreTokenizer::kGpt2));
    return {};
  }
  if (type == "Digits") {
    patterns_.emplace_back(json_bool(step, "individual_digits") ? R"(\p{N})" : R"(\p{N}+)");
    return {};
  }
  if (type == "Split") return read_split(step);
  if (type == "Metaspace") return read_metaspace(step);
  return unsupported("pre-tokenizer", type);
}

Status Pipeline::read_split(const json& step) {
  const std::string behavior = json_string(step, "behavior");
  // Removed and inverted keeps the matches and drops what no alternative matches; published patterns match everything.
  const bool keeps_all = behavior == "Isolated" || (behavior == "Removed" && json_bool(step, "invert"));
  if (!keeps_all) return unsupported("Split behavior", behavior);
  const json& pattern = json_member(step, "pattern");
  const std::string expression = json_string(pattern, "Regex");
  const std::string literal = json_string(pattern, "String");
  if (expression.empty() == literal.empty()) {
    return make_error(ErrorCode::kBadData, "tokenizer.json: a Split has neither a Regex nor a String as pattern");
  }
  patterns_.push_back(expression.empty() ? quoted(literal) : expression);
  return {};
}

Status Pipeline::read_metaspace(const json& step) {
  const std::string replacement = json_string(step, "replacement");
  if (replacement != kVisibleSpace) return unsupported("Metaspace replacement", replacement);
  visible_spaces_ = true;
  const std::string scheme = json_string(step, "prepend_scheme");
  if (scheme.empty()) {
    space_prefix_ = json_bool(step, "add_prefix_space");
  } else if (scheme == "always" || scheme == "first" || scheme == "never") {
    space_prefix_ = scheme != "never";
    space_prefix_once_ = scheme == "first";
  } else {
    return unsupported("Metaspace prepend_scheme", scheme);
  }
  return {};
}

Status Pipeline::apply(Vocabulary& vocabulary) const {
  vocabulary.add_space_prefix = space_prefix_;
  if (byte_level_ && !visible_spaces_) {
    vocabulary.kind = TokenizerKind::kByteBpe;
    vocabulary.pre_tokenizer = PreTokenizer::kCustom;
    if (patterns_.size() == 1) {
      for (PreTokenizer named : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2}) {
        if (patterns_[0] == pre_tokenizer_pattern(named)) vocabulary.pre_tokenizer = named;
      }
    }
    if (vocabulary.pre_tokenizer != PreTokenizer::kCustom) return {};
    vocabulary.custom_pattern = patterns_.empty() ? "(?s).+" : patterns_[0];
    if (!patterns_.empty()) vocabulary.further_patterns.assign(patterns_.begin() + 1, patterns_.end());
    return {};
  }
  if (visible_spaces_ && !byte_level_ && patterns_.empty()) {
    vocabulary.kind = TokenizerKind::kSentencePiece;
    vocabulary.space_prefix_once = space_prefix_once_;
    return {};
  }
  return make_error(
      ErrorCode::kUnsupported,
      "tokenizer.json: supported are byte-level pre-tokenizers, or spaces written as U+2581; this one has {}",
      byte_level_ ? "both" : "neither, or a Split beside them");
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
  const json& value = json_member(object, key);
  return value.is_boolean() && value.get<bool>();
}

Status read_tokenizer_pipeline(const json& root, Vocabulary& vocabulary) {
  Pipeline pipeline;
  BF_TRY(pipeline.read_normalizer(json_member(root, "normalizer")));
  BF_TRY(pipeline.read_pre_tokenizer(json_member(root, "pre_tokenizer")));
  return pipeline.apply(vocabulary);
}

}  // namespace butterfly
