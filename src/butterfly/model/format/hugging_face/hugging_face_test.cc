#include "butterfly/model/format/hugging_face/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/json.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/hugging_face/hugging_face_config.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Writes safetensors files: entries in the order of addition.
class Safetensors {
 public:
  void add(const std::string& name, const std::vector<std::int64_t>& shape, std::string_view bytes,
           const char* dtype = "F32") {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void write(const std::string& path, std::size_t header_padding = 0) const {
    const std::string header = dump_json(header_) + std::string(header_padding, ' ');
    const std::uint64_t length = header.size();
    write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + header + data_);
  }

 private:
  json header_ = json::object();
  std::string data_;
};

using Rows = std::vector<std::string>;

Rows rows_of(const WeightView& view) {
  Rows rows;
  const std::string_view bytes = as_text(view.bytes);
  const std::int64_t outputs = view.rows == 1 ? view.cols : view.rows;
  const std::size_t size = bytes.size() / static_cast<std::size_t>(outputs);
  for (std::size_t at = 0; at < bytes.size(); at += size) rows.emplace_back(bytes.substr(at, size));
  return rows;
}

std::string join(const Rows& rows) {
  std::string result;
  for (const std::string& row : rows) result += row;
  return result;
}

/// As transformers stores it: pair i of a head is (i, i + half) instead of (2i, 2i + 1).
std::string halves_from_adjacent(const WeightView& view, std::size_t head_dim) {
  const Rows rows = rows_of(view);
  Rows result(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t in_head = r % head_dim;
    const std::size_t to = in_head % 2 == 0 ? in_head / 2 : head_dim / 2 + in_head / 2;
    result[r - in_head + to] = rows[r];
  }
  return join(result);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string llama_name(std::string name) {
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"token_embd", "model.embed_tokens"},
                                                        {"output_norm", "model.norm"},
                                                        {"blk.", "model.layers."},
                                                        {"attn_norm", "input_layernorm"},
                                                        {"attn_q", "self_attn.q_proj"},
                                                        {"attn_k", "self_attn.k_proj"},
                                                        {"attn_v", "self_attn.v_proj"},
                                                        {"attn_output", "self_attn.o_proj"},
                                                        {"ffn_norm", "post_attention_layernorm"},
                                                        {"ffn_gate", "mlp.gate_proj"},
                                                        {"ffn_up", "mlp.up_proj"},
                                                        {"ffn_down", "mlp.down_proj"}}) {
    name = replaced(name, from, to);
  }
  return name == "output.weight" ? "lm_head.weight" : name;
}

json llama_config(const ModelConfig& c, const char* type) {
  return {{"model_type", type},
          {"hidden_size", c.model_dim},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"intermediate_size", c.ff_dim},
          {"vocab_size", c.vocab},
          {"max_position_embeddings", c.context},
          {"rms_norm_eps", c.norm_epsilon},
          {"rope_theta", c.rope.base},
          {"tie_word_embeddings", c.tied_head},
          {"hidden_act", "silu"}};
}

/// The weights of a Hugging Face directory for `model`, its rows in transformers' order.
std::vector<std::pair<std::string, std::string>> llama_weights(const Checkpoint& model,
                                                               std::vector<std::vector<std::int64_t>>& shapes) {
  std::vector<std::pair<std::string, std::string>> result;
  for (const WeightInfo& info : model.weights->list()) {
    const WeightView view = *model.weights->find(info.name);
    const bool reordered =
        model.config.rope.pairs == RopePairs::kAdjacent &&
        (info.name.find("attn_q") != std::string::npos || info.name.find("attn_k") != std::string::npos);
    result.emplace_back(llama_name(info.name),
                        reordered ? halves_from_adjacent(view, static_cast<std::size_t>(model.config.head_dim))
                                  : std::string(as_text(view.bytes)));
    shapes.push_back(view.rows == 1 ? std::vector<std::int64_t>{view.cols}
                                    : std::vector<std::int64_t>{view.rows, view.cols});
  }
  return result;
}

