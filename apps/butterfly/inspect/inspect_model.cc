// butterfly inspect MODEL: what a model file holds, for people or as JSON.
#include <cstdio>
#include <map>

#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/model/format/chat_settings.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/text/answer/answer_format.h"
#include "butterfly/text/template/chat_template.h"
#include "commands.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

const char* to_string(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kNone:
      return "none";
    case TokenizerKind::kSentencePiece:
      return "sentencepiece";
    case TokenizerKind::kByteBpe:
      return "byte-level bpe";
    case TokenizerKind::kBpe:
      return "bpe";
    case TokenizerKind::kWordPiece:
      return "wordpiece";
    case TokenizerKind::kUnigram:
      return "unigram";
    case TokenizerKind::kWordLevel:
      return "whole words";
    case TokenizerKind::kLongestMatch:
      return "longest match";
  }
  return "?";
}

const char* to_string(PreTokenizer pre_tokenizer) {
  switch (pre_tokenizer) {
    case PreTokenizer::kGpt2:
      return "gpt2";
    case PreTokenizer::kLlama3:
      return "llama3";
    case PreTokenizer::kQwen2:
      return "qwen2";
    case PreTokenizer::kCustom:
      return "custom";
  }
  return "?";
}

const char* to_string(RopeConfig::Scaling scaling) {
  switch (scaling) {
    case RopeConfig::Scaling::kNone:
      return "none";
    case RopeConfig::Scaling::kLinear:
      return "linear";
    case RopeConfig::Scaling::kLlama3:
      return "llama3";
  }
  return "?";
}

Json describe_config(const ModelConfig& config) {
  Json j;
  j["architecture"] = config.architecture;
  j["name"] = config.name;
  j["parameters"] = parameter_count(config);
  j["layers"] = config.layers;
  if (config.encoder_layers > 0) j["encoder_layers"] = config.encoder_layers;
  if (config.output == OutputKind::kHidden) j["output"] = "hidden rows";
  j["model_dim"] = config.model_dim;
  j["heads"] = config.heads;
  j["kv_heads"] = config.kv_heads;
  j["head_dim"] = config.head_dim;
  j["ff_dim"] = config.ff_dim;
  j["vocab"] = config.vocab;
  j["context"] = config.context;
  j["norm"] = config.norm == NormKind::kRms ? "rms" : "layer";
  j["norm_epsilon"] = config.norm_epsilon;
  j["mlp"] = config.mlp == MlpKind::kGated ? "gated" : "plain";
  j["activation"] = config.activation == Activation::kSilu       ? "silu"
                    : config.activation == Activation::kRelu     ? "relu"
                    : config.activation == Activation::kGeluTanh ? "gelu (tanh)"
                                                                 : "gelu (exact)";
  if (config.moe.experts > 0) {
    j["experts"] = config.moe.experts;
    j["experts_used"] = config.moe.experts_used;
    j["expert_ff_dim"] = config.moe.ff_dim;
    j["expert_layers"] = config.expert_layers();
    if (config.moe.shared_ff_dim > 0) j["shared_ff_dim"] = config.moe.shared_ff_dim;
  }
  j["tied_head"] = config.tied_head;
  j["positions"] = config.position == PositionKind::kRope      ? "rope"
                   : config.position == PositionKind::kLearned ? "learned"
                   : config.position == PositionKind::kNone    ? (config.relative.buckets > 0 ? "relative" : "none")
                                                               : "alibi";
  if (config.position == PositionKind::kRope) {
    j["rope_base"] = config.rope.base;
    j["rope_dim"] = config.rope.dim;
    j["rope_scaling"] = config.rope.factors.empty() ? to_string(config.rope.scaling) : "per frequency";
  }
  return j;
}

Json describe_vocabulary(const Vocabulary& vocabulary) {
  const auto id = [](TokenId token) { return token.value >= 0 ? Json(token.value) : Json(nullptr); };
  Json j;
  j["kind"] = to_string(vocabulary.kind);
  if (vocabulary.kind == TokenizerKind::kNone) return j;
  if (vocabulary.kind == TokenizerKind::kByteBpe) j["pre_tokenizer"] = to_string(vocabulary.pre_tokenizer);
  j["tokens"] = vocabulary.size();
  j["bos"] = id(vocabulary.bos);
  j["eos"] = id(vocabulary.eos);
  j["unknown"] = id(vocabulary.unknown);
  j["end_tokens"] = Json::array();
  for (TokenId token : vocabulary.end_tokens) j["end_tokens"].push_back(token.value);
  j["add_bos"] = vocabulary.add_bos;
  j["chat_template"] = !vocabulary.chat_template.empty();
  return j;
}

