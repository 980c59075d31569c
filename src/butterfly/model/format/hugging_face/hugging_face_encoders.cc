// Encoders, and encoders with decoders: which keys of a config.json say what of a ModelConfig.
#include "butterfly/model/format/hugging_face/hugging_face_encoders.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace butterfly {
namespace {

struct EncoderKeys {
  const char* model_dim = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* ff_dim = "intermediate_size";
  const char* context = "max_position_embeddings";
  const char* epsilon = "layer_norm_eps";
  const char* activation = "hidden_act";
  const char* usual_activation = "gelu";
  float usual_epsilon = 1e-12f;
};

Status read_encoder_activation(const JsonObject& object, const char* key, const char* usual, ModelConfig& config) {
  constexpr std::array<std::pair<std::string_view, Activation>, 9> kNames{{{"gelu", Activation::kGeluErf},
                                                                           {"gelu_python", Activation::kGeluErf},
                                                                           {"gelu_new", Activation::kGeluTanh},
                                                                           {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                                           {"gelu_fast", Activation::kGeluTanh},
                                                                           {"relu", Activation::kRelu},
                                                                           {"silu", Activation::kSilu},
                                                                           {"swish", Activation::kSilu},
                                                                           {"swiglu", Activation::kSilu}}};
  BF_ASSIGN_OR_RETURN(const std::string name, object.text_or(key, usual));
  const auto* found = std::ranges::find(kNames, name, [](const auto& known) { return known.first; });
  if (found == kNames.end()) return unsupported(object, key, name, "gelu, gelu_new, relu or silu");
  config.activation = found->second;
  return {};
}

/// LayerNorms with biases after the sums, biases everywhere, a masked-LM head: what BERT and those after it have.
Status read_bert_like(const JsonObject& object, const EncoderKeys& keys, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(config.model_dim, object.integer(keys.model_dim));
  BF_ASSIGN_OR_RETURN(config.layers, object.integer(keys.layers));
  BF_ASSIGN_OR_RETURN(config.heads, object.integer(keys.heads));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer(keys.ff_dim));
  BF_ASSIGN_OR_RETURN(config.vocab, object.integer("vocab_size"));
  BF_ASSIGN_OR_RETURN(config.context, object.integer_or(keys.context, 512));
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or(keys.epsilon, keys.usual_epsilon));
  if (config.heads < 1 || config.model_dim % config.heads != 0) {
    return make_error(ErrorCode::kBadData, "{}: {} {} does not divide into {} heads", object.source(), keys.model_dim,
                      config.model_dim, config.heads);
  }
  config.kv_heads = config.heads;
  config.head_dim = config.model_dim / config.heads;
  config.encoder_layers = config.layers;
  config.norm = NormKind::kLayer;
  config.norm_place = NormPlace::kAfter;
  config.mlp = MlpKind::kPlain;
  config.position = PositionKind::kLearned;
  config.norm_bias = config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.embedding_norm = config.head_transform = config.head_transform_bias = config.head_bias = true;
  BF_ASSIGN_OR_RETURN(config.tied_head, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_TRY(read_encoder_activation(object, keys.activation, keys.usual_activation, config));
  BF_ASSIGN_OR_RETURN(const bool decoder, object.flag_or("is_decoder", JsonObject::Default::kFalse));
  if (decoder) return unsupported(object, "is_decoder", "true", "false");
  BF_ASSIGN_OR_RETURN(const std::string positions, object.text_or("position_embedding_type", "absolute"));
  if (positions != "absolute") return unsupported(object, "position_embedding_type", positions, "absolute");
  return {};
}

Status read_bert(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert_like(object, {}, config));
  BF_ASSIGN_OR_RETURN(config.token_types, object.integer_or("type_vocab_size", 2));
  return {};
}

/// The head of RoBERTa and of those after it has GELU, whatever hidden_act is.
void set_gelu_head(ModelConfig& config) {
  config.head_gelu = config.activation != Activation::kGeluErf;
}

