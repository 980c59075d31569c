// The families of models that a GGUF file can hold: what the name of an architecture stands for, and its keys.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_keys.h"

namespace butterfly {

/// Which weights one tensor of a file holds behind one another.
struct GgufFusion {
  bool qkv = false;      // attn_qkv: attn_q, attn_k, attn_v
  bool gate_up = false;  // ffn_up: ffn_gate, ffn_up
};

/// Of files that this library writes; what a file has is seen from its tensors. Nothing is fused for unknown names.
GgufFusion gguf_fusion(std::string_view architecture);

/// What a file calls a weight: the canonical name, but for the two norms of Falcon's later blocks and the
/// MLP's norm of GLM-4 MoE and gpt-oss.
std::string gguf_weight_name(const ModelConfig& config, const std::string& canonical);

/// Status ok for a name that can be read. Errors: kUnsupported naming those that can.
Status check_gguf_architecture(std::string_view architecture, const std::string& source);

/// Norms, MLP, positions, windows and scales, where config.architecture and the dimensions are set.
/// Errors: kBadData, kUnsupported.
Status read_gguf_family(const GgufKeys& keys, ModelConfig& config);

/// The inverse, for a writer: keys of windows, caps, scales and partial rotation. The name and the dimensions are
/// written elsewhere. Errors: kUnsupported naming what a file of the architecture cannot have.
class GgufWriter;
Status write_gguf_family(const ModelConfig& config, GgufWriter& writer);

/// kUnsupported naming the model, its architecture and `what` a file of that architecture cannot have.
Status gguf_cannot_have(const ModelConfig& config, const char* what);

}  // namespace butterfly
