#include "butterfly/model/format/export_model.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/files/pending_file.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/gguf/gguf_metadata.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/hugging_face/hugging_face_writer.h"

namespace butterfly {

Status export_model(const Checkpoint& checkpoint, const std::string& out_path, const ExportOptions& options) {
  if (!out_path.ends_with(".gguf")) return write_hugging_face(checkpoint, out_path, options);
  BF_TRY(convert(checkpoint, out_path, {.type = options.type}));
  return {};
}

Status check_export(const std::string& out_path) {
  namespace fs = std::filesystem;
  if (out_path.ends_with(".gguf")) return PendingFile(out_path).open();
  // What is missing is made at the end: the first folder that is there has to take it.
  fs::path folder = fs::absolute(out_path);
  std::error_code error;
  while (folder.has_relative_path() && fs::status(folder, error).type() == fs::file_type::not_found) {
    folder = folder.parent_path();
  }
  if (!fs::is_directory(folder, error)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {} exists and is no directory", out_path, folder.string());
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return make_error(ErrorCode::kIo, "{}: nothing can be created in {}: {}", out_path, folder.string(),
                      std::strerror(errno));
  }
  return {};
}

Status check_export(const std::string& out_path, const ModelConfig& config) {
  ModelConfig floats = config;
  floats.weight_type = DType::kF32;
  if (out_path.ends_with(".gguf")) {
    floats.rope = with_explicit_factors(floats.rope);
    BF_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::create(out_path));
    return write_gguf_config(floats, writer, std::nullopt);
  }
  Checkpoint checkpoint;
  checkpoint.config = floats;
  BF_TRY(hugging_face_config_json(checkpoint, DType::kF32));
  return {};
}

}  // namespace butterfly