void write_llama(const TempDir& dir, const Checkpoint& model, const char* type = "llama") {
  write_file(dir / "config.json", dump_json(llama_config(model.config, type)));
  std::vector<std::vector<std::int64_t>> shapes;
  Safetensors file;
  const auto weights = llama_weights(model, shapes);
  for (std::size_t i = 0; i < weights.size(); ++i) file.add(weights[i].first, shapes[i], weights[i].second);
  file.write(dir / "model.safetensors");
}

TEST(HuggingFace, LlamaAndQwen2DirectoriesHaveTheWeightsOfTheModelTheyCameFrom) {
  for (const char* type : {"llama", "qwen2"}) {
    const TempDir dir;
    const Checkpoint model = small_checkpoint(type);
    write_llama(dir, model, type);
    const auto opened = open_checkpoint(dir.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->config.architecture, type);
    EXPECT_EQ(opened->config.rope.pairs, model.config.rope.pairs);
    EXPECT_EQ(opened->config.tied_head, model.config.tied_head);
    EXPECT_EQ(opened->vocabulary.kind, TokenizerKind::kNone);
    expect_same_weights(*model.weights, *opened->weights);
  }
}

TEST(HuggingFace, UnalignedTensorsAreHandedOutAligned) {
  const TempDir dir;
  const Checkpoint model = small_checkpoint();
  write_llama(dir, model);
  std::string bytes = read_file(dir / "model.safetensors");
  const std::uint64_t length = *reinterpret_cast<const std::uint64_t*>(bytes.data()) + 1;
  bytes.replace(0, 8, std::string(reinterpret_cast<const char*>(&length), 8));
  bytes.insert(8 + length - 1, " ");
  write_file(dir / "model.safetensors", bytes);
  const auto opened = open_checkpoint(dir.path());
  ASSERT_TRUE(opened) << opened.error().message;
  expect_same_weights(*model.weights, *opened->weights);
  for (const WeightInfo& info : opened->weights->list()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(opened->weights->find(info.name)->bytes.data()) % 4, 0u) << info.name;
  }
}

TEST(HuggingFace, ShardsAreReadThroughTheIndexAndNothingOutsideTheDirectoryIs) {
  const TempDir dir;
  const Checkpoint model = small_checkpoint();
  write_file(dir / "config.json", dump_json(llama_config(model.config, "llama")));
  std::vector<std::vector<std::int64_t>> shapes;
  const auto weights = llama_weights(model, shapes);
  Safetensors shards[2];
  json index;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    shards[i % 2].add(weights[i].first, shapes[i], weights[i].second);
    index["weight_map"][weights[i].first] = i % 2 == 0 ? "model-1.safetensors" : "model-2.safetensors";
  }
  shards[0].write(dir / "model-1.safetensors");
  shards[1].write(dir / "model-2.safetensors");
  write_file(dir / "model.safetensors.index.json", dump_json(index));
  const auto opened = open_checkpoint(dir.path());
  ASSERT_TRUE(opened) << opened.error().message;
  expect_same_weights(*model.weights, *opened->weights);
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", "..", "", "a/b"}) {
    index["weight_map"]["model.norm.weight"] = name;
    write_file(dir / "model.safetensors.index.json", dump_json(index));
    const auto escaped = open_checkpoint(dir.path());
    ASSERT_FALSE(escaped) << name;
    EXPECT_THAT(escaped.error().message, HasSubstr("model.norm.weight is not in a file of this directory"));
  }
  index["weight_map"]["model.norm.weight"] = "model-1.safetensors";
  index["weight_map"]["model.ghost"] = "model-1.safetensors";
  write_file(dir / "model.safetensors.index.json", dump_json(index));
  EXPECT_THAT(open_checkpoint(dir.path()).error().message,
              HasSubstr("lacks the weight model.ghost, which the index places there"));
}