/// The first rows of the table of positions belong to padding.
Status drop_padding_positions(const JsonObject& object, int usual_padding, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const int padding, object.integer_or("pad_token_id", usual_padding));
  if (padding >= config.context - 1) {
    return make_error(ErrorCode::kBadData, "{}: pad_token_id is {}, of {} positions none is left", object.source(),
                      padding, config.context);
  }
  config.context -= padding + 1;
  return {};
}

Status read_roberta(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert(object, config));
  set_gelu_head(config);
  return drop_padding_positions(object, 1, config);
}

Status read_distilbert(const JsonObject& object, ModelConfig& config) {
  return read_bert_like(object,
                        {.model_dim = "dim",
                         .layers = "n_layers",
                         .heads = "n_heads",
                         .ff_dim = "hidden_dim",
                         .epsilon = "epsilon of DistilBERT",
                         .activation = "activation"},
                        config);
}

Status read_electra(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert(object, config));
  BF_ASSIGN_OR_RETURN(const int width, object.integer_or("embedding_size", config.model_dim));
  if (width != config.model_dim) config.embedding_dim = width;
  set_gelu_head(config);
  return {};
}

Status read_albert(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert_like(object, {.usual_activation = "gelu_new"}, config));
  BF_ASSIGN_OR_RETURN(config.token_types, object.integer_or("type_vocab_size", 2));
  BF_ASSIGN_OR_RETURN(config.embedding_dim, object.integer_or("embedding_size", 128));
  BF_ASSIGN_OR_RETURN(config.layer_groups, object.integer_or("num_hidden_groups", 1));
  BF_ASSIGN_OR_RETURN(const int inner, object.integer_or("inner_group_num", 1));
  if (inner != 1) return unsupported(object, "inner_group_num", std::to_string(inner), "1");
  if (config.layer_groups < 1) {
    return make_error(ErrorCode::kBadData, "{}: num_hidden_groups is {}, expected at least 1", object.source(),
                      config.layer_groups);
  }
  return {};
}

Status read_mpnet(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert_like(object, {}, config));
  BF_ASSIGN_OR_RETURN(config.relative.buckets, object.integer_or("relative_attention_num_buckets", 32));
  config.relative.distance = 128;
  config.relative.shared = true;
  set_gelu_head(config);
  return drop_padding_positions(object, 1, config);
}

/// The names of the model's own code, and those of `transformers`.
Status read_nomic(const JsonObject& object, ModelConfig& config) {
  const bool own = object.find("n_embd") != nullptr;
  EncoderKeys keys{.activation = own ? "activation_function" : "hidden_act", .usual_activation = "silu"};
  if (own) {
    keys = {.model_dim = "n_embd",
            .layers = "n_layer",
            .heads = "n_head",
            .ff_dim = "n_inner",
            .context = "n_positions",
            .epsilon = "layer_norm_epsilon",
            .activation = "activation_function",
            .usual_activation = "swiglu"};
  }
  BF_TRY(read_bert_like(object, keys, config));
  BF_ASSIGN_OR_RETURN(config.token_types, object.integer_or("type_vocab_size", 2));
  config.mlp = MlpKind::kGated;
  config.position = PositionKind::kRope;
  for (auto [key, has] : {std::pair{"qkv_proj_bias", &config.qkv_bias}, {"mlp_fc1_bias", &config.mlp_bias}}) {
    BF_ASSIGN_OR_RETURN(*has, object.flag_or(key, JsonObject::Default::kFalse));
  }
  config.attention_output_bias = config.qkv_bias;
  BF_ASSIGN_OR_RETURN(const bool prenorm, object.flag_or("prenorm", JsonObject::Default::kFalse));
  if (prenorm) return unsupported(object, "prenorm", "true", "false");
  BF_ASSIGN_OR_RETURN(const bool rms, object.flag_or("use_rms_norm", JsonObject::Default::kFalse));
  if (rms) return unsupported(object, "use_rms_norm", "true", "false");
  if (!own) return read_hugging_face_rope(object, {.base = 1000.0f}, config);
  return read_hugging_face_rope(
      object, {.base = 10000.0f, .base_key = "rotary_emb_base", .rotary_key = "rotary_emb_fraction"}, config);
}

