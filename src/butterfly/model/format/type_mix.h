// The mixes of types in which quantised models are usually stored: one type for most matrices, a finer one for those
// whose errors show most, as llama.cpp's quantiser chooses them. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "butterfly/model/core/config.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

enum class TypeMix : std::uint8_t { kQ4KM, kQ5KM };

/// "q4_k_m" or "q5_k_m".
std::optional<TypeMix> parse_type_mix(std::string_view name);

/// "q4_k_m or q5_k_m", for messages.
std::string type_mixes();

/// The type of most matrices, and llama.cpp's number for general.file_type.
DType main_type(TypeMix mix);
std::uint32_t file_type_number(TypeMix mix);

/// The type of the matrix that a file calls `tensor` (attn_qkv where that is fused), with rows of `cols` elements. Rows
/// that are no whole blocks of 256 take the type of blocks of 32 that is next, or f16.
DType type_in_mix(TypeMix mix, const ModelConfig& config, std::string_view tensor, std::int64_t cols);

}  // namespace butterfly
