// Endpoints that read texts without continuing them: vectors and tokens.
#include <algorithm>
#include <cstring>

#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/serve/service.h"

namespace butterfly {
namespace {

constexpr std::size_t kInputsMax = 2048;

std::string base64(const std::vector<float>& vector) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(vector.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), vector.data(), bytes.size());
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

/// Ids that the vocabulary has; fails otherwise.
std::vector<TokenId> read_ids(JsonFields& fields, const char* name, const nlohmann::ordered_json& list,
                              int vocabulary) {
  std::vector<TokenId> ids;
  for (const auto& each : list) {
    const double number = each.is_number_integer() ? each.get<double>() : -1;
    if (number < 0 || number >= vocabulary) {
      fields.fail(name, fmt::format("{} has {}, expected token ids from 0 to {}", name,
                                    one_line(dump_json(each).substr(0, 40)), vocabulary - 1));
      return {};
    }
    ids.emplace_back(each.get<std::int32_t>());
  }
  return ids;
}

void read_inputs(JsonFields& fields, int vocabulary, std::vector<EmbedInput>& inputs) {
  const auto* input = fields.find("input");
  if (input == nullptr) return fields.fail("input", "input is missing", "missing_required_parameter");
  if (input->is_string()) {
    inputs.emplace_back(input->get<std::string>());
    return;
  }
  const bool fits = input->is_array() && !input->empty() && input->size() <= kInputsMax;
  if (!fits && !(input->is_array() && !input->empty() && input->front().is_number())) {
    return fields.fail("input",
                       fmt::format("input must be a string, 1 to {} strings, or lists of token ids", kInputsMax),
                       "invalid_type");
  }
  if (input->front().is_number()) {
    inputs.emplace_back(read_ids(fields, "input", *input, vocabulary));
    return;
  }
  for (const auto& each : *input) {
    if (each.is_string()) {
      inputs.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      inputs.emplace_back(read_ids(fields, "input", each, vocabulary));
    } else {
      return fields.fail("input", "input must be strings, or lists of token ids", "invalid_type");
    }
  }
}

std::string embeddings_json(const EmbedResult& result, const std::string& model, bool as_base64) {
  nlohmann::ordered_json json = {{"object", "list"}, {"data", nlohmann::ordered_json::array()}};
  for (std::size_t i = 0; i < result.vectors.size(); ++i) {
    nlohmann::ordered_json one = {{"object", "embedding"}, {"index", i}};
    if (as_base64) {
      one["embedding"] = base64(result.vectors[i]);
    } else {
      one["embedding"] = result.vectors[i];
    }
    json["data"].push_back(std::move(one));
  }
  json["model"] = model;
  json["usage"] = {{"prompt_tokens", result.tokens}, {"total_tokens", result.tokens}};
  return dump_json(json);
}

}  // namespace

void Service::embeddings(Call& call) {
  if (!check_ready(call)) return;
  Embedder* const embedder = embedder_;
  if (embedder == nullptr) {
    return fail(call, {.status = 400,
                       .message = fmt::format("{} continues texts here: for its vectors, start the server with "
                                              "--embeddings",
                                              options_.model),
                       .code = "unsupported_endpoint"});
  }
  nlohmann::ordered_json json;
  if (!parse(call, json)) return;
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  std::string model, format = "float";
  std::int64_t dim = 0;
  std::vector<EmbedInput> inputs;
  fields.read("model", model);
  read_inputs(fields, embedder->tokenizer().vocabulary().size(), inputs);
  if (fields.read("encoding_format", format) && format != "float" && format != "base64") {
    fields.fail("encoding_format",
                fmt::format("encoding_format is \"{}\", expected float or base64", one_line(format.substr(0, 40))));
  }
  fields.read("dimensions", dim, {1, 1 << 22});
  fields.ignore({"user", "priority", "truncate_prompt_tokens"});
  fields.finish();
  if (error) return fail(call, *error);
  if (!check_model(call, model)) return;
  const auto done = [this, call, format](Result<EmbedResult> result) mutable {
    if (!result) return fail(call, to_api_error(result.error()));
    send(call, embeddings_json(*result, options_.model, format == "base64"));
  };
  const Status status = embedder->submit(inputs, static_cast<int>(dim), done);
  if (status) return;
  ApiError refused = to_api_error(status.error());
  if (status.error().code == ErrorCode::kUnavailable) refused.status = 429;
  fail(call, refused);
}

const Tokenizer* Service::tokenizer() const {
  if (JobStore* const store = store_) return &store->engine().tokenizer();
  if (Embedder* const embedder = embedder_) return &embedder->tokenizer();
  return nullptr;
}

void Service::tokenize(Call& call) {
  const Tokenizer* const tokens_of = tokenizer();
  if (tokens_of == nullptr) {
    check_ready(call);
    return;
  }
  nlohmann::ordered_json json;
  if (!parse(call, json)) return;
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  std::string model, text;
  bool special = true, pieces = false;
  fields.read("model", model);
  const bool given = fields.read("prompt", text) || fields.read("content", text);
  fields.read("add_special_tokens", special);
  fields.read("add_special", special);
  fields.read("with_pieces", pieces);
  fields.read("return_token_strs", pieces);
  fields.ignore({"content", "parse_special"});
  if (!given && fields.ok()) fields.fail("prompt", "prompt is missing", "missing_required_parameter");
  fields.finish();
  if (error) return fail(call, *error);
  if (!check_model(call, model)) return;
  const auto tokens = tokens_of->encode(text, {.add_bos = special});
  if (!tokens) return fail(call, to_api_error(tokens.error()));
  nlohmann::ordered_json answer = {{"count", tokens->size()}, {"max_model_len", model_json()["max_model_len"]}};
  answer["tokens"] = nlohmann::ordered_json::array();
  for (const TokenId token : *tokens) {
    answer["tokens"].push_back(token.value);
    if (pieces) answer["token_strs"].push_back(tokens_of->piece(token, Tokenizer::Control::kShown));
  }
  send(call, dump_json(answer));
}

void Service::detokenize(Call& call) {
  const Tokenizer* const tokens_of = tokenizer();
  if (tokens_of == nullptr) {
    check_ready(call);
    return;
  }
  nlohmann::ordered_json json;
  if (!parse(call, json)) return;
  std::optional<ApiError> error;
  JsonFields fields(json, "", error);
  std::string model;
  std::vector<TokenId> ids;
  fields.read("model", model);
  const auto* tokens = fields.list("tokens");
  if (tokens != nullptr) {
    ids = read_ids(fields, "tokens", *tokens, tokens_of->vocabulary().size());
  } else {
    fields.fail("tokens", "tokens is missing", "missing_required_parameter");
  }
  fields.finish();
  if (error) return fail(call, *error);
  if (!check_model(call, model)) return;
  const std::string text = tokens_of->decode(ids, Tokenizer::Control::kShown);
  send(call, dump_json(nlohmann::ordered_json{{"prompt", text}, {"content", text}}));
}

}  // namespace butterfly
