#include "butterfly/model/format/export_model.h"

#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/hugging_face/hugging_face_writer.h"

namespace butterfly {

Status export_model(const Checkpoint& checkpoint, const std::string& out_path, const ExportOptions& options) {
  if (!out_path.ends_with(".gguf")) return write_hugging_face(checkpoint, out_path, options);
  BF_TRY(convert(checkpoint, out_path, {.type = options.type}));
  return {};
}

}  // namespace butterfly
