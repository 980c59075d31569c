// Writes a Hugging Face directory. Used by export_model.cc.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/core/export_options.h"

namespace butterfly {

/// As export_model().
Status write_hugging_face(const Checkpoint& checkpoint, const std::string& directory, const ExportOptions& options);

/// config.json for `checkpoint`, its weights of `type`. Errors: kUnsupported naming what the format cannot express.
Result<std::string> hugging_face_config_json(const Checkpoint& checkpoint, DType type);

}  // namespace butterfly
