#include "butterfly/model/format/gguf/gguf_families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "butterfly/model/format/gguf/gguf_encoders.h"
#include "butterfly/model/format/gguf/gguf_latent.h"
#include "butterfly/model/format/gguf/gguf_rope.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {
namespace {

constexpr int kAllLayersWindowed = 1;

/// What the name of an architecture stands for.
struct GgufFamily {
  std::string_view name;
  NormKind norm = NormKind::kRms;
  NormPlace place = NormPlace::kBefore;
  MlpKind mlp = MlpKind::kGated;
  Activation activation = Activation::kSilu;
  PositionKind position = PositionKind::kRope;
  RopePairs pairs = RopePairs::kHalves;
  QkNorm qk_norm = QkNorm::kNone;
  bool parallel = false;
  bool shared_norm = false;
  int full_each =
      kAllLayersWindowed;  // one layer in this number, the last of them, sees all keys; 1: windows are of all layers
  bool rotates_apart = false;  // layers with a window have a base of their own
  bool scales_embedding = false;
  GgufFusion fusion{};
};
constexpr GgufFamily kGgufFamilies[] = {
    {.name = "llama", .pairs = RopePairs::kAdjacent},
    {.name = "qwen2"},
    {.name = "gpt2",
     .norm = NormKind::kLayer,
     .mlp = MlpKind::kPlain,
     .activation = Activation::kGeluTanh,
     .position = PositionKind::kLearned,
     .pairs = RopePairs::kAdjacent,
     .fusion = {.qkv = true}},
    {.name = "qwen3", .qk_norm = QkNorm::kHead},
    {.name = "qwen2moe"},
    {.name = "qwen3moe", .qk_norm = QkNorm::kHead},
    {.name = "olmoe", .qk_norm = QkNorm::kWidth},
    {.name = "granitemoe", .pairs = RopePairs::kAdjacent},
    {.name = "glm4moe"},
    {.name = "smollm3", .pairs = RopePairs::kAdjacent},
    {.name = "granite", .pairs = RopePairs::kAdjacent},
    {.name = "olmo2", .place = NormPlace::kOutput, .qk_norm = QkNorm::kWidth},
    {.name = "phi3", .fusion = {.qkv = true, .gate_up = true}},
    {.name = "gemma", .activation = Activation::kGeluTanh, .scales_embedding = true},
    {.name = "gemma2",
     .place = NormPlace::kBoth,
     .activation = Activation::kGeluTanh,
     .full_each = 2,
     .scales_embedding = true},
    {.name = "gemma3",
     .place = NormPlace::kBoth,
     .activation = Activation::kGeluTanh,
     .qk_norm = QkNorm::kHead,
     .full_each = 6,
     .rotates_apart = true,
     .scales_embedding = true},
    {.name = "chatglm", .pairs = RopePairs::kAdjacent, .fusion = {.qkv = true, .gate_up = true}},
    {.name = "glm4", .place = NormPlace::kBoth, .pairs = RopePairs::kAdjacent, .fusion = {.gate_up = true}},
    {.name = "starcoder2", .norm = NormKind::kLayer, .mlp = MlpKind::kPlain, .activation = Activation::kGeluTanh},
    {.name = "gptneox",
     .norm = NormKind::kLayer,
     .mlp = MlpKind::kPlain,
     .activation = Activation::kGeluErf,
     .parallel = true,
     .fusion = {.qkv = true}},
    {.name = "phi2",
     .norm = NormKind::kLayer,
     .mlp = MlpKind::kPlain,
     .activation = Activation::kGeluTanh,
     .parallel = true,
     .shared_norm = true},
    {.name = "falcon",
     .norm = NormKind::kLayer,
     .mlp = MlpKind::kPlain,
     .activation = Activation::kGeluErf,
     .parallel = true,
     .shared_norm = true,
     .fusion = {.qkv = true}},
    {.name = "mpt",
     .norm = NormKind::kLayer,
     .mlp = MlpKind::kPlain,
     .activation = Activation::kGeluErf,
     .position = PositionKind::kAlibi,
     .fusion = {.qkv = true}},
    {.name = "command-r",
     .norm = NormKind::kLayer,
     .pairs = RopePairs::kAdjacent,
     .parallel = true,
     .shared_norm = true},
    {.name = "gpt-oss", .full_each = 2},
    {.name = "deepseek2", .pairs = RopePairs::kAdjacent},
};

const GgufFamily* find_gguf_family(std::string_view name) {
  const auto* found = std::ranges::find(kGgufFamilies, name, &GgufFamily::name);
  return found == std::end(kGgufFamilies) ? nullptr : found;
}

/// Of Gemma 2 and 3: the largest of each divides by the width of a head as the others have it.
float gemma_scale(const ModelConfig& config) {
  const int largest = config.architecture == "gemma2" ? 46 : 62;  // layers
  const int divisor = config.layers == largest ? config.model_dim / config.heads : config.head_dim;
  return 1.0f / std::sqrt(static_cast<float>(divisor));
}

bool is_granite(std::string_view name) {
  return name == "granite" || name == "granitemoe";
}

bool is_gemma23(const ModelConfig& config) {
  return config.architecture == "gemma2" || config.architecture == "gemma3";
}

/// Layers of which one in `full_each` sees all keys.
std::vector<int> windows_of(const ModelConfig& config, int full_each, int window) {
  std::vector<int> windows;
  if (window == 0 || config.layers > kLayersMax) return windows;
  for (int layer = 0; layer < config.layers; ++layer) {
    windows.push_back(full_each > 1 && (layer + 1) % full_each == 0 ? 0 : window);
  }
  return windows;
}

std::vector<int> ropes_of(const GgufFamily& family, const ModelConfig& config) {
  std::vector<int> ropes;
  if (family.rotates_apart) {
    for (int window : config.windows) ropes.push_back(window > 0 ? kLocalRope : kMainRope);
  }
  if (family.name == "smollm3") {
    for (int layer = 0; layer < std::min(config.layers, kLayersMax); ++layer) {
      ropes.push_back((layer + 1) % 4 == 0 ? kNoRope : kMainRope);
    }
  }
  return ropes;
}

/// Every granite file has its scales; a zero would be an absent one.
Status read_scales(const GgufKeys& keys, ModelConfig& config) {
  const std::string_view name = config.architecture;
  if (is_granite(name)) {
    BF_ASSIGN_OR_RETURN(config.embedding_scale, keys.number_or("embedding_scale", 1.0f));
    BF_ASSIGN_OR_RETURN(config.residual_scale, keys.number_or("residual_scale", 1.0f));
    BF_ASSIGN_OR_RETURN(config.attention_scale, keys.number_or("attention.scale", 0.0f));
    BF_ASSIGN_OR_RETURN(const float divisor, keys.number_or("logit_scale", 1.0f));
    config.logit_scale = 1.0f / divisor;
  }
  if (name == "command-r") {
    BF_ASSIGN_OR_RETURN(config.logit_scale, keys.number_or("logit_scale", 1.0f));
  }
  if (is_gemma23(config)) {
    config.attention_scale = gemma_scale(config);
    const bool second = name == "gemma2";
    BF_ASSIGN_OR_RETURN(config.attention_cap, keys.number_or("attn_logit_softcapping", second ? 50.0f : 0.0f));
    BF_ASSIGN_OR_RETURN(config.logit_cap, keys.number_or("final_logit_softcapping", second ? 30.0f : 0.0f));
  }
  if (config.position == PositionKind::kAlibi) {
    BF_ASSIGN_OR_RETURN(config.alibi_max_bias, keys.number_or("attention.max_alibi_bias", 8.0f));
  }
  BF_ASSIGN_OR_RETURN(const float clamp, keys.number_or("attention.clamp_kqv", 0.0f));
  if (clamp != 0) {
    return make_error(ErrorCode::kUnsupported, "{}: {} is {}, supported is 0", keys.file().source(),
                      keys.full("attention.clamp_kqv"), clamp);
  }
  return {};
}

/// The biases that a file has.
void read_biases(const GgufFile& file, ModelConfig& config) {
  const auto has = [&](const char* tensor) { return file.find_tensor(tensor) != nullptr; };
  config.qkv_bias = config.architecture == "qwen2" || has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
  config.attention_output_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_down.bias");
  config.norm_bias = has("blk.0.attn_norm.bias");
  config.head_bias = has("output.bias");
  config.attention_sinks = has("blk.0.attn_sinks.weight");
}

Status check_fixed(const GgufFamily& family, const ModelConfig& config) {
  const bool falcon = family.name == "falcon";
  const bool neox = family.name == "gptneox";
  if (config.norm_place == NormPlace::kAfter) return gguf_cannot_have(config, "norms after the blocks' sums");
  if (config.norm_place != family.place) return gguf_cannot_have(config, "norms at these places");
  if (config.norm != family.norm) return gguf_cannot_have(config, "another norm");
  if (config.norm == NormKind::kRms && config.norm_bias) return gguf_cannot_have(config, "a norm other than RMSNorm");
  if (config.mlp != family.mlp || config.activation != family.activation)
    return gguf_cannot_have(config, "another MLP");
  if (config.position != family.position) return gguf_cannot_have(config, "other positions");
  if (config.position == PositionKind::kRope && config.rope.pairs != family.pairs) {
    return gguf_cannot_have(config, "other positions");
  }
  const bool glm4moe = family.name == "glm4moe";
  if (config.qk_norm != family.qk_norm && !(glm4moe && config.qk_norm == QkNorm::kHead))
    return gguf_cannot_have(config, "other norms of queries and keys");
  if (config.has_latent() != has_gguf_latent(family.name)) return gguf_cannot_have(config, "this kind of attention");
  if (config.attention_sinks && family.name != "gpt-oss") return gguf_cannot_have(config, "attention sinks");
  if (config.parallel_block != family.parallel && !neox) return gguf_cannot_have(config, "another order of its sums");
  if (config.shared_norm != family.shared_norm && !falcon) return gguf_cannot_have(config, "these norms");
  return {};
}

Status check_scales(const GgufFamily& family, const ModelConfig& config) {
  const bool granite = is_granite(family.name);
  const float embedding = family.scales_embedding ? std::sqrt(static_cast<float>(config.model_dim)) : 1.0f;
  if (!granite && config.embedding_scale != embedding) return gguf_cannot_have(config, "this scale of the embedding");
  if (!granite && config.residual_scale != 1) return gguf_cannot_have(config, "a scale of the residual sums");
  const float scale = is_gemma23(config) ? gemma_scale(config) : 0.0f;
  const float usual = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const bool same = config.attention_scale == scale || (config.attention_scale == usual && scale == 0);
  const bool of_yarn = config.has_latent() && config.rope.yarn;
  if (!granite && !same && !of_yarn) return gguf_cannot_have(config, "this scale of the scores");
  if (!granite && family.name != "command-r" && config.logit_scale != 1) {
    return gguf_cannot_have(config, "a scale of the logits");
  }
  if (!is_gemma23(config) && (config.attention_cap != 0 || config.logit_cap != 0))
    return gguf_cannot_have(config, "caps");
  return {};
}

void write_scales(const ModelConfig& config, GgufWriter& writer) {
  const std::string prefix = config.architecture + ".";
  if (is_granite(config.architecture)) {
    writer.add_float(prefix + "embedding_scale", config.embedding_scale);
    writer.add_float(prefix + "residual_scale", config.residual_scale);
    if (config.attention_scale > 0) writer.add_float(prefix + "attention.scale", config.attention_scale);
    writer.add_float(prefix + "logit_scale", 1.0f / config.logit_scale);
  }
  if (config.architecture == "command-r") writer.add_float(prefix + "logit_scale", config.logit_scale);
  if (is_gemma23(config)) {
    writer.add_float(prefix + "attn_logit_softcapping", config.attention_cap);
    writer.add_float(prefix + "final_logit_softcapping", config.logit_cap);
  }
  if (config.position == PositionKind::kAlibi) {
    writer.add_float(prefix + "attention.max_alibi_bias", config.alibi_max_bias);
  }
  if (config.architecture == "gptneox") writer.add_bool(prefix + "use_parallel_residual", config.parallel_block);
}

}  // namespace

