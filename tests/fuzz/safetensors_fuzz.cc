// Any bytes as a safetensors file and as the JSON files beside it: refused with a message, or readable to the last
// byte.
#include "butterfly/model/format/hugging_face/hugging_face_config.h"
#include "butterfly/model/format/hugging_face/hugging_face_weights.h"
#include "butterfly/model/format/safetensors/safetensors.h"
#include "seeds.h"

namespace {

constexpr const char* kConfig =
    R"({"model_type":"llama","hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,)"
    R"("intermediate_size":4,"vocab_size":4,"max_position_embeddings":8,"rms_norm_eps":1e-5,"tie_word_embeddings":true,)"
    R"("eos_token_id":[1,2],"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
    R"("high_freq_factor":4.0,"original_max_position_embeddings":8}})";

struct Entry {
  const char* name;
  int rows, cols;
};

std::string tiny_model() {
  std::string header = "{";
  int offset = 0;
  for (const Entry& e :
       {Entry{"model.embed_tokens.weight", 4, 4}, Entry{"model.norm.weight", 0, 4},
        Entry{"model.layers.0.input_layernorm.weight", 0, 4},
        Entry{"model.layers.0.post_attention_layernorm.weight", 0, 4},
        Entry{"model.layers.0.self_attn.q_proj.weight", 4, 4}, Entry{"model.layers.0.self_attn.k_proj.weight", 2, 4},
        Entry{"model.layers.0.self_attn.v_proj.weight", 2, 4}, Entry{"model.layers.0.self_attn.o_proj.weight", 4, 4},
        Entry{"model.layers.0.mlp.gate_proj.weight", 4, 4}, Entry{"model.layers.0.mlp.up_proj.weight", 4, 4},
        Entry{"model.layers.0.mlp.down_proj.weight", 4, 4}}) {
    const int size = (e.rows == 0 ? 1 : e.rows) * e.cols * 2;
    const std::string shape = e.rows == 0 ? fmt::format("[{}]", e.cols) : fmt::format("[{},{}]", e.rows, e.cols);
    header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":{},"data_offsets":[{},{}]}})", offset == 0 ? "" : ",",
                          e.name, shape, offset, offset + size);
    offset += size;
  }
  header += "}";
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(static_cast<std::size_t>(offset), 'x');
}

void check(bool accepted, const std::string& message) {
  if (!accepted && message.empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  fuzz::write_seed(folder, "model", "m" + tiny_model());
  fuzz::write_seed(folder, "llama", std::string("c") + kConfig);
  fuzz::write_seed(folder, "gpt2",
                   R"(c{"model_type":"gpt2","n_embd":4,"n_layer":1,"n_head":2,"vocab_size":4,"n_positions":8})");
  return 0;
}

/// The first byte chooses: 'c' a config.json, anything else a safetensors file read as the tiny model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  if (size == 0) return 0;
  if (data[0] == 'c') {
    const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
    const auto config = read_hugging_face_config(text, text, "input");
    check(config.has_value(), config ? "" : config.error().message);
    return 0;
  }
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  auto file = SafetensorsFile::parse(bytes, "input");
  check(file.has_value(), file ? "" : file.error().message);
  if (!file) return 0;
  static const ModelConfig config = read_hugging_face_config(kConfig, "", "tiny")->model;
  std::vector<HuggingFaceShard> shards;
  shards.push_back({.mapping = nullptr, .file = std::move(*file)});
  const auto weights = make_hugging_face_weights(std::move(shards), config, "input");
  check(weights.has_value(), weights ? "" : weights.error().message);
  if (!weights) return 0;
  unsigned sum = 0;
  for (const WeightInfo& info : (*weights)->list()) {
    const auto view = (*weights)->find(info.name);
    if (!view) std::abort();
    for (std::byte byte : view->bytes) sum += static_cast<unsigned>(byte);
  }
  static volatile unsigned sink = 0;  // keeps the reads
  sink = sink + sum;
  return 0;
}
