#include "butterfly/model/format/vocabulary_file.h"

#include <filesystem>

#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/model/format/gguf/gguf_vocabulary.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/tokenizer/tokenizer_folder.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

}  // namespace

Result<Vocabulary> open_vocabulary(const std::string& path) {
  std::error_code ignored;
  const fs::path place(path);
  for (const char* extension : {".json", ".model", ".tiktoken", ".txt"}) {
    if (place.extension() == extension) return read_tokenizer_file(path);
  }
  if (fs::is_directory(place, ignored) && !fs::exists(place / "config.json", ignored) && has_tokenizer(path)) {
    return read_tokenizer_folder(path);
  }
  if (!fs::is_directory(place, ignored)) {
    // The vocabulary alone: also of a model whose family is not supported.
    BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
    BF_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::parse(file->bytes(), path));
    return read_gguf_vocabulary(gguf);
  }
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(path, {.weights_required = false}));
  return std::move(checkpoint.vocabulary);
}

}  // namespace butterfly
