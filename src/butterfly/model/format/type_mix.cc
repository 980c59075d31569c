#include "butterfly/model/format/type_mix.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <initializer_list>

namespace butterfly {
namespace {

struct Mix {
  TypeMix mix{};
  std::string_view name{};
  DType main{};
  std::uint32_t file_type = 0;
};

/// In the order of TypeMix.
constexpr Mix kMixes[] = {
    {TypeMix::kQ2K, "q2_k", DType::kQ2_K, 10},       {TypeMix::kQ3KS, "q3_k_s", DType::kQ3_K, 11},
    {TypeMix::kQ3KM, "q3_k_m", DType::kQ3_K, 12},    {TypeMix::kQ3KL, "q3_k_l", DType::kQ3_K, 13},
    {TypeMix::kQ4_0, "q4_0", DType::kQ4_0, 2},       {TypeMix::kQ4_1, "q4_1", DType::kQ4_1, 3},
    {TypeMix::kQ4KS, "q4_k_s", DType::kQ4_K, 14},    {TypeMix::kQ4KM, "q4_k_m", DType::kQ4_K, 15},
    {TypeMix::kQ5_0, "q5_0", DType::kQ5_0, 8},       {TypeMix::kQ5_1, "q5_1", DType::kQ5_1, 9},
    {TypeMix::kQ5KS, "q5_k_s", DType::kQ5_K, 16},    {TypeMix::kQ5KM, "q5_k_m", DType::kQ5_K, 17},
    {TypeMix::kQ6K, "q6_k", DType::kQ6_K, 18},       {TypeMix::kQ8_0, "q8_0", DType::kQ8_0, 7},
    {TypeMix::kIQ4NL, "iq4_nl", DType::kIQ4_NL, 25}, {TypeMix::kIQ4XS, "iq4_xs", DType::kIQ4_XS, 30},
    {TypeMix::kMXFP4, "mxfp4", DType::kMXFP4, 38},
};

constexpr const Mix& row_of(TypeMix mix) {
  return kMixes[static_cast<std::size_t>(mix)];
}

enum class Part : std::uint8_t { kValues, kAttentionOutput, kMlpDown };

/// kSpread: the first and the last eighth of the layers, and every third between.
enum class Layers : std::uint8_t { kAll, kSpread, kFirstEighth, kFirstSixteenth, kFirstTwo, kFirstFour };

/// kGrouped: four or more heads share a value. kUsual: neither Falcon nor eight experts.
enum class Models : std::uint8_t { kAll, kGrouped, kEightExperts, kUsual, kFalcon, kNotFalcon };

struct Finer {
  TypeMix mix{};
  Part part{};
  DType type{};
  Layers layers = Layers::kAll;
  Models models = Models::kAll;
};

/// What is stored finer than a mix's main type; the first row that fits.
constexpr Finer kFiner[] = {
    {TypeMix::kQ2K, Part::kValues, DType::kQ4_K, Layers::kAll, Models::kGrouped},
    {TypeMix::kQ2K, Part::kValues, DType::kQ3_K},
    {TypeMix::kQ2K, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kQ2K, Part::kAttentionOutput, DType::kQ3_K, Layers::kAll, Models::kUsual},
    {TypeMix::kQ2K, Part::kMlpDown, DType::kQ3_K},
    {TypeMix::kQ3KS, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kQ3KM, Part::kValues, DType::kQ5_K, Layers::kFirstTwo},
    {TypeMix::kQ3KM, Part::kValues, DType::kQ4_K},
    {TypeMix::kQ3KM, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kQ3KM, Part::kAttentionOutput, DType::kQ4_K, Layers::kAll, Models::kUsual},
    {TypeMix::kQ3KM, Part::kMlpDown, DType::kQ5_K, Layers::kFirstSixteenth},
    {TypeMix::kQ3KM, Part::kMlpDown, DType::kQ4_K, Layers::kAll, Models::kNotFalcon},
    {TypeMix::kQ3KM, Part::kMlpDown, DType::kQ4_K, Layers::kSpread},
    {TypeMix::kQ3KL, Part::kValues, DType::kQ5_K},
    {TypeMix::kQ3KL, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kUsual},
    {TypeMix::kQ3KL, Part::kAttentionOutput, DType::kQ4_K, Layers::kAll, Models::kFalcon},
    {TypeMix::kQ3KL, Part::kMlpDown, DType::kQ4_K, Layers::kAll, Models::kFalcon},
    {TypeMix::kQ3KL, Part::kMlpDown, DType::kQ5_K},
    {TypeMix::kQ4KS, Part::kValues, DType::kQ5_K, Layers::kFirstFour},
    {TypeMix::kQ4KS, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kQ4KS, Part::kMlpDown, DType::kQ5_K, Layers::kFirstEighth, Models::kNotFalcon},
    {TypeMix::kQ4KM, Part::kValues, DType::kQ6_K, Layers::kSpread},
    {TypeMix::kQ4KM, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kQ4KM, Part::kMlpDown, DType::kQ6_K, Layers::kFirstSixteenth, Models::kFalcon},
    {TypeMix::kQ4KM, Part::kMlpDown, DType::kQ5_K, Layers::kSpread, Models::kFalcon},
    {TypeMix::kQ4KM, Part::kMlpDown, DType::kQ6_K, Layers::kSpread, Models::kNotFalcon},
    {TypeMix::kQ5KM, Part::kValues, DType::kQ6_K, Layers::kSpread},
    {TypeMix::kQ5KM, Part::kMlpDown, DType::kQ6_K, Layers::kSpread},
    {TypeMix::kIQ4NL, Part::kValues, DType::kQ5_K, Layers::kAll, Models::kGrouped},
    {TypeMix::kIQ4NL, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kIQ4NL, Part::kMlpDown, DType::kQ5_K, Layers::kFirstEighth},
    {TypeMix::kIQ4XS, Part::kValues, DType::kQ5_K, Layers::kAll, Models::kGrouped},
    {TypeMix::kIQ4XS, Part::kAttentionOutput, DType::kQ5_K, Layers::kAll, Models::kEightExperts},
    {TypeMix::kIQ4XS, Part::kMlpDown, DType::kQ5_K, Layers::kFirstEighth},
};

/// The number after "blk."; -1 outside blocks.
int layer_of(std::string_view tensor) {
  int layer = -1;
  if (tensor.starts_with("blk.")) std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), layer);
  return layer;
}

