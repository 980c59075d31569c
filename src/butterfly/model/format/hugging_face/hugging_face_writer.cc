#include "butterfly/model/format/hugging_face/hugging_face_writer.h"

#include <cmath>
#include <filesystem>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/model/files/pending_file.h"
#include "butterfly/model/format/hugging_face/hugging_face_names.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using nlohmann::ordered_json;

const char* safetensors_type(DType type) {
  return type == DType::kF16 ? "F16" : type == DType::kBF16 ? "BF16" : "F32";
}

/// One tensor of the file. Several parts: GPT-2's Q, K and V, whose outputs stand beside one another.
struct StoredTensor {
  std::string name{};
  DType type = DType::kF32;
  std::vector<WeightInfo> parts{};
  bool transposed = false;   // [inputs, outputs]
  bool halves = false;       // rows of heads go from adjacent pairs to (i, i + half)
  std::int64_t outputs = 0;  // of all parts; of a vector: its elements
  std::int64_t inputs = 1;
  bool vector = false;
  bool one_row = false;  // a vector that is stored as a matrix

  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(outputs * inputs) * static_cast<std::uint64_t>(block_bytes(type));
  }
  std::vector<std::int64_t> shape() const {
    if (vector && one_row) return {1, outputs};
    if (vector) return {outputs};
    return transposed ? std::vector{inputs, outputs} : std::vector{outputs, inputs};
  }
};

class SafetensorsWriter {
 public:
  SafetensorsWriter(const Checkpoint& checkpoint, DType type, const std::string& path)
      : checkpoint_(checkpoint), type_(type), path_(path), file_(path) {}

  Status run() {
    plan();
    BF_TRY(file_.open());
    BF_TRY(write_header());
    for (const StoredTensor& tensor : tensors_) {
      BF_ASSIGN_OR_RETURN(const std::vector<float> values, gather(tensor));
      BF_TRY(write_values(tensor, values));
    }
    return file_.commit();
  }