TEST(HuggingFace, Gpt2MatricesAreTransposedAndTakenApart) {
  const TempDir dir;
  const Checkpoint model = small_checkpoint("gpt2");
  const ModelConfig& c = model.config;
  write_file(dir / "config.json", dump_json(json{{"model_type", "gpt2"},
                                                 {"n_embd", c.model_dim},
                                                 {"n_layer", c.layers},
                                                 {"n_head", c.heads},
                                                 {"n_inner", c.ff_dim},
                                                 {"vocab_size", c.vocab},
                                                 {"n_positions", c.context}}));
  Safetensors file;
  const auto values = [&](const std::string& name) {
    const WeightView view = *model.weights->find(name);
    std::vector<float> result(view.bytes.size() / 4);
    std::memcpy(result.data(), view.bytes.data(), view.bytes.size());
    return result;
  };
  using Shape = std::vector<std::int64_t>;
  const auto add = [&](const std::string& name, const Shape& shape, const std::vector<float>& data) {
    file.add(name, shape, as_text(std::as_bytes(std::span(data))));
  };
  const auto joined = [&](const std::vector<std::string>& parts) {
    std::vector<float> all;
    for (const std::string& part : parts) std::ranges::copy(values(part), std::back_inserter(all));
    return all;
  };
  // Stored as [inputs, outputs]: element (i, o) of the file is element (o, i) of the weight.
  const auto add_conv = [&](const std::string& name, const std::vector<std::string>& parts, std::int64_t inputs) {
    const std::vector<float> all = joined(parts);
    const std::int64_t outputs = static_cast<std::int64_t>(all.size()) / inputs;
    std::vector<float> transposed;
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t o = 0; o < outputs; ++o) transposed.push_back(all[static_cast<std::size_t>(o * inputs + i)]);
    }
    add(name, {inputs, outputs}, transposed);
  };
  const auto add_vector = [&](const std::string& name, const std::vector<std::string>& parts) {
    const std::vector<float> all = joined(parts);
    add(name, {static_cast<std::int64_t>(all.size())}, all);
  };
  // Without the "transformer." in front, as a model saved without its head has it.
  add("wte.weight", {c.vocab, c.model_dim}, values("token_embd.weight"));
  add("wpe.weight", {c.context, c.model_dim}, values("position_embd.weight"));
  for (const char* kind : {".weight", ".bias"})
    add_vector(std::string("ln_f") + kind, {std::string("output_norm") + kind});
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string to = "h." + std::to_string(layer) + ".";
    const std::string from = "blk." + std::to_string(layer) + ".";
    for (const char* kind : {".weight", ".bias"}) {
      add_vector(to + "ln_1" + kind, {from + "attn_norm" + kind});
      add_vector(to + "ln_2" + kind, {from + "ffn_norm" + kind});
    }
    add_conv(to + "attn.c_attn.weight", {from + "attn_q.weight", from + "attn_k.weight", from + "attn_v.weight"},
             c.model_dim);
    add_vector(to + "attn.c_attn.bias", {from + "attn_q.bias", from + "attn_k.bias", from + "attn_v.bias"});
    add_conv(to + "attn.c_proj.weight", {from + "attn_output.weight"}, c.model_dim);
    add_vector(to + "attn.c_proj.bias", {from + "attn_output.bias"});
    add_conv(to + "mlp.c_fc.weight", {from + "ffn_up.weight"}, c.model_dim);
    add_vector(to + "mlp.c_fc.bias", {from + "ffn_up.bias"});
    add_conv(to + "mlp.c_proj.weight", {from + "ffn_down.weight"}, c.ff_dim);
    add_vector(to + "mlp.c_proj.bias", {from + "ffn_down.bias"});
  }
  file.write(dir / "model.safetensors");
  const auto opened = open_checkpoint(dir.path());
  ASSERT_TRUE(opened) << opened.error().message;
  expect_same_weights(*model.weights, *opened->weights);
}