bool fits(Layers where, int layer, int layers) {
  const int eighth = layers / 8;
  switch (where) {
    case Layers::kAll:
      return true;
    case Layers::kSpread:
      return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    case Layers::kFirstEighth:
      return layer < eighth;
    case Layers::kFirstSixteenth:
      return layer < layers / 16;
    case Layers::kFirstTwo:
      return layer < 2;
    case Layers::kFirstFour:
      return layer < 4;
  }
  return false;
}

bool fits(Models which, const ModelConfig& config) {
  const bool falcon = config.architecture == "falcon";
  switch (which) {
    case Models::kAll:
      return true;
    case Models::kGrouped:
      return config.heads >= 4 * config.kv_heads;
    case Models::kEightExperts:
      return config.moe.experts == 8;
    case Models::kUsual:
      return !falcon && config.moe.experts != 8;
    case Models::kFalcon:
      return falcon;
    case Models::kNotFalcon:
      return !falcon;
  }
  return false;
}

bool holds_rows(DType type, std::int64_t cols) {
  return row_bytes(type, static_cast<std::uint64_t>(cols)).has_value();
}

DType of_blocks_of_32(DType type) {
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      return DType::kQ4_0;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kIQ4_XS:
      return DType::kIQ4_NL;
    default:
      return DType::kQ8_0;
  }
}

DType finer_type(TypeMix mix, Part part, const ModelConfig& config, int layer) {
  for (const Finer& row : kFiner) {
    if (row.mix != mix || row.part != part) continue;
    if (fits(row.layers, layer, config.layers) && fits(row.models, config)) return row.type;
  }
  return main_type(mix);
}

DType wanted_type(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols) {
  const auto is = [&](std::initializer_list<std::string_view> stems) {
    for (const std::string_view stem : stems) {
      if (tensor.find(stem) != std::string_view::npos) return true;
    }
    return false;
  };
  const DType main = main_type(mix);
  if (mix == TypeMix::kMXFP4) return is({"_exps."}) ? main : DType::kQ8_0;
  if (tensor == (config.tied_head ? "token_embd.weight" : "output.weight")) {
    if (main == DType::kQ8_0 || config.architecture == "falcon" || !holds_rows(main, cols)) return DType::kQ8_0;
    return DType::kQ6_K;
  }
  const int layer = layer_of(tensor);
  const bool values = is({".attn_v.", ".attn_qkv."});
  // Of eight experts' models these are small beside the experts.
  if (config.moe.experts == 8 && (values || is({".attn_k."}))) return DType::kQ8_0;
  if (values) {
    constexpr int kLayersOf70b = 80;
    const DType type = finer_type(mix, Part::kValues, config, layer);
    const bool coarse = type == DType::kQ3_K || type == DType::kQ4_K;
    return coarse && config.layers == kLayersOf70b ? DType::kQ5_K : type;
  }
  if (is({".attn_output."})) return finer_type(mix, Part::kAttentionOutput, config, layer);
  if (is({".ffn_down"})) return finer_type(mix, Part::kMlpDown, config, layer);
  return main;
}

}  // namespace

std::optional<TypeMix> parse_type_mix(std::string_view name) {
  for (const Mix& row : kMixes) {
    if (row.name == name) return row.mix;
  }
  return std::nullopt;
}

std::string_view to_string(TypeMix mix) {
  return row_of(mix).name;
}

std::vector<TypeMix> all_type_mixes() {
  std::vector<TypeMix> mixes;
  for (const Mix& row : kMixes) mixes.push_back(row.mix);
  return mixes;
}

std::string type_mixes() {
  std::vector<std::string_view> names;
  for (const Mix& row : kMixes) names.push_back(row.name);
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

DType main_type(TypeMix mix) {
  return row_of(mix).main;
}

std::uint32_t file_type_number(TypeMix mix) {
  return row_of(mix).file_type;
}

DType type_in_mix(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols) {
  const DType wanted = wanted_type(mix, config, tensor, cols);
  if (holds_rows(wanted, cols)) return wanted;
  const DType next = of_blocks_of_32(wanted);
  return holds_rows(next, cols) ? next : DType::kF16;
}

}  // namespace butterfly
