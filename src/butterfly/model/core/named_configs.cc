// The shapes that are known by name.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "butterfly/model/core/config.h"

namespace butterfly {
namespace {

struct LlamaShape {
  int layers, model_dim, heads, kv_heads, ff_dim, vocab, context;
  float rope_base = 10000.0f;
};

ModelConfig llama(const std::string& name, const LlamaShape& shape) {
  ModelConfig config;
  config.name = name;
  config.layers = shape.layers;
  config.model_dim = shape.model_dim;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.model_dim / shape.heads;
  config.ff_dim = shape.ff_dim;
  config.vocab = shape.vocab;
  config.context = shape.context;
  config.rope.base = shape.rope_base;
  config.rope.dim = config.head_dim;
  return config;
}

ModelConfig llama3(const std::string& name, const LlamaShape& shape, float factor) {
  ModelConfig config = llama(name, shape);
  config.rope.scaling = RopeConfig::Scaling::kLlama3;
  config.rope.factor = factor;
  return config;
}

ModelConfig tied(ModelConfig config) {
  config.tied_head = true;
  return config;
}

ModelConfig qwen2(const std::string& name, const LlamaShape& shape) {
  ModelConfig config = llama(name, shape);
  config.architecture = "qwen2";
  config.norm_epsilon = 1e-6f;
  config.rope.pairs = RopePairs::kHalves;
  config.qkv_bias = true;
  return config;
}

ModelConfig gpt2(const std::string& name, int layers, int model_dim, int heads, int context) {
  ModelConfig config = llama(name, {layers, model_dim, heads, heads, 4 * model_dim, 50257, context});
  config.architecture = "gpt2";
  config.norm = NormKind::kLayer;
  config.activation = Activation::kGeluTanh;
  config.mlp = MlpKind::kPlain;
  config.position = PositionKind::kLearned;
  config.rope = {};
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = true;
  return tied(config);
}

ModelConfig bert(const std::string& name, int layers, int model_dim, int heads) {
  ModelConfig config = gpt2(name, layers, model_dim, heads, 512);
  config.architecture = "bert";
  config.vocab = 30522;
  config.norm_place = NormPlace::kAfter;
  config.norm_epsilon = 1e-12f;
  config.activation = Activation::kGeluErf;
  config.encoder_layers = layers;
  config.token_types = 2;
  config.embedding_norm = config.head_transform = config.head_transform_bias = config.head_bias = true;
  return config;
}

ModelConfig t5(const std::string& name, int layers_each, int model_dim, int heads, int ff_dim) {
  ModelConfig config = tied(llama(name, {2 * layers_each, model_dim, heads, heads, ff_dim, 32128, 512}));
  config.architecture = "t5";
  config.encoder_layers = layers_each;
  config.norm_epsilon = 1e-6f;
  config.activation = Activation::kRelu;
  config.mlp = MlpKind::kPlain;
  config.position = PositionKind::kNone;
  config.rope = {};
  config.relative = {.buckets = 32, .distance = 128, .shared = true};
  config.attention_scale = 1.0f;
  config.logit_scale = 1.0f / std::sqrt(static_cast<float>(model_dim));
  return config;
}

struct ExpertShape {
  int experts, experts_used, ff_dim;
};

ModelConfig with_experts(ModelConfig config, const ExpertShape& shape) {
  config.moe.experts = shape.experts;
  config.moe.experts_used = shape.experts_used;
  config.moe.ff_dim = shape.ff_dim;
  config.moe.renormalise = true;
  return config;
}

ModelConfig qwen3_moe(const std::string& name, const LlamaShape& shape, const ExpertShape& experts) {
  ModelConfig config = with_experts(qwen2(name, shape), experts);
  config.architecture = "qwen3moe";
  config.qkv_bias = false;
  config.qk_norm = QkNorm::kHead;
  config.head_dim = config.rope.dim = 128;
  return config;
}

ModelConfig olmoe(const std::string& name, const LlamaShape& shape, const ExpertShape& experts) {
  ModelConfig config = with_experts(llama(name, shape), experts);
  config.architecture = "olmoe";
  config.rope.pairs = RopePairs::kHalves;
  config.qk_norm = QkNorm::kWidth;
  config.moe.renormalise = false;
  return config;
}

ModelConfig tiny_transformer(const std::string& name, const LlamaShape& shape) {
  ModelConfig config = tied(llama(name, shape));
  config.norm_epsilon = 1e-6f;
  return config;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Dimensions as published with each model (config.json of its repository; Mistral: v0.3, which has no sliding window;
// GPT-3: arXiv 2005.14165, table 2.1; TinyTransformer: AMD's HPCTrainingExamples).
std::vector<ModelConfig> all_named_configs() {
  return {
      tied(llama("butterfly-demo", {5, 256, 8, 4, 768, 2048, 512})),
      with_experts(tied(llama("butterfly-moe", {4, 256, 8, 4, 256, 2048, 512})), {8, 2, 256}),
      llama("llama-1.1b", {22, 2048, 32, 4, 5632, 32000, 2048}),
      llama("llama-2-7b", {32, 4096, 32, 32, 11008, 32000, 4096}),
      llama("llama-2-13b", {40, 5120, 40, 40, 13824, 32000, 4096}),
      llama("llama-2-70b", {80, 8192, 64, 8, 28672, 32000, 4096}),
      tied(llama3("llama-3.2-1b", {16, 2048, 32, 8, 8192, 128256, 131072, 500000.0f}, 32.0f)),
      llama3("llama-3.1-8b", {32, 4096, 32, 8, 14336, 128256, 131072, 500000.0f}, 8.0f),
      llama3("llama-3.1-70b", {80, 8192, 64, 8, 28672, 128256, 131072, 500000.0f}, 8.0f),
      llama3("llama-3.1-405b", {126, 16384, 128, 8, 53248, 128256, 131072, 500000.0f}, 8.0f),
      tied(qwen2("qwen2-0.5b", {24, 896, 14, 2, 4864, 151936, 32768, 1000000.0f})),
      llama("mistral-7b", {32, 4096, 32, 8, 14336, 32768, 32768, 1000000.0f}),
      with_experts(llama("mixtral-8x7b", {32, 4096, 32, 8, 14336, 32000, 32768, 1000000.0f}), {8, 2, 14336}),
      qwen3_moe("qwen3-30b-a3b", {48, 2048, 32, 4, 6144, 151936, 40960, 1000000.0f}, {128, 8, 768}),
      qwen3_moe("qwen3-235b-a22b", {94, 4096, 64, 4, 12288, 151936, 40960, 1000000.0f}, {128, 8, 1536}),
      olmoe("olmoe-1b-7b", {16, 2048, 16, 16, 1024, 50304, 4096}, {64, 8, 1024}),
      gpt2("gpt2-124m", 12, 768, 12, 1024),
      gpt2("gpt2-355m", 24, 1024, 16, 1024),
      gpt2("gpt2-774m", 36, 1280, 20, 1024),
      gpt2("gpt2-xl", 48, 1600, 25, 1024),
      gpt2("gpt-3-175b", 96, 12288, 96, 2048),
      bert("bert-base", 12, 768, 12),
      bert("bert-large", 24, 1024, 16),
      t5("t5-small", 6, 512, 8, 2048),
      t5("t5-base", 12, 768, 12, 3072),
      tiny_transformer("tinytransformer-tiny", {4, 256, 8, 4, 512, 1000, 128}),
      tiny_transformer("tinytransformer-small", {8, 512, 8, 4, 2048, 1000, 128}),
      tiny_transformer("tinytransformer-medium", {12, 1024, 16, 8, 4096, 1000, 512}),
  };
}

}  // namespace

Result<ModelConfig> named_config(const std::string& name) {
  for (ModelConfig& config : all_named_configs()) {
    if (config.name == lower(name)) return std::move(config);
  }
  return make_error(ErrorCode::kNotFound, "there is no shape named \"{}\"; there are {}", name,
                    fmt::join(named_configs(), ", "));
}

std::vector<std::string> named_configs() {
  std::vector<std::string> names;
  for (const ModelConfig& config : all_named_configs()) names.push_back(config.name);
  return names;
}

}  // namespace butterfly
