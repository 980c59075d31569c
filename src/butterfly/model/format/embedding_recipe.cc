#include "butterfly/model/format/embedding_recipe.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/model/format/gguf/gguf_keys.h"
#include "butterfly/model/format/hugging_face/hugging_face_object.h"
#include "butterfly/model/format/safetensors/safetensors.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxModuleBytes = 1 << 20;

struct PoolingName {
  Pooling pooling;
  std::string_view name, module_name, old_key;
};
// In the order in which sentence-transformers joins them.
constexpr std::array kPoolingNames{
    PoolingName{Pooling::kCls, "cls", "cls", "pooling_mode_cls_token"},
    PoolingName{Pooling::kMax, "max", "max", "pooling_mode_max_tokens"},
    PoolingName{Pooling::kMean, "mean", "mean", "pooling_mode_mean_tokens"},
    PoolingName{Pooling::kMeanSqrt, "mean_sqrt", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"},
    PoolingName{Pooling::kWeightedMean, "weightedmean", "weightedmean", "pooling_mode_weightedmean_tokens"},
    PoolingName{Pooling::kLast, "last", "lasttoken", "pooling_mode_lasttoken"},
};

/// An absent file is null.
Result<nlohmann::json> read_json(const fs::path& path) {
  auto text = read_file(path.string(), kMaxModuleBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return nlohmann::json();
  if (!text) return tl::unexpected(std::move(text).error());
  nlohmann::json json = parse_json(*text);
  if (!json.is_object() && !json.is_array()) {
    return make_error(ErrorCode::kBadData, "{}: {} bytes that are no JSON object or list", path.string(), text->size());
  }
  return json;
}

Status expect_object(const nlohmann::json& json, const fs::path& path) {
  if (json.is_object()) return {};
  return make_error(ErrorCode::kBadData, "{}: is {}, expected an object", path.string(), json.type_name());
}

Status read_poolings(const fs::path& folder, EmbeddingRecipe& recipe) {
  const fs::path path = folder / "config.json";
  BF_ASSIGN_OR_RETURN(const nlohmann::json json, read_json(path));
  BF_TRY(expect_object(json, path));
  const JsonObject object(json, path.string());
  BF_ASSIGN_OR_RETURN(recipe.pool_prompt, object.flag_or("include_prompt", JsonObject::Default::kTrue));
  recipe.poolings.clear();
  if (const nlohmann::json* mode = object.find("pooling_mode"); mode != nullptr && mode->is_string()) {
    BF_ASSIGN_OR_RETURN(const Pooling pooling, parse_pooling(mode->get<std::string>()));
    recipe.poolings.push_back(pooling);
    return {};
  }
  BF_ASSIGN_OR_RETURN(const auto modes, object.texts("pooling_mode"));
  for (const std::string& mode : modes) {
    BF_ASSIGN_OR_RETURN(const Pooling pooling, parse_pooling(mode));
    recipe.poolings.push_back(pooling);
  }
  for (const PoolingName& known : kPoolingNames) {
    BF_ASSIGN_OR_RETURN(const bool used,
                        object.flag_or(std::string(known.old_key).c_str(), JsonObject::Default::kFalse));
    if (used && modes.empty()) recipe.poolings.push_back(known.pooling);
  }
  if (recipe.poolings.empty()) recipe.poolings.push_back(Pooling::kMean);
  return {};
}

Result<std::vector<float>> read_tensor(const SafetensorsFile& file, const std::string& source, const char* name,
                                       const std::vector<std::int64_t>& shape) {
  const auto found = file.entries().find(name);
  if (found == file.entries().end()) return make_error(ErrorCode::kNotFound, "{}: lacks {}", source, name);
  const SafetensorsEntry& entry = found->second;
  if (!entry.type || block_elements(*entry.type) != 1 || entry.shape != shape) {
    return make_error(ErrorCode::kBadData, "{}: {} is {} with {} dimensions, expected {} elements of F32, F16 or BF16",
                      source, name, printable(entry.type_name), entry.shape.size(), fmt::format("{}", shape.front()));
  }
  std::vector<float> values(entry.bytes.size() / static_cast<std::size_t>(block_bytes(*entry.type)));
  decode_row(*entry.type, entry.bytes, values);
  return values;
}

Status read_dense(const fs::path& folder, EmbeddingRecipe& recipe) {
  const fs::path path = folder / "config.json";
  BF_ASSIGN_OR_RETURN(const nlohmann::json json, read_json(path));
  BF_TRY(expect_object(json, path));
  const JsonObject object(json, path.string());
  EmbeddingDense dense;
  BF_ASSIGN_OR_RETURN(const int inputs, object.integer("in_features"));
  BF_ASSIGN_OR_RETURN(const int outputs, object.integer("out_features"));
  dense.inputs = inputs;
  dense.outputs = outputs;
  BF_ASSIGN_OR_RETURN(const bool bias, object.flag_or("bias", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const std::string activation,
                      object.text_or("activation_function", "torch.nn.modules.activation.Tanh"));
  if (activation.ends_with(".Tanh")) {
    dense.activation = EmbeddingDense::Activation::kTanh;
  } else if (!activation.ends_with(".Identity")) {
    return unsupported(object, "activation_function", activation, "Tanh or Identity");
  }
  const std::string weights = (folder / "model.safetensors").string();
  BF_ASSIGN_OR_RETURN(const auto mapping, MappedFile::open(weights));
  BF_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::parse(mapping->bytes(), weights));
  BF_ASSIGN_OR_RETURN(dense.weight, read_tensor(file, weights, "linear.weight", {dense.outputs, dense.inputs}));
  if (bias) {
    BF_ASSIGN_OR_RETURN(dense.bias, read_tensor(file, weights, "linear.bias", {dense.outputs}));
  }
  recipe.dense.push_back(std::move(dense));
  return {};
}

/// modules.json lists what a text goes through; a module's files are in the folder of its path.
Status read_modules(const fs::path& directory, EmbeddingRecipe& recipe) {
  const fs::path path = directory / "modules.json";
  BF_ASSIGN_OR_RETURN(const nlohmann::json modules, read_json(path));
  if (modules.is_null()) return {};
  if (!modules.is_array()) {
    return make_error(ErrorCode::kBadData, "{}: is {}, expected a list", path.string(), modules.type_name());
  }
  for (const nlohmann::json& module : modules) {
    BF_TRY(expect_object(module, path));
    const JsonObject object(module, path.string());
    BF_ASSIGN_OR_RETURN(const std::string type, object.text_or("type", ""));
    BF_ASSIGN_OR_RETURN(const std::string place, object.text_or("path", ""));
    const bool plain = place.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && place != "..";
    if (!plain) return unsupported(object, "a module's path", place, "a folder of this directory");
    if (type.ends_with(".Transformer") || type.ends_with(".Normalize")) continue;
    if (type.ends_with(".Pooling")) {
      BF_TRY(read_poolings(directory / place, recipe));
    } else if (type.ends_with(".Dense")) {
      BF_TRY(read_dense(directory / place, recipe));
    } else {
      return unsupported(object, "a module", type, "Transformer, Pooling, Dense or Normalize");
    }
  }
  return {};
}

Status read_prompts(const fs::path& directory, EmbeddingRecipe& recipe) {
  const fs::path path = directory / "config_sentence_transformers.json";
  BF_ASSIGN_OR_RETURN(const nlohmann::json json, read_json(path));
  if (json.is_null()) return {};
  BF_TRY(expect_object(json, path));
  const JsonObject object(json, path.string());
  BF_ASSIGN_OR_RETURN(recipe.default_prompt, object.text_or("default_prompt_name", ""));
  const nlohmann::json* prompts = object.find("prompts");
  if (prompts == nullptr) return {};
  BF_TRY(expect_object(*prompts, path));
  for (const auto& [name, text] : prompts->items()) {
    if (!text.is_string()) {
      return make_error(ErrorCode::kBadData, "{}: the prompt {} is {}, expected a text", path.string(), printable(name),
                        text.type_name());
    }
    recipe.prompts[name] = text.get<std::string>();
  }
  return {};
}

/// Tokens that a text may have; the tokenizer's own length counts where the modules name none.
Status read_length(const fs::path& directory, EmbeddingRecipe& recipe) {
  for (const auto& [file, key] :
       {std::pair{"sentence_bert_config.json", "max_seq_length"}, {"tokenizer_config.json", "model_max_length"}}) {
    const fs::path path = directory / file;
    BF_ASSIGN_OR_RETURN(const nlohmann::json json, read_json(path));
    if (json.is_null()) continue;
    BF_TRY(expect_object(json, path));
    // What has no limit is written as 1e30.
    constexpr float kUnlimited = 1 << 24;
    BF_ASSIGN_OR_RETURN(const float tokens, JsonObject(json, path.string()).number_or(key, 0));
    if (tokens < 1 || tokens >= kUnlimited) continue;
    recipe.tokens_max = static_cast<int>(tokens);
    return {};
  }
  return {};
}

Status read_gguf_pooling(const Checkpoint& checkpoint, EmbeddingRecipe& recipe) {
  BF_ASSIGN_OR_RETURN(const auto mapping, MappedFile::open(checkpoint.path));
  BF_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(mapping->bytes(), checkpoint.path));
  BF_ASSIGN_OR_RETURN(const int type, GgufKeys(file, checkpoint.config.architecture).integer_or("pooling_type", 0));
  // 0: nothing is said. 4: a score of a pair of texts.
  constexpr std::array kByNumber{Pooling::kMean, Pooling::kMean, Pooling::kCls, Pooling::kLast};
  if (type >= static_cast<int>(kByNumber.size())) {
    return make_error(ErrorCode::kUnsupported, "{}: pooling_type is {}, supported are 0 to {}", checkpoint.path, type,
                      kByNumber.size() - 1);
  }
  if (type > 0) recipe.poolings = {kByNumber[static_cast<std::size_t>(type)]};
  return {};
}

}  // namespace

