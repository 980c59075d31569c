#include "butterfly/model/format/type_mix.h"

#include <charconv>

namespace butterfly {
namespace {

/// The number after "blk."; -1 outside blocks.
int layer_of(std::string_view tensor) {
  int layer = -1;
  if (tensor.starts_with("blk.")) std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), layer);
  return layer;
}

/// The first and the last eighth of the layers, and every third between.
bool is_sensitive(int layer, int layers) {
  const int eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

bool holds_rows(DType type, std::int64_t cols) {
  return row_bytes(type, static_cast<std::uint64_t>(cols)).has_value();
}

DType of_blocks_of_32(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    default:
      return DType::kQ8_0;
  }
}

DType wanted_type(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols) {
  const DType main = main_type(mix);
  const auto is = [&](std::string_view stem) { return tensor.find(stem) != std::string_view::npos; };
  if (tensor == (config.tied_head ? "token_embd.weight" : "output.weight")) {
    const bool whole = config.architecture != "falcon" && holds_rows(main, cols);
    return whole ? DType::kQ6_K : DType::kQ8_0;
  }
  const int layer = layer_of(tensor);
  const bool sensitive = layer >= 0 && is_sensitive(layer, config.layers);
  if (is(".attn_v.")) {
    constexpr int kLayersOf70b = 80;
    if (sensitive) return DType::kQ6_K;
    return config.layers == kLayersOf70b ? DType::kQ5_K : main;
  }
  if (is(".attn_qkv.")) return mix == TypeMix::kQ4KM ? DType::kQ5_K : DType::kQ6_K;
  if (is(".ffn_down.")) {
    if (config.architecture != "falcon" || mix != TypeMix::kQ4KM) return sensitive ? DType::kQ6_K : main;
    if (layer < config.layers / 16) return DType::kQ6_K;
    return sensitive ? DType::kQ5_K : main;
  }
  return main;
}

}  // namespace

std::optional<TypeMix> parse_type_mix(std::string_view name) {
  if (name == "q4_k_m") return TypeMix::kQ4KM;
  if (name == "q5_k_m") return TypeMix::kQ5KM;
  return std::nullopt;
}

std::string type_mixes() {
  return "q4_k_m or q5_k_m";
}

DType main_type(TypeMix mix) {
  return mix == TypeMix::kQ4KM ? DType::kQ4_K : DType::kQ5_K;
}

std::uint32_t file_type_number(TypeMix mix) {
  return mix == TypeMix::kQ4KM ? 15 : 17;
}

DType type_in_mix(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols) {
  const DType wanted = wanted_type(mix, config, tensor, cols);
  if (holds_rows(wanted, cols)) return wanted;
  const DType next = of_blocks_of_32(wanted);
  return holds_rows(next, cols) ? next : DType::kF16;
}

}  // namespace butterfly
