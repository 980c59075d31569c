// The mixes of types in which quantised models are usually stored: one type for most matrices, a finer one for those
// whose errors show most, as llama.cpp's quantiser chooses them. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/model/core/config.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

enum class TypeMix : std::uint8_t {
  kQ2K,
  kQ3KS,
  kQ3KM,
  kQ3KL,
  kQ4_0,
  kQ4_1,
  kQ4KS,
  kQ4KM,
  kQ5_0,
  kQ5_1,
  kQ5KS,
  kQ5KM,
  kQ6K,
  kQ8_0,
  kIQ4NL,
  kIQ4XS,
  kMXFP4,
};

/// "q4_k_m", "q8_0" and so on; a name may also be that of one type.
std::optional<TypeMix> parse_type_mix(std::string_view name);
std::string_view to_string(TypeMix mix);
std::vector<TypeMix> all_type_mixes();

/// "q2_k, q3_k_s, ... or mxfp4", for messages.
std::string type_mixes();

/// The type of most matrices (of mxfp4: of experts), and llama.cpp's number for general.file_type.
DType main_type(TypeMix mix);
std::uint32_t file_type_number(TypeMix mix);

/// The type of the matrix that a file calls `tensor` (attn_qkv where that is fused, ffn_up_exps where it is of
/// experts), with rows of `cols` elements. Rows that are no whole blocks of 256 take the type of blocks of 32 that is
/// next, or f16.
DType type_in_mix(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols);

}  // namespace butterfly