Result<Pooling> parse_pooling(std::string_view name) {
  std::string names;
  for (const PoolingName& known : kPoolingNames) {
    if (name == known.name || name == known.module_name) return known.pooling;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  return make_error(ErrorCode::kInvalidArgument, "\"{}\" is no kind of pooling; there are {}", printable(name), names);
}

std::string_view to_string(Pooling pooling) {
  const auto* found = std::ranges::find(kPoolingNames, pooling, &PoolingName::pooling);
  return found == kPoolingNames.end() ? "?" : found->name;
}

Result<EmbeddingRecipe> read_embedding_recipe(const Checkpoint& checkpoint) {
  EmbeddingRecipe recipe;
  recipe.poolings = {checkpoint.config.encoder_layers > 0 ? Pooling::kMean : Pooling::kLast};
  std::error_code error;
  if (!fs::is_directory(checkpoint.path, error)) {
    if (checkpoint.format.starts_with("gguf")) BF_TRY(read_gguf_pooling(checkpoint, recipe));
    return recipe;
  }
  const fs::path directory(checkpoint.path);
  BF_TRY(read_modules(directory, recipe));
  BF_TRY(read_prompts(directory, recipe));
  BF_TRY(read_length(directory, recipe));
  return recipe;
}

}  // namespace butterfly