Status gguf_cannot_have(const ModelConfig& config, const char* what) {
  return make_error(ErrorCode::kUnsupported, "{}: a GGUF file of architecture {} cannot have {}", config.name,
                    config.architecture, what);
}

GgufFusion gguf_fusion(std::string_view architecture) {
  if (architecture == "modern-bert") return {.qkv = true, .gate_up = true};
  if (architecture == "nomic-bert") return {.qkv = true};
  const GgufFamily* family = find_gguf_family(architecture);
  return family == nullptr ? GgufFusion{} : family->fusion;
}

std::string gguf_weight_name(const ModelConfig& config, const std::string& canonical) {
  if (is_gguf_encoder(config.architecture)) return gguf_encoder_name(config, canonical);
  std::string name = canonical;
  const auto replace = [&](std::string_view from, std::string_view to) {
    const std::size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  if (config.architecture == "glm4moe" || config.architecture == "gpt-oss") {
    replace(".ffn_norm.", ".post_attention_norm.");
  }
  if (config.architecture != "falcon" || config.shared_norm) return name;
  if (!replace(".attn_norm.", ".attn_norm_2.")) replace(".ffn_norm.", ".attn_norm.");
  return name;
}

Status check_gguf_architecture(std::string_view architecture, const std::string& source) {
  if (find_gguf_family(architecture) != nullptr || is_gguf_encoder(architecture)) return {};
  std::vector<std::string_view> known = gguf_encoders();
  for (const GgufFamily& family : kGgufFamilies) known.push_back(family.name);
  return make_error(ErrorCode::kUnsupported, "{}: the architecture is \"{}\", supported are {}", source,
                    printable(architecture), fmt::join(known, ", "));
}

Status read_gguf_family(const GgufKeys& keys, ModelConfig& config) {
  if (is_gguf_encoder(config.architecture)) return read_gguf_encoder(keys, config);
  const GgufFamily& family = *find_gguf_family(config.architecture);
  config.norm = family.norm;
  config.norm_place = family.place;
  config.mlp = family.mlp;
  config.activation = family.activation;
  config.position = family.position;
  config.qk_norm = family.qk_norm;
  config.parallel_block = family.parallel;
  config.shared_norm = family.shared_norm;
  if (config.architecture == "gpt2") {
    config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = true;
  } else {
    read_biases(keys.file(), config);
  }
  if (config.architecture == "gptneox") {
    BF_ASSIGN_OR_RETURN(config.parallel_block, keys.flag_or("use_parallel_residual", GgufKeys::Default::kTrue));
  }
  if (config.architecture == "glm4moe" && keys.file().find_tensor("blk.0.attn_q_norm.weight")) {
    config.qk_norm = QkNorm::kHead;
  }
  if (config.architecture == "falcon") config.shared_norm = !keys.file().find_tensor("blk.0.attn_norm_2.weight");
  if (family.scales_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.model_dim));
  const bool rms = config.norm == NormKind::kRms;
  const char* epsilon = rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, keys.number(epsilon));
  BF_TRY(read_scales(keys, config));
  BF_ASSIGN_OR_RETURN(const int window, keys.integer_or("attention.sliding_window", 0));
  config.windows = windows_of(config, family.full_each, window);
  config.ropes = ropes_of(family, config);
  if (config.position != PositionKind::kRope) return {};
  config.rope.pairs = config.local_rope.pairs = family.pairs;
  BF_TRY(read_gguf_rope(keys, config));
  return config.has_latent() ? read_gguf_latent_scale(keys, config) : Status{};
}

