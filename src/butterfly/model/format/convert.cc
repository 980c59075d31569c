#include "butterfly/model/format/convert.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>

#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/gguf/gguf_experts.h"
#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_metadata.h"
#include "butterfly/model/format/gguf/gguf_rope.h"
#include "butterfly/model/format/gguf/gguf_tensor_types.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

/// A tensor of the file, and the weights whose rows follow one another in it; its type is the first one's.
struct Output {
  GgufWriter::Tensor tensor{};
  std::vector<WeightInfo> parts{};
};

/// The name of the tensor that has this weight and others behind one another; the weight's own where it is alone.
std::string fused_name(const std::string& name, const GgufFusion& fusion) {
  const auto renamed = [&](std::initializer_list<std::string_view> from, std::string_view to) {
    for (const std::string_view infix : from) {
      const std::size_t at = name.find(infix);
      if (at != std::string::npos) return std::string(name).replace(at, infix.size(), to);
    }
    return name;
  };
  if (fusion.qkv && name.find("norm") == std::string::npos) {
    const std::string qkv = renamed({".attn_q.", ".attn_k.", ".attn_v."}, ".attn_qkv.");
    if (qkv != name) return qkv;
  }
  return fusion.gate_up ? renamed({".ffn_gate."}, ".ffn_up.") : name;
}

/// The list has the parts of a tensor in the order in which they stand in it.
std::vector<Output> group(const ModelConfig& config, const std::vector<WeightInfo>& weights) {
  const GgufFusion fusion = gguf_fusion(config.architecture);
  std::vector<Output> outputs;
  for (const WeightInfo& weight : weights) {
    const auto expert = expert_tensor(weight.name);
    const std::string name = expert ? expert->name : gguf_weight_name(config, fused_name(weight.name, fusion));
    const auto same = std::ranges::find_if(outputs, [&](const Output& output) { return output.tensor.name == name; });
    if (same == outputs.end()) {
      const bool of_heads = name.ends_with(".attn_k_b.weight") || name.ends_with(".attn_v_b.weight");
      Output& output = outputs.emplace_back();
      output.tensor = {.name = name, .type = weight.type, .rows = weight.rows, .cols = weight.cols, .planes = 0};
      if (expert) output.tensor.planes = 1;
      if (of_heads) {
        output.tensor.planes = config.heads;
        output.tensor.rows = weight.rows / config.heads;
      }
      output.parts.push_back(weight);
      continue;
    }
    same->parts.push_back(weight);
    if (expert) {
      ++same->tensor.planes;
      continue;
    }
    (weight.rows == 1 ? same->tensor.cols : same->tensor.rows) += weight.rows == 1 ? weight.cols : weight.rows;
  }
  return outputs;
}

