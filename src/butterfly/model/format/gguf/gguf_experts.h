// What the keys and tensors of a GGUF file say of a mixture of experts.
#pragma once

#include <optional>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_keys.h"

namespace butterfly {

class GgufWriter;

/// config.moe, where config.architecture and the dimensions are set. Errors: kBadData; kUnsupported for an
/// architecture that has none.
Status read_gguf_experts(const GgufKeys& keys, ModelConfig& config);

/// The inverse. Errors: kUnsupported naming what a file of the architecture cannot have.
Status write_gguf_experts(const ModelConfig& config, GgufWriter& writer);

/// "blk.3.ffn_up_exps.7.weight" is plane 7 of the tensor "blk.3.ffn_up_exps.weight".
struct ExpertTensor {
  std::string name{};
  std::int64_t expert = 0;
};
std::optional<ExpertTensor> expert_tensor(const std::string& canonical);
/// The inverse of the name; nothing for a tensor of another kind.
std::optional<std::string> expert_weight(const std::string& tensor, std::int64_t expert);

}  // namespace butterfly
