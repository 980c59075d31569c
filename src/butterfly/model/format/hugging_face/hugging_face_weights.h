// Names and shapes of Hugging Face checkpoints mapped onto the canonical ones. Used by hugging_face.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/safetensors/safetensors.h"

namespace butterfly {

struct HuggingFaceShard {
  std::shared_ptr<const MappedFile> mapping;  // null where the bytes belong to someone else
  SafetensorsFile file;
};

/// Every weight that `config` needs is looked up and its shape checked here, nothing is copied.
/// Errors: kNotFound and kBadData naming the weight as the file and as this library call it; kUnsupported for types.
Result<std::shared_ptr<const WeightSource>> make_hugging_face_weights(std::vector<HuggingFaceShard> shards,
                                                                      const ModelConfig& config, std::string source);

}  // namespace butterfly
