// A model to where others read it: a GGUF file, or a Hugging Face directory (config.json, model.safetensors,
// tokenizer.json, tokenizer_config.json) for transformers and for open_checkpoint().
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/core/export_options.h"

namespace butterfly {

/// `*.gguf` is a file, everything else a directory, made where it is missing. Each file is written whole or not at all,
/// config.json last. Errors: those of convert(); kUnsupported for what the format cannot express and, in a directory,
/// for types other than F32, F16 and BF16; kBadData for a value beyond the type's range; kIo.
Status export_model(const Checkpoint& checkpoint, const std::string& out_path, const ExportOptions& options);

/// Whether files could be written there, before hours are spent on what goes into them. Nothing is left. Errors: kIo,
/// and kInvalidArgument where the path is of another kind.
Status check_export(const std::string& out_path);

/// Whether the format of that path can hold float weights of such a model. Nothing is left. Errors: kUnsupported naming
/// what it cannot express; kIo.
Status check_export(const std::string& out_path, const ModelConfig& config);

}  // namespace butterfly
