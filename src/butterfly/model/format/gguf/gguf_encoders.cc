#include "butterfly/model/format/gguf/gguf_encoders.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_rope.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {
namespace {

constexpr std::array<std::string_view, 5> kEncoderNames{"bert", "nomic-bert", "modern-bert", "t5", "t5encoder"};
constexpr int kT5Distance = 128;  // files do not say it
constexpr int kUsualInterval = 3;

bool is_t5(std::string_view architecture) {
  return architecture == "t5" || architecture == "t5encoder";
}

void set_bert_like(ModelConfig& config) {
  config.encoder_layers = config.layers;
  config.output = OutputKind::kHidden;
  config.norm = NormKind::kLayer;
  config.norm_place = NormPlace::kAfter;
  config.mlp = MlpKind::kPlain;
  config.activation = Activation::kGeluErf;
  config.position = PositionKind::kLearned;
  config.embedding_norm = true;
  config.norm_bias = true;
}

/// One layer in `interval` sees all keys, the first of them.
std::vector<int> windows_by(int layers, int interval, int window) {
  std::vector<int> windows;
  for (int layer = 0; layer < std::min(layers, kLayersMax); ++layer) {
    windows.push_back(layer % interval == 0 ? 0 : window);
  }
  return windows;
}

Status read_modern(const GgufKeys& keys, ModelConfig& config) {
  config.norm_place = NormPlace::kBefore;
  config.skip_first_norm = true;
  config.mlp = MlpKind::kGated;
  config.position = PositionKind::kRope;
  config.norm_bias = keys.file().find_tensor("output_norm.bias") != nullptr;
  BF_ASSIGN_OR_RETURN(const int window, keys.integer_or("attention.sliding_window", 128));
  BF_ASSIGN_OR_RETURN(const int interval, keys.integer_or("attention.sliding_window_pattern", kUsualInterval));
  if (interval < 1) {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected at least 1", keys.file().source(),
                      keys.full("attention.sliding_window_pattern"), interval);
  }
  config.windows = windows_by(config.layers, interval, window);
  for (const int one : config.windows) config.ropes.push_back(one > 0 ? kLocalRope : kMainRope);
  return {};
}

Status read_gguf_t5(const GgufKeys& keys, ModelConfig& config) {
  const auto has = [&](const char* tensor) { return keys.file().find_tensor(tensor) != nullptr; };
  config.encoder_layers = config.layers;
  if (config.architecture == "t5") {
    BF_ASSIGN_OR_RETURN(const int decoders, keys.integer_or("decoder_block_count", config.encoder_layers));
    config.layers =
        std::max(config.encoder_layers, decoders) > kLayersMax ? kLayersMax + 1 : config.encoder_layers + decoders;
  } else {
    config.output = OutputKind::kHidden;
  }
  constexpr int kContext = 4096;  // positions are distances: a file says what it was trained with
  config.context = std::max(config.context, kContext);
  config.norm = NormKind::kRms;
  config.position = PositionKind::kNone;
  config.rope = {};
  config.attention_scale = 1.0f;
  config.mlp = has("enc.blk.0.ffn_gate.weight") ? MlpKind::kGated : MlpKind::kPlain;
  config.activation = config.mlp == MlpKind::kGated ? Activation::kGeluTanh : Activation::kRelu;
  BF_ASSIGN_OR_RETURN(config.relative.buckets, keys.integer_or("attention.relative_buckets_count", 32));
  config.relative.distance = kT5Distance;
  config.relative.shared = !has("enc.blk.1.attn_rel_b.weight");
  BF_ASSIGN_OR_RETURN(config.decoder_start, keys.integer_or("decoder_start_token_id", 0));
  const bool tied = !has("output.weight");
  if (tied) config.logit_scale = 1.0f / std::sqrt(static_cast<float>(std::max(config.model_dim, 1)));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, keys.number("attention.layer_norm_rms_epsilon"));
  return {};
}

Status check_gguf_encoder(const ModelConfig& config) {
  const auto refuse = [&](const char* what) { return gguf_cannot_have(config, what); };
  ModelConfig usual = config;
  if (is_t5(config.architecture)) {
    const bool gated = config.mlp == MlpKind::kGated;
    if (config.activation != (gated ? Activation::kGeluTanh : Activation::kRelu)) return refuse("another MLP");
    if (config.relative.distance != kT5Distance) return refuse("another largest distance");
    const float scale = config.tied_head ? 1.0f / std::sqrt(static_cast<float>(config.model_dim)) : 1.0f;
    if (config.has_decoder() && config.logit_scale != scale) return refuse("this scale of the logits");
    return {};
  }
  set_bert_like(usual);
  const bool modern = config.architecture == "modern-bert";
  if (config.activation != (config.architecture == "nomic-bert" ? Activation::kSilu : usual.activation)) {
    return refuse("another MLP");
  }
  if (config.embedding_dim > 0) return refuse("narrower tables");
  if (config.relative.buckets > 0) return refuse("relative positions");
  if (!modern && !config.norm_bias) return refuse("norms without bias");
  return {};
}