Status read_modernbert(const JsonObject& object, ModelConfig& config) {
  BF_TRY(read_bert_like(object, {.epsilon = "norm_eps", .activation = "hidden_activation", .usual_epsilon = 1e-5f},
                        config));
  config.norm_place = NormPlace::kBefore;
  config.skip_first_norm = true;
  config.mlp = MlpKind::kGated;
  config.position = PositionKind::kRope;
  BF_ASSIGN_OR_RETURN(config.norm_bias, object.flag_or("norm_bias", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.qkv_bias, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  config.attention_output_bias = config.qkv_bias;
  BF_ASSIGN_OR_RETURN(config.mlp_bias, object.flag_or("mlp_bias", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.head_transform_bias, object.flag_or("classifier_bias", JsonObject::Default::kFalse));
  BF_ASSIGN_OR_RETURN(config.head_bias, object.flag_or("decoder_bias", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const std::string activation, object.text_or("hidden_activation", "gelu"));
  BF_ASSIGN_OR_RETURN(const std::string of_head, object.text_or("classifier_activation", activation.c_str()));
  if (of_head != activation) return unsupported(object, "classifier_activation", of_head, activation.c_str());
  BF_ASSIGN_OR_RETURN(const int window, object.integer_or("local_attention", 128));
  BF_ASSIGN_OR_RETURN(const int interval, object.integer_or("global_attn_every_n_layers", 3));
  BF_ASSIGN_OR_RETURN(const auto types, object.texts("layer_types"));
  const bool fits = types.empty() || types.size() == static_cast<std::size_t>(config.layers);
  if (interval < 1 || window < 0 || !fits) {
    return make_error(ErrorCode::kBadData, "{}: {} layer_types, each {}th full, for {} layers", object.source(),
                      types.size(), interval, config.layers);
  }
  if (config.layers > kLayersMax) return {};  // validate() refuses them
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool local =
        types.empty() ? layer % interval != 0 : types[static_cast<std::size_t>(layer)] == "sliding_attention";
    config.windows.push_back(local ? window : 0);
    config.ropes.push_back(local ? kLocalRope : kMainRope);
  }
  BF_TRY(read_hugging_face_rope(object, {.base = 160000.0f, .base_key = "global_rope_theta"}, config));
  if (object.find("rope_parameters")) return {};
  BF_ASSIGN_OR_RETURN(config.local_rope.base, object.number_or("local_rope_theta", 10000.0f));
  return {};
}

Status read_t5_mlp(const JsonObject& object, const char* usual, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const std::string kind, object.text_or("feed_forward_proj", usual));
  config.mlp = kind.starts_with("gated-") ? MlpKind::kGated : MlpKind::kPlain;
  const std::string name = config.mlp == MlpKind::kGated ? kind.substr(6) : kind;
  if (name == "relu" && config.mlp == MlpKind::kPlain) {
    config.activation = Activation::kRelu;
  } else if (name == "gelu") {
    // The gated form of this name means the approximation.
    config.activation = config.mlp == MlpKind::kGated ? Activation::kGeluTanh : Activation::kGeluErf;
  } else if (name == "gelu_new") {
    config.activation = Activation::kGeluTanh;
  } else if (name == "silu") {
    config.activation = Activation::kSilu;
  } else {
    return unsupported(object, "feed_forward_proj", kind, "relu, gated-gelu or gated-silu");
  }
  return {};
}

Status read_t5(const JsonObject& object, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const std::string type, object.text_or("model_type", "t5"));
  // Positions are distances, of which the far ones are alike: what a file says is what it was trained with.
  constexpr int kContext = 4096;
  BF_ASSIGN_OR_RETURN(config.model_dim, object.integer("d_model"));
  BF_ASSIGN_OR_RETURN(config.encoder_layers, object.integer("num_layers"));
  BF_ASSIGN_OR_RETURN(const int decoders, object.integer_or("num_decoder_layers", config.encoder_layers));
  config.layers =
      config.encoder_layers > kLayersMax || decoders > kLayersMax ? kLayersMax + 1 : config.encoder_layers + decoders;
  BF_ASSIGN_OR_RETURN(const auto architectures, object.texts("architectures"));
  const bool alone =
      std::ranges::any_of(architectures, [](const auto& name) { return name.ends_with("EncoderModel"); });
  if (alone) config.layers = config.encoder_layers;
  BF_ASSIGN_OR_RETURN(config.heads, object.integer("num_heads"));
  config.kv_heads = config.heads;
  BF_ASSIGN_OR_RETURN(config.head_dim, object.integer_or("d_kv", 64));
  BF_ASSIGN_OR_RETURN(config.ff_dim, object.integer("d_ff"));
  BF_ASSIGN_OR_RETURN(config.vocab, object.integer("vocab_size"));
  BF_ASSIGN_OR_RETURN(const int trained, object.integer_or("n_positions", 512));
  config.context = std::max(trained, kContext);
  BF_ASSIGN_OR_RETURN(config.norm_epsilon, object.number_or("layer_norm_epsilon", 1e-6f));
  BF_TRY(read_t5_mlp(object, type == "t5" ? "relu" : "gated-gelu", config));
  config.position = PositionKind::kNone;
  config.rope = {};
  config.attention_scale = 1.0f;
  BF_ASSIGN_OR_RETURN(config.relative.buckets, object.integer_or("relative_attention_num_buckets", 32));
  BF_ASSIGN_OR_RETURN(config.relative.distance, object.integer_or("relative_attention_max_distance", 128));
  config.relative.shared = type != "umt5";
  // Whether the head has a matrix of its own is seen from the files; this says whether it is scaled.
  config.tied_head = true;
  BF_ASSIGN_OR_RETURN(const bool tied, object.flag_or("tie_word_embeddings", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const bool scaled, object.flag_or("scale_decoder_outputs", tied ? JsonObject::Default::kTrue
                                                                                      : JsonObject::Default::kFalse));
  if (scaled && type != "mt5") config.logit_scale = 1.0f / std::sqrt(static_cast<float>(std::max(config.model_dim, 1)));
  BF_ASSIGN_OR_RETURN(const int padding, object.integer_or("pad_token_id", 0));
  BF_ASSIGN_OR_RETURN(config.decoder_start, object.integer_or("decoder_start_token_id", padding));
  return {};
}

constexpr std::array kEncoders{
    EncoderFamily{"bert", "bert", read_bert},
    EncoderFamily{"roberta", "bert", read_roberta},
    EncoderFamily{"xlm-roberta", "bert", read_roberta},
    EncoderFamily{"camembert", "bert", read_roberta},
    EncoderFamily{"distilbert", "bert", read_distilbert},
    EncoderFamily{"electra", "bert", read_electra},
    EncoderFamily{"mpnet", "bert", read_mpnet},
    EncoderFamily{"albert", "albert", read_albert},
    EncoderFamily{"nomic_bert", "nomic-bert", read_nomic},
    EncoderFamily{"modernbert", "modern-bert", read_modernbert},
    EncoderFamily{"t5", "t5", read_t5},
    EncoderFamily{"mt5", "t5", read_t5},
    EncoderFamily{"umt5", "t5", read_t5},
};

}  // namespace

std::span<const EncoderFamily> hugging_face_encoders() {
  return kEncoders;
}

}  // namespace butterfly