/// A matrix of int8 as compressed-tensors stores it: the rows' quants, and their scales.
std::pair<std::string, std::string> quants_and_scales(const std::string& rows, std::int64_t count) {
  std::string quants, scales;
  const std::size_t row = rows.size() / static_cast<std::size_t>(count);
  for (std::size_t at = 0; at < rows.size(); at += sizeof(BlockQ8_0)) {
    if (at % row == 0) scales += rows.substr(at, 2);
    quants += rows.substr(at + 2, kQuantBlock);
  }
  return {quants, scales};
}

// Fails where rows of Q and K, which are reordered, get the scales of others.
TEST(HuggingFace, Int8RowsOfCompressedTensorsAreThoseOfAGguf) {
  const Checkpoint model = small_checkpoint("llama", DType::kInt8);
  const TempDir dir;
  write_file(dir / "config.json", dump_json(llama_config(model.config, "llama")));
  std::vector<std::vector<std::int64_t>> shapes;
  const auto weights = llama_weights(model, shapes);
  Safetensors file;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& [name, bytes] = weights[i];
    if (shapes[i].size() == 1) {
      file.add(name, shapes[i], bytes);
      continue;
    }
    const auto [quants, scales] = quants_and_scales(bytes, shapes[i][0]);
    file.add(name, shapes[i], quants, "I8");
    file.add(name + "_scale", {shapes[i][0], 1}, scales, "F16");
  }
  file.write(dir / "model.safetensors");
  const auto opened = open_checkpoint(dir.path(), {.vocabulary_required = false});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->config.weight_type, DType::kInt8);
  expect_same_weights(*model.weights, *opened->weights);
  ASSERT_TRUE(convert(*opened, dir / "m.gguf", {}));
  const auto gguf = open_checkpoint(dir / "m.gguf", {.vocabulary_required = false});
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->config.weight_type, DType::kInt8);
  expect_same_weights(*model.weights, *gguf->weights);
}

TEST(HuggingFace, ADirectoryAndTheGgufMadeFromItGiveTheSameWeights) {
  for (const char* name : {"TinyStories-656K", "chemts_gpt2_0.2m"}) {
    BF_NEEDS_DATA("models");
    const TempDir dir;
    const auto directory = open_checkpoint(data_path(std::string("models/") + name), {.vocabulary_required = false});
    ASSERT_TRUE(directory) << directory.error().message;
    ASSERT_TRUE(convert(*directory, dir / "m.gguf", {}));
    const auto file = open_checkpoint(dir / "m.gguf");
    ASSERT_TRUE(file) << file.error().message;
    expect_same_weights(*directory->weights, *file->weights);
    EXPECT_EQ(directory->vocabulary.end_tokens, file->vocabulary.end_tokens);
    EXPECT_EQ(directory->vocabulary.merges, file->vocabulary.merges);
  }
}

TEST(HuggingFace, TinyStoriesDirectoryEqualsTheGgufThatOthersMade) {
  BF_NEEDS_DATA("models/TinyStories-656K");
  const auto directory = open_checkpoint(data_path("models/TinyStories-656K"));
  const auto file = open_checkpoint(data_path("models/TinyStories-656K/TinyStories-656K.gguf"));
  ASSERT_TRUE(directory) << directory.error().message;
  ASSERT_TRUE(file) << file.error().message;
  expect_same_weights(*file->weights, *directory->weights);
  EXPECT_EQ(directory->config.weight_type, DType::kF32);
  EXPECT_EQ(directory->vocabulary.eos, file->vocabulary.eos);
}

struct ConfigCase {
  const char* patch;     // merged into a valid llama config.json
  const char* expected;  // part of the message; empty: accepted
};