int interval_of(const ModelConfig& config) {
  const auto second = std::ranges::find(config.windows.begin() + 1, config.windows.end(), 0);
  return static_cast<int>(second - config.windows.begin());
}

}  // namespace

bool is_gguf_encoder(std::string_view architecture) {
  return std::ranges::find(kEncoderNames, architecture) != kEncoderNames.end();
}

std::vector<std::string_view> gguf_encoders() {
  return {kEncoderNames.begin(), kEncoderNames.end()};
}

Status read_gguf_encoder(const GgufKeys& keys, ModelConfig& config) {
  const auto has = [&](const char* tensor) { return keys.file().find_tensor(tensor) != nullptr; };
  if (is_t5(config.architecture)) return read_gguf_t5(keys, config);
  set_bert_like(config);
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, keys.number("attention.layer_norm_epsilon"));
  config.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
  config.attention_output_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_up.bias");
  if (const GgufTensor* types = keys.file().find_tensor("token_types.weight")) {
    config.token_types = static_cast<int>(std::min<std::int64_t>(types->shape[1], 1 << 16));
  }
  if (config.architecture == "bert") return {};
  if (config.architecture == "modern-bert") {
    BF_TRY(read_modern(keys, config));
  } else {
    config.mlp = MlpKind::kGated;
    config.activation = Activation::kSilu;
    config.position = PositionKind::kRope;
  }
  config.rope.pairs = config.local_rope.pairs = RopePairs::kHalves;
  return read_gguf_rope(keys, config);
}

Status write_gguf_encoder(const ModelConfig& config, GgufWriter& writer) {
  BF_TRY(check_gguf_encoder(config));
  const std::string prefix = config.architecture + ".";
  const auto integer = [&](const char* key, int value) {
    writer.add_integer(prefix + key, static_cast<std::uint32_t>(value));
  };
  writer.add_bool(prefix + "attention.causal", false);
  if (is_t5(config.architecture)) {
    integer("attention.relative_buckets_count", config.relative.buckets);
    if (!config.has_decoder()) return {};
    integer("decoder_block_count", config.layers - config.encoder_layers);
    integer("decoder_start_token_id", config.decoder_start);
    return {};
  }
  if (config.architecture == "modern-bert") {
    if (config.windows.empty()) return gguf_cannot_have(config, "layers without windows alone");
    const int window = *std::ranges::max_element(config.windows);
    const int interval = interval_of(config);
    if (config.windows != windows_by(config.layers, interval, window)) {
      return gguf_cannot_have(config, "windows in these layers");
    }
    integer("attention.sliding_window", window);
    integer("attention.sliding_window_pattern", interval);
  }
  return config.position == PositionKind::kRope ? write_gguf_rope(config, writer) : Status{};
}

std::string gguf_encoder_name(const ModelConfig& config, const std::string& canonical) {
  std::string name = canonical;
  const auto replace = [&](std::string_view from, std::string_view to) {
    const std::size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  };
  if (config.architecture == "modern-bert") return name;
  if (!is_t5(config.architecture)) {
    replace(".attn_norm.", ".attn_output_norm.");
    replace(".ffn_norm.", ".layer_output_norm.");
    return name;
  }
  if (canonical.starts_with("output_norm.")) return (config.has_decoder() ? "dec." : "enc.") + canonical;
  if (!canonical.starts_with("blk.")) return name;
  if (canonical.find(".encoder_norm.") != std::string::npos) return "enc.output_norm.weight";
  int layer = 0;
  const std::size_t end = canonical.find('.', 4);
  std::from_chars(canonical.data() + 4, canonical.data() + std::min(end, canonical.size()), layer);
  const bool encoder = config.is_encoder(layer);
  name = fmt::format("{}.blk.{}{}", encoder ? "enc" : "dec", encoder ? layer : layer - config.encoder_layers,
                     end == std::string::npos ? "" : canonical.substr(end));
  replace("attn_output.", "attn_o.");
  return name;
}

}  // namespace butterfly
