// The two matrices of latent attention out of the one that many files have: for each head behind one another the rows
// that make keys and those that make values of a latent. Thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// Rows of attn_kv_b.
std::int64_t latent_rows(const ModelConfig& config);

/// f32 for quantised types, whose blocks would lie across.
DType latent_key_type(DType stored);

/// attn_k_b, from a whole attn_kv_b[latent_rows, latent.dim]: each head's rows of keys, transposed. New memory.
WeightView latent_keys(const ModelConfig& config, const WeightView& both);

/// attn_v_b, likewise, in the stored type.
WeightView latent_values(const ModelConfig& config, const WeightView& both);

}  // namespace butterfly
