#include "butterfly/model/format/hugging_face/hugging_face_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include "butterfly/base/json.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/hugging_face/hugging_face_families.h"
#include "butterfly/model/format/safetensors/scaled_tensors.h"

namespace butterfly {
namespace {

using nlohmann::json;

/// eos_token_id is an id or a list of them.
Status add_end_tokens(const json& object, const std::string& source, HuggingFaceConfig& config) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return {};
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(config.model.vocab)) {
      return make_error(ErrorCode::kBadData, "{}: an eos_token_id is {}, expected 0 to {}", source,
                        printable(dump_json(id, {.ascii = true})), config.model.vocab - 1);
    }
    const TokenId token{id.get<std::int32_t>()};
    auto& tokens = config.end_tokens;
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return {};
}

/// One of compressed-tensors' config_groups: what the library quantises to with W8A8 and eight bits in integers.
Status check_int8_group(const JsonObject& groups, const char* name, const json& group) {
  const std::string source = fmt::format("{}: {}", groups.source(), printable(name));
  if (!group.is_object()) return unsupported(groups, name, group.type_name(), "an object");
  const JsonObject parts(group, source);
  const json* found = parts.find("weights");
  if (found == nullptr || !found->is_object()) return unsupported(parts, "weights", "missing", "an object");
  const JsonObject weights(*found, source + ": weights");
  BF_ASSIGN_OR_RETURN(const int bits, weights.integer("num_bits"));
  BF_ASSIGN_OR_RETURN(const std::string type, weights.text_or("type", "int"));
  BF_ASSIGN_OR_RETURN(const std::string strategy, weights.text_or("strategy", "tensor"));
  BF_ASSIGN_OR_RETURN(const bool symmetric, weights.flag_or("symmetric", JsonObject::Default::kTrue));
  if (bits != 8) return unsupported(weights, "num_bits", std::to_string(bits), "8");
  if (type != "int") return unsupported(weights, "type", type, "int");
  if (strategy != "channel" && strategy != "tensor") {
    return unsupported(weights, "strategy", strategy, "channel or tensor");
  }
  return symmetric ? Status{} : unsupported(weights, "symmetric", "false", "true");
}

Status check_compressed_tensors(const JsonObject& quantisation) {
  BF_ASSIGN_OR_RETURN(const std::string format, quantisation.text_or("format", "missing"));
  if (format != "int-quantized") return unsupported(quantisation, "format", format, "int-quantized");
  const json* groups = quantisation.find("config_groups");
  if (groups == nullptr || !groups->is_object())
    return unsupported(quantisation, "config_groups", "missing", "an object");
  for (const auto& [name, group] : groups->items()) BF_TRY(check_int8_group(quantisation, name.c_str(), group));
  return {};
}

/// How weights are quantised shows in their tensors; here, what could not be read is refused by name.
Status check_quantisation(const JsonObject& object) {
  const json* found = object.find("quantization_config");
  if (!found) return {};
  if (!found->is_object()) return unsupported(object, "quantization_config", found->type_name(), "an object or null");
  const JsonObject quantisation(*found, object.source() + ": quantization_config");
  BF_ASSIGN_OR_RETURN(const std::string method, quantisation.text_or("quant_method", "missing"));
  if (method == "mxfp4") return {};
  if (method == "compressed-tensors") return check_compressed_tensors(quantisation);
  if (method != "fp8") return unsupported(quantisation, "quant_method", method, "fp8, mxfp4 or compressed-tensors");
  BF_ASSIGN_OR_RETURN(const std::string format, quantisation.text_or("fmt", "e4m3"));
  if (format != "e4m3") return unsupported(quantisation, "fmt", format, "e4m3");
  BF_ASSIGN_OR_RETURN(const auto block, quantisation.numbers("weight_block_size"));
  if (block != std::vector<float>{kFp8Block, kFp8Block}) {
    return unsupported(quantisation, "weight_block_size", fmt::format("[{}]", fmt::join(block, ", ")), "[128, 128]");
  }
  return {};
}

Result<json> parse_object(const std::string& text, const std::string& source) {
  json object = parse_json(text);
  if (!object.is_object())
    return make_error(ErrorCode::kBadData, "{}: {} bytes that are no JSON object", source, text.size());
  return object;
}

}  // namespace

Result<HuggingFaceConfig> read_hugging_face_config(const std::string& config_json, const std::string& generation_json,
                                                   const std::string& source) {
  const std::string config_source = source + "/config.json";
  BF_ASSIGN_OR_RETURN(const json parsed, parse_object(config_json, config_source));
  const JsonObject object(parsed, config_source);
  BF_TRY(check_quantisation(object));
  HuggingFaceConfig result;
  ModelConfig& config = result.model;
  BF_ASSIGN_OR_RETURN(config, read_hugging_face_family(object));
  if (auto valid = validate(config); !valid) {
    return make_error(valid.error().code, "{}: {}", config_source, valid.error().message);
  }
  config.rope = with_explicit_factors(config.rope);
  config.local_rope = with_explicit_factors(config.local_rope);
  BF_TRY(add_end_tokens(parsed, config_source, result));
  if (!generation_json.empty()) {
    const std::string generation_source = source + "/generation_config.json";
    BF_ASSIGN_OR_RETURN(const json generation, parse_object(generation_json, generation_source));
    BF_TRY(add_end_tokens(generation, generation_source, result));
  }
  BF_ASSIGN_OR_RETURN(const int bos, object.integer_or("bos_token_id", -1));
  if (bos < config.vocab) result.bos = TokenId{bos};
  return result;
}

}  // namespace butterfly
