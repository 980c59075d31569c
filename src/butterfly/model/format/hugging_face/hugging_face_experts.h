// What the keys of a config.json say of a mixture of experts, and where the files have the experts' weights.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/hugging_face/hugging_face_object.h"

namespace butterfly {

/// config.moe of the families that have experts; the others are left alone. The layers and dimensions of the model are
/// set. Errors: those of read_hugging_face_config.
Status read_hugging_face_experts(const JsonObject& object, ModelConfig& config);

/// Files that hold one matrix of all experts: where expert E's weight is in it.
struct StackedExperts {
  std::string name{};           // of the tensor; empty: experts are never stacked in files of this architecture
  bool of_gate_and_up = false;  // the outputs of gate and up are in one tensor
  bool transposed = false;      // [experts, inputs, outputs]
  bool interleaved = false;     // outputs of gate and up take turns, else gate comes before up
};
StackedExperts stacked_experts(std::string_view canonical, std::string_view architecture);

}  // namespace butterfly