TEST(HuggingFaceConfig, NamesWhatItCannotRead) {
  const json valid = llama_config(small_config(), "llama");
  for (
      const ConfigCase& c : std::vector<ConfigCase>{
          {R"({})", ""},
          {R"({"model_type": "mistral", "sliding_window": null})", ""},
          {R"({"model_type": "mistral", "sliding_window": 4096})", ""},
          {R"({"model_type": "mistral", "sliding_window": -1})", "sliding_window is -1, expected 0 to"},
          {R"({"model_type": "qwen3", "layer_types": ["full_attention"], "use_sliding_window": true})",
           "1 layer_types for 2 layers"},
          {R"({"model_type": "gemma2", "query_pre_attn_scalar": 0})", "scale of the attention scores is inf"},
          {R"({"model_type": "granite", "logits_scaling": 0})", "scale of the logits is inf"},
          {R"({"model_type": "smollm3", "no_rope_layers": [1]})", "1 no_rope_layers"},
          {R"({"rope_scaling": {"type": "yarn", "factor": 0}})", "yarn rope scaling by 0"},
          {R"({"rope_scaling": {"type": "longrope", "short_factor": [1]}})", "1 rope frequency factors"},
          {R"({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false})", ""},
          {R"({"model_type": "bart"})", "model_type is bart"},
          {R"({"model_type": 5})", "model_type is number, expected a string"},
          {R"({"hidden_size": null})", "lacks hidden_size"},
          {R"({"hidden_size": "32"})", "hidden_size is string, expected an integer"},
          {R"({"hidden_size": 32.5})", "hidden_size is number, expected an integer"},
          {R"({"hidden_size": 1e30})", "hidden_size is number, expected an integer"},
          {R"({"hidden_size": 33})", "hidden_size 33 does not divide into 4 heads"},
          {R"({"hidden_size": -32})", "hidden_size is -32"},
          {R"({"hidden_size": 18446744073709551615})", "hidden_size is 18446744073709551615"},
          {R"({"num_attention_heads": 0})", "num_attention_heads is 0"},
          {R"({"num_hidden_layers": 2000000000})", "number of layers is 2000000000"},
          {R"({"hidden_act": "relu"})", "hidden_act is relu"},
          {R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", "the rope type is dynamic"},
          {R"({"rope_scaling": {"rope_type": "llama3", "factor": 2}})", "lacks low_freq_factor"},
          {R"({"rope_scaling": 7})", "rope_scaling is number, expected an object"},
          {R"({"rope_scaling": {"type": "linear", "factor": -1}})", "rope scaling factor is -1"},
          {R"({"quantization_config": {"bits": 4}})", "quant_method is missing, supported is fp8, mxfp4 or"},
          {R"({"quantization_config": {"quant_method": "gptq"}})",
           "quant_method is gptq, supported is fp8, mxfp4 or compressed-tensors"},
          {R"({"quantization_config": {"quant_method": "awq"}})", "quant_method is awq"},
          {R"({"quantization_config": {"quant_method": "bitsandbytes"}})", "quant_method is bitsandbytes"},
          {R"({"quantization_config": {"quant_method": "fp8"}})", "weight_block_size is [], supported is [128, 128]"},
          {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})", ""},
          {R"({"quantization_config": {"quant_method": "mxfp4"}})", ""},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true}}}}})",
           ""},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})",
           "format is pack-quantized, supported is int-quantized"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
                "group_0": {"weights": {"num_bits": 4, "type": "int"}}}}})",
           "num_bits is 4, supported is 8"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "strategy": "group"}}}}})",
           "strategy is group, supported is channel or tensor"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "symmetric": false}}}}})",
           "symmetric is false"},
          {R"({"quantization_config": 4})", "quantization_config is number"},
          {R"({"eos_token_id": [1, 99]})", "an eos_token_id is 99, expected 0 to 11"},
          {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
      }) {
    json config = valid;
    // Not merge_patch, which drops nulls.
    const json patch = parse_json(c.patch);
    for (const auto& [key, value] : patch.items()) config[key] = value;
    const auto read = read_hugging_face_config(dump_json(config), "", "dir");
    EXPECT_EQ(read.has_value(), *c.expected == '\0') << c.patch << (read ? "" : read.error().message);
    if (!read) {
      EXPECT_THAT(read.error().message, HasSubstr(c.expected)) << c.patch;
    }
  }
  EXPECT_THAT(read_hugging_face_config("[1", "", "dir").error().message, HasSubstr("no JSON object"));
}