Status write_gguf_family(const ModelConfig& config, GgufWriter& writer) {
  BF_TRY(check_gguf_architecture(config.architecture, config.name));
  if (is_gguf_encoder(config.architecture)) return write_gguf_encoder(config, writer);
  const GgufFamily& family = *find_gguf_family(config.architecture);
  BF_TRY(check_fixed(family, config));
  BF_TRY(check_scales(family, config));
  const bool gpt2 = config.architecture == "gpt2";
  const bool all_biases = config.qkv_bias && config.attention_output_bias && config.mlp_bias;
  if (gpt2 && !config.norm_bias) return gguf_cannot_have(config, "a norm other than LayerNorm with bias");
  if (gpt2 && !all_biases) return gguf_cannot_have(config, "projections without bias");
  if (config.architecture == "qwen2" && !config.qkv_bias) return gguf_cannot_have(config, "projections without bias");
  int window = 0;
  for (int tokens : config.windows) window = std::max(window, tokens);
  if (config.windows != windows_of(config, family.full_each, window) &&
      std::ranges::any_of(config.windows, [](int tokens) { return tokens != 0; })) {
    return gguf_cannot_have(config, "windows in these layers");
  }
  if (window > 0) {
    writer.add_integer(config.architecture + ".attention.sliding_window", static_cast<std::uint32_t>(window));
  }
  const std::vector<int> ropes = ropes_of(family, config);
  const bool all_main = std::ranges::all_of(config.ropes, [](int rope) { return rope == kMainRope; });
  if (config.ropes != ropes && !(ropes.empty() && all_main)) {
    return gguf_cannot_have(config, "other positions in some layers");
  }
  write_scales(config, writer);
  return config.position == PositionKind::kRope ? write_gguf_rope(config, writer) : Status{};
}

}  // namespace butterfly