 private:
  void plan() {
    const ModelConfig& config = checkpoint_.config;
    const WeightRange all{.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
    for (const WeightInfo& weight : expected_weights(config, all)) {
      const std::string name = hugging_face_name(weight.name, config.architecture);
      const std::int64_t outputs = weight.rows == 1 ? weight.cols : weight.rows;
      StoredTensor* same = nullptr;
      for (StoredTensor& tensor : tensors_) {
        if (tensor.name == name) same = &tensor;
      }
      if (same == nullptr) {
        const bool vector = weight.rows == 1;
        const bool gpt2 = config.architecture == "gpt2";
        tensors_.push_back(
            {.name = name,
             .type = vector || weight.name == "position_embd.weight" ? DType::kF32 : type_,
             .transposed = gpt2 && !vector && weight.name.starts_with("blk."),
             .halves = !gpt2 && config.rope.pairs == RopePairs::kAdjacent && is_query_or_key(weight.name),
             .inputs = vector ? 1 : weight.cols,
             .vector = vector,
             .one_row = weight.name.ends_with(".ffn_gate_inp_shexp.weight")});
        same = &tensors_.back();
      }
      same->parts.push_back(weight);
      same->outputs += outputs;
    }
  }

  Status write_header() {
    ordered_json header{{"__metadata__", {{"format", "pt"}}}};
    std::uint64_t at = 0;
    for (const StoredTensor& tensor : tensors_) {
      header[tensor.name] = {{"dtype", safetensors_type(tensor.type)},
                             {"shape", tensor.shape()},
                             {"data_offsets", {at, at + tensor.bytes()}}};
      at += tensor.bytes();
    }
    std::string text = dump_json(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = text.size();
    BF_TRY(file_.write(reinterpret_cast<const char*>(&size), sizeof(size)));
    return file_.write(text.data(), text.size());
  }

  /// All values in the order of the file.
  Result<std::vector<float>> gather(const StoredTensor& tensor) const {
    std::vector<float> values(static_cast<std::size_t>(tensor.outputs * tensor.inputs));
    std::int64_t first = 0;
    for (const WeightInfo& part : tensor.parts) {
      BF_ASSIGN_OR_RETURN(const WeightView view, find_checked(*checkpoint_.weights, part));
      std::vector<float> row(static_cast<std::size_t>(view.cols));
      const std::size_t row_size = view.bytes.size() / static_cast<std::size_t>(view.rows);
      for (std::int64_t r = 0; r < view.rows; ++r) {
        decode_row(view.type, view.bytes.subspan(static_cast<std::size_t>(r) * row_size, row_size), row);
        for (std::int64_t c = 0; c < view.cols; ++c) {
          const std::int64_t output = first + (tensor.vector ? c : r);
          values[static_cast<std::size_t>(place(tensor, output, tensor.vector ? 0 : c))] =
              row[static_cast<std::size_t>(c)];
        }
      }
      first += tensor.vector ? view.cols : view.rows;
      checkpoint_.weights->release(view);
    }
    return values;
  }

  std::int64_t place(const StoredTensor& tensor, std::int64_t output, std::int64_t input) const {
    const std::int64_t row = tensor.halves ? half_split_row(output, checkpoint_.config.head_dim) : output;
    return tensor.transposed ? input * tensor.outputs + row : row * tensor.inputs + input;
  }

  Status write_values(const StoredTensor& tensor, const std::vector<float>& values) {
    const float largest = largest_value(tensor.type);
    for (float value : values) {
      // Also true for NaN.
      if (!(std::fabs(value) <= largest)) {
        return make_error(ErrorCode::kBadData, "{}: {} has {}; {} holds values up to {}", path_, tensor.name, value,
                          to_string(tensor.type), largest);
      }
    }
    std::vector<std::byte> bytes(tensor.bytes());
    encode_row(tensor.type, values, bytes);
    return file_.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  const Checkpoint& checkpoint_;
  const DType type_;
  const std::string path_;
  PendingFile file_;
  std::vector<StoredTensor> tensors_;
};

Status write_text(const std::string& path, const std::string& text) {
  PendingFile file(path);
  BF_TRY(file.open());
  BF_TRY(file.write(text.data(), text.size()));
  return file.commit();
}

/// What tokenizer.json does not say: which tokens start and end a text.
std::string tokenizer_config_json(const Vocabulary& vocabulary) {
  ordered_json json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"add_bos_token", vocabulary.add_bos},
                    {"add_eos_token", vocabulary.add_eos}};
  const auto name = [&](const char* key, TokenId token) {
    if (token.value >= 0) json[key] = vocabulary.pieces[static_cast<std::size_t>(token.value)];
  };
  name("bos_token", vocabulary.bos);
  name("eos_token", vocabulary.eos);
  if (!vocabulary.chat_template.empty()) json["chat_template"] = vocabulary.chat_template;
  return dump_json(json, {.indent = 2}) + "\n";
}

}  // namespace

Status write_hugging_face(const Checkpoint& checkpoint, const std::string& directory, const ExportOptions& options) {
  const DType type = options.type.value_or(checkpoint.config.weight_type);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: weights of type {}, a Hugging Face directory holds f32, f16 and bf16", directory,
                      to_string(type));
  }
  BF_ASSIGN_OR_RETURN(const std::string config, hugging_face_config_json(checkpoint, type));
  const std::filesystem::path path(directory);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be created: {}", directory, error.message());
  BF_TRY(SafetensorsWriter(checkpoint, type, (path / "model.safetensors").string()).run());
  if (!options.tokenizer_json.empty()) {
    BF_TRY(write_text((path / "tokenizer.json").string(), options.tokenizer_json));
    BF_TRY(write_text((path / "tokenizer_config.json").string(), tokenizer_config_json(checkpoint.vocabulary)));
  }
  return write_text((path / "config.json").string(), config);
}

}  // namespace butterfly