// Fails where a family computes with an activation that its file does not name.
TEST(HuggingFaceConfig, ActivationsAreThoseThatFilesName) {
  const auto read = [](const char* type, const char* key, const char* name) {
    json config = llama_config(small_config(), type);
    config.erase("hidden_act");
    if (name != nullptr) config[key] = name;
    return read_hugging_face_config(dump_json(config), "", "dir")->model.activation;
  };
  EXPECT_EQ(read("llama", "hidden_act", nullptr), Activation::kSilu);
  EXPECT_EQ(read("llama", "hidden_act", "gelu"), Activation::kGeluErf);
  EXPECT_EQ(read("mistral", "hidden_act", "gelu_new"), Activation::kGeluTanh);
  EXPECT_EQ(read("gemma", "hidden_act", "silu"), Activation::kSilu);
  EXPECT_EQ(read("gemma2", "hidden_activation", "silu"), Activation::kSilu);
  EXPECT_EQ(read("gemma2", "hidden_activation", nullptr), Activation::kGeluTanh);
  EXPECT_EQ(read("gemma", "hidden_act", "gelu"), Activation::kGeluTanh) << "what the first files meant";
}

TEST(HuggingFaceConfig, RopeScalingIsReadUnderOldAndNewNames) {
  json config = llama_config(small_config(), "llama");
  const auto read = [&] { return read_hugging_face_config(dump_json(config), "", "dir")->model.rope; };
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read().scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(read().factor, 2.0f);
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8}};
  config["rope_scaling"] = llama3;
  const RopeConfig old_name = read();
  EXPECT_EQ(old_name.factors.size(), 4u);
  EXPECT_EQ(old_name.factors.back(), 8.0f);  // 6,283 positions a turn are long beside a context of 8
  config.erase("rope_scaling");
  config["rope_theta"] = nullptr;
  config["rope_parameters"] = llama3;
  config["rope_parameters"]["rope_theta"] = 10000.0;
  EXPECT_EQ(read().factors, old_name.factors);
  EXPECT_EQ(read().base, 10000.0f);
}

TEST(HuggingFaceConfig, EndTokensComeFromBothFilesOnce) {
  json config = llama_config(small_config(), "llama");
  config["eos_token_id"] = 2;
  const auto read = read_hugging_face_config(dump_json(config), R"({"eos_token_id": [2, 7]})", "dir");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->end_tokens, (std::vector<TokenId>{TokenId{2}, TokenId{7}}));
}

TEST(HuggingFace, MissingFilesAndWeightsAreNamed) {
  const TempDir dir;
  EXPECT_THAT(open_checkpoint(dir.path()).error().message, HasSubstr("config.json: there is no such file"));
  const Checkpoint model = small_checkpoint();
  write_file(dir / "config.json", dump_json(llama_config(model.config, "llama")));
  const auto no_weights = open_checkpoint(dir.path());
  EXPECT_EQ(no_weights.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(no_weights.error().message, HasSubstr("model.safetensors"));
  ModelConfig deeper = model.config;
  deeper.layers = 3;
  write_llama(dir, model);
  write_file(dir / "config.json", dump_json(llama_config(deeper, "llama")));
  EXPECT_THAT(open_checkpoint(dir.path()).error().message,
              HasSubstr("lacks the weight model.layers.2.input_layernorm.weight (blk.2.attn_norm.weight)"));
  deeper.layers = 2;
  deeper.ff_dim = 96;
  write_file(dir / "config.json", dump_json(llama_config(deeper, "llama")));
  EXPECT_THAT(open_checkpoint(dir.path()).error().message,
              HasSubstr("has the shape [64, 32], the model's configuration says [96, 32]"));
}

}  // namespace
}  // namespace butterfly
