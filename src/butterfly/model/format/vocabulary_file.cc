#include "butterfly/model/format/vocabulary_file.h"

#include <filesystem>

#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/tokenizer/tokenizer_json.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_text(const fs::path& path) {
  BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path.string()));
  return std::string(as_text(file->bytes()));
}

Result<Vocabulary> open_json(const fs::path& path) {
  BF_ASSIGN_OR_RETURN(const std::string tokenizer, read_text(path));
  const fs::path beside = path.parent_path() / "tokenizer_config.json";
  std::string config;
  std::error_code ignored;
  if (path.filename() == "tokenizer.json" && fs::exists(beside, ignored)) {
    BF_ASSIGN_OR_RETURN(config, read_text(beside));
  }
  auto vocabulary = read_tokenizer_json(tokenizer, config);
  if (!vocabulary) return make_error(vocabulary.error().code, "{}: {}", path.string(), vocabulary.error().message);
  return vocabulary;
}

}  // namespace

Result<Vocabulary> open_vocabulary(const std::string& path) {
  std::error_code ignored;
  const fs::path place(path);
  if (place.extension() == ".json") return open_json(place);
  if (fs::exists(place / "tokenizer.json", ignored) && !fs::exists(place / "config.json", ignored)) {
    return open_json(place / "tokenizer.json");
  }
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(path, {.weights_required = false}));
  return std::move(checkpoint.vocabulary);
}

}  // namespace butterfly