/// A type that nothing here quantises to can still be copied, where all matrices are stored so.
bool can_write(DType type, const Checkpoint& checkpoint) {
  if (can_encode(type)) return true;
  return type != DType::kI32 && checkpoint.format == "random" && checkpoint.config.weight_type == type;
}

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, const ConvertOptions& options, GgufWriter writer)
      : checkpoint_(checkpoint), options_(options), writer_(std::move(writer)) {
    config_ = checkpoint.config;
    config_.rope = with_explicit_factors(config_.rope);
    if (config_.encodes_only()) config_.output = OutputKind::kHidden;  // such files have no masked-LM head
    if (options.type) config_.weight_type = *options.type;
    if (options.mix) config_.weight_type = main_type(*options.mix);
  }

  Result<ConvertReport> run() {
    const auto file_type = options_.mix ? std::optional(file_type_number(*options_.mix)) : std::nullopt;
    BF_TRY(write_gguf_config(config_, writer_, file_type));
    write_gguf_vocabulary(checkpoint_.vocabulary, config_.vocab, writer_);
    BF_TRY(declare_all());
    BF_TRY(writer_.write_header());
    report_.file_bytes = writer_.file_bytes();
    for (std::size_t i = 0; i < gguf_rope_tensors(config_).size(); ++i) {
      BF_TRY(write_bytes(std::as_bytes(std::span(config_.rope.factors))));
    }
    for (const Output& output : outputs_) {
      if (options_.progress) options_.progress({output.tensor.name, bytes_written_, report_.file_bytes});
      for (const WeightInfo& part : output.parts) BF_TRY(write_weight(part, output.tensor.type));
    }
    report_.error = all_.relative();
    BF_TRY(checkpoint_unchanged(checkpoint_.path));
    BF_TRY(writer_.finish());
    return std::move(report_);
  }

 private:
  /// Of values and what they became.
  struct SquaredError {
    double error = 0;
    double value = 0;
    double relative() const { return value > 0 ? std::sqrt(error / value) : 0.0; }
    void add(std::span<const float> values, std::span<const float> stored) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double was = values[i], difference = static_cast<double>(stored[i]) - was;
        error += difference * difference;
        value += was * was;
      }
    }
  };

  Status declare_all() {
    const auto pairs = static_cast<std::int64_t>(config_.rope.factors.size());
    for (const std::string& name : gguf_rope_tensors(config_)) {
      BF_TRY(writer_.declare({.name = name, .type = DType::kF32, .rows = 1, .cols = pairs}));
    }
    std::vector<WeightInfo> weights =
        expected_weights(config_, {.first_layer = 0, .last_layer = config_.layers, .embedding = true, .head = true});
    std::map<std::string, DType> stored;
    for (const WeightInfo& weight : checkpoint_.weights->list()) stored[weight.name] = weight.type;
    for (WeightInfo& weight : weights) weight.type = type_of(weight, stored[weight.name]);
    outputs_ = group(config_, weights);
    bool int8 = false;
    for (const Output& output : outputs_) {
      int8 = int8 || output.tensor.type == DType::kInt8;
      BF_TRY(writer_.declare(output.tensor));
    }
    if (int8) writer_.add_bool(kGgufInt8Key, true);
    return {};
  }

  DType type_of(const WeightInfo& weight, DType stored) {
    if (weight.rows == 1 || weight.name == "position_embd.weight") return DType::kF32;
    if (weight.name == "token_types.weight" || weight.name.ends_with(".attn_rel_b.weight")) return DType::kF32;
    // Which experts a token goes through is decided by small differences.
    if (weight.name.ends_with(".ffn_gate_inp.weight")) return DType::kF32;
    if (options_.mix) {
      const auto expert = expert_tensor(weight.name);
      const std::string tensor = expert ? expert->name : fused_name(weight.name, gguf_fusion(config_.architecture));
      const DType type = type_in_mix(*options_.mix, config_, tensor, weight.cols);
      if (type == DType::kF16) report_.stored_as_f16.push_back(weight.name);
      return type;
    }
    if (!options_.type) return stored;
    if (row_bytes(*options_.type, static_cast<std::uint64_t>(weight.cols))) return *options_.type;
    report_.stored_as_f16.push_back(weight.name);
    return DType::kF16;
  }

  Status write_weight(const WeightInfo& info, DType type) {
    BF_ASSIGN_OR_RETURN(const WeightView view, find_checked(*checkpoint_.weights, info));
    if (view.type == type) {
      BF_TRY(write_bytes(view.bytes));
    } else {
      BF_TRY(recode(info.name, view, type));
    }
    checkpoint_.weights->release(view);
    return {};
  }

  Status recode(const std::string& name, const WeightView& view, DType type) {
    const auto cols = static_cast<std::size_t>(view.cols);
    const std::size_t row_size = view.bytes.size() / static_cast<std::size_t>(view.rows);
    std::vector<float> values(cols);
    std::vector<std::byte> row(*row_bytes(type, cols));
    const float largest = largest_value(type);
    std::vector<float> stored(cols);
    SquaredError of_matrix;
    for (std::int64_t r = 0; r < view.rows; ++r) {
      decode_row(view.type, view.bytes.subspan(static_cast<std::size_t>(r) * row_size, row_size), values);
      for (std::size_t c = 0; c < cols; ++c) {
        // Also true for NaN.
        if (!(std::fabs(values[c]) <= largest)) {
          return make_error(ErrorCode::kBadData, "{}: {} has {} in row {}, column {}; {} holds values up to {}",
                            checkpoint_.path, name, values[c], r, c, to_string(type), largest);
        }
      }
      encode_row(type, values, row);
      decode_row(type, row, stored);
      of_matrix.add(values, stored);
      BF_TRY(write_bytes(row));
    }
    all_.error += of_matrix.error;
    all_.value += of_matrix.value;
    if (of_matrix.relative() > report_.largest_error) {
      report_.largest_error = of_matrix.relative();
      report_.largest_error_in = name;
    }
    return {};
  }

  Status write_bytes(ByteSpan bytes) {
    constexpr std::size_t kPiece = 16 << 20;
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      if (options_.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "the conversion was interrupted");
      BF_TRY(writer_.write(bytes.subspan(at, std::min(kPiece, bytes.size() - at))));
    }
    bytes_written_ += bytes.size();
    return {};
  }

  const Checkpoint& checkpoint_;
  const ConvertOptions& options_;
  GgufWriter writer_;
  ModelConfig config_;
  std::vector<Output> outputs_;
  ConvertReport report_;
  SquaredError all_;  // of what was recoded
  std::uint64_t bytes_written_ = 0;
};

}  // namespace

Result<ConvertReport> convert(const Checkpoint& checkpoint, const std::string& out_path,
                              const ConvertOptions& options) {
  if (options.type && !can_write(*options.type, checkpoint)) {
    return make_error(ErrorCode::kUnsupported, "weights of type {}, supported are {}", to_string(*options.type),
                      encodable_types());
  }
  BF_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::create(out_path));
  return Converter(checkpoint, options, std::move(writer)).run();
}

}  // namespace butterfly