/// What the files say about conversations.
Json describe_chat(const ChatSettings& settings) {
  Json j;
  j["templates"] = Json::array();
  for (const auto& each : settings.templates) j["templates"].push_back(each.name);
  if (const auto* standard = settings.find("")) {
    j["from"] = standard->origin;
    j["answers"] = to_string(find_answer_format(standard->source));
    const auto parsed = ChatTemplate::parse(standard->source);
    if (!parsed) j["not_usable"] = parsed.error().message;
  }
  j["sampling"] = settings.sampling_origin.empty() ? Json(nullptr) : Json(settings.sampling_origin);
  const auto add = [&](const char* name, const auto& value) {
    if (value) j[name] = *value;
  };
  add("temperature", settings.temperature);
  add("top_k", settings.top_k);
  add("top_p", settings.top_p);
  add("min_p", settings.min_p);
  add("repeat_penalty", settings.repeat_penalty);
  return j;
}

Json describe(const Checkpoint& checkpoint, const ChatSettings& chat, const InspectOptions& options) {
  Json j;
  j["path"] = checkpoint.path;
  j["format"] = checkpoint.format;
  j["model"] = describe_config(checkpoint.config);
  j["tokenizer"] = describe_vocabulary(checkpoint.vocabulary);
  if (checkpoint.vocabulary.kind != TokenizerKind::kNone) j["chat"] = describe_chat(chat);
  std::map<std::string, std::uint64_t> bytes_of_type;
  std::uint64_t bytes = 0;
  const std::vector<WeightInfo> weights = checkpoint.weights->list();
  for (const WeightInfo& weight : weights) {
    bytes_of_type[std::string(to_string(weight.type))] += weight.bytes;
    bytes += weight.bytes;
  }
  j["weights"]["count"] = weights.size();
  j["weights"]["bytes"] = bytes;
  j["weights"]["bytes_of_type"] = bytes_of_type;
  if (!options.tensors) return j;
  for (const WeightInfo& weight : weights) {
    j["tensors"].push_back({{"name", weight.name},
                            {"type", to_string(weight.type)},
                            {"rows", weight.rows},
                            {"cols", weight.cols},
                            {"bytes", weight.bytes}});
  }
  return j;
}

std::string plain(const Json& value) {
  if (value.is_string()) return one_line(value.get<std::string>());
  return value.is_null() ? "none" : dump_json(value);
}

void print_section(const char* title, const Json& section) {
  std::printf("%s\n", title);
  for (const auto& [key, value] : section.items()) std::printf("  %-16s %s\n", key.c_str(), plain(value).c_str());
}

void print_table(const Json& j) {
  std::printf("%s (%s)\n", plain(j["path"]).c_str(), plain(j["format"]).c_str());
  print_section("model", j["model"]);
  print_section("tokenizer", j["tokenizer"]);
  if (j.contains("chat")) print_section("chat", j["chat"]);
  std::printf("weights\n  %-16s %s\n  %-16s %s\n", "count", plain(j["weights"]["count"]).c_str(), "size",
              format_bytes(j["weights"]["bytes"].get<std::uint64_t>()).c_str());
  for (const auto& [type, bytes] : j["weights"]["bytes_of_type"].items()) {
    std::printf("  %-16s %s\n", type.c_str(), format_bytes(bytes.get<std::uint64_t>()).c_str());
  }
  if (!j.contains("tensors")) return;
  std::printf("tensors (rows x columns)\n");
  for (const Json& tensor : j["tensors"]) {
    std::printf("  %-28s %-5s %8s x %-8s %s\n", plain(tensor["name"]).c_str(), plain(tensor["type"]).c_str(),
                plain(tensor["rows"]).c_str(), plain(tensor["cols"]).c_str(),
                format_bytes(tensor["bytes"].get<std::uint64_t>()).c_str());
  }
}

}  // namespace

int inspect_model(const InspectOptions& options) {
  const auto checkpoint = open_checkpoint(options.model);
  if (!checkpoint) return fail(checkpoint.error());
  const auto chat = read_chat_settings(options.model);
  if (!chat) return fail(chat.error());
  const Json j = describe(*checkpoint, *chat, options);
  if (options.json) {
    std::printf("%s\n", dump_json(j, {.indent = 2}).c_str());
  } else {
    print_table(j);
  }
  return kExitOk;
}

}  // namespace butterfly::app
