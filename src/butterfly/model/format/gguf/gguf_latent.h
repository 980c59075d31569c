// Latent attention in GGUF files (architecture deepseek2): sizes as llama.cpp's converter writes them since attn_k_b
// and attn_v_b are tensors of their own (key_length is that of the cache, key_length_mla that of a head), and as it
// wrote them before (attn_kv_b, key_length that of a head). Thread-safe.
#pragma once

#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_keys.h"

namespace butterfly {

class GgufWriter;

/// Whether files of the architecture have latent attention.
bool has_gguf_latent(std::string_view architecture);

/// Sizes of heads, latent and values, where the number of heads is set. Errors: kBadData naming the key.
Status read_gguf_latent_sizes(const GgufKeys& keys, ModelConfig& config);

/// What yarn means here, once config.rope was read: the magnitude is that of all scores.
Status read_gguf_latent_scale(const GgufKeys& keys, ModelConfig& config);

/// The inverse, of a model with yarn: attn_factor and yarn_log_multiplier as llama.cpp reads them, and attention.scale,
/// since a multiplier cannot say every bit of it.
Status write_gguf_latent_scale(const ModelConfig& config, GgufWriter& writer);

void write_gguf_latent_sizes(const ModelConfig& config, GgufWriter& writer);

}  // namespace butterfly
