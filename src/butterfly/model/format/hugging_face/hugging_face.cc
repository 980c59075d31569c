#include "butterfly/model/format/hugging_face/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/hugging_face/hugging_face_config.h"
#include "butterfly/model/format/hugging_face/hugging_face_encoders.h"
#include "butterfly/model/format/hugging_face/hugging_face_weights.h"
#include "butterfly/model/format/tokenizer/tokenizer_folder.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxConfigBytes = 1 << 20;
constexpr std::size_t kMaxIndexBytes = 32 << 20;

enum class Presence { kRequired, kOptional };

/// The whole file; an absent optional one is empty.
Result<std::string> read_text(const fs::path& path, std::size_t bytes_max, Presence presence) {
  auto text = read_file(path.string(), bytes_max);
  const bool absent = !text && text.error().code == ErrorCode::kNotFound;
  return absent && presence == Presence::kOptional ? std::string() : text;
}

/// Only a plain name: an index must not lead out of its directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

/// Which file holds which weights; from the index, or the one file there is.
Result<std::map<std::string, std::vector<std::string>>> read_index(const fs::path& directory) {
  std::map<std::string, std::vector<std::string>> weights_of_file;
  const fs::path path = directory / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    weights_of_file["model.safetensors"];
    return weights_of_file;
  }
  BF_ASSIGN_OR_RETURN(const std::string text, read_text(path, kMaxIndexBytes, Presence::kRequired));
  const nlohmann::json index = parse_json(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return make_error(ErrorCode::kBadData, "{}: lacks weight_map, an object", path.string());
  }
  for (const auto& [weight, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      return make_error(ErrorCode::kBadData, "{}: {} is not in a file of this directory", path.string(),
                        printable(weight));
    }
    weights_of_file[file.get<std::string>()].push_back(weight);
  }
  return weights_of_file;
}

Result<std::vector<HuggingFaceShard>> open_shards(const fs::path& directory) {
  BF_ASSIGN_OR_RETURN(const auto weights_of_file, read_index(directory));
  std::vector<HuggingFaceShard> shards;
  for (const auto& [name, weights] : weights_of_file) {
    const std::string path = (directory / name).string();
    BF_ASSIGN_OR_RETURN(auto mapping, MappedFile::open(path));
    BF_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::parse(mapping->bytes(), path));
    for (const std::string& weight : weights) {
      if (!file.entries().contains(weight)) {
        return make_error(ErrorCode::kNotFound, "{}: lacks the weight {}, which the index places there", path,
                          printable(weight));
      }
    }
    shards.push_back({.mapping = std::move(mapping), .file = std::move(file)});
  }
  return shards;
}

/// The type that holds most bytes of the matrices.
DType main_type(const WeightSource& source) {
  std::map<DType, std::uint64_t> bytes;
  for (const WeightInfo& weight : source.list()) {
    if (weight.rows > 1) bytes[weight.type] += weight.bytes;
  }
  DType best = DType::kF32;
  for (const auto& [type, count] : bytes) {
    if (count > bytes[best]) best = type;
  }
  return best;
}

Result<Vocabulary> read_vocabulary(const fs::path& directory, const HuggingFaceConfig& config) {
  auto vocabulary = read_tokenizer_folder(directory.string());
  if (!vocabulary || vocabulary->kind == TokenizerKind::kNone) return vocabulary;
  for (TokenId token : config.end_tokens) {
    auto& ends = vocabulary->end_tokens;
    if (token.value < vocabulary->size() && std::find(ends.begin(), ends.end(), token) == ends.end())
      ends.push_back(token);
  }
  if (vocabulary->eos.value < 0 && !vocabulary->end_tokens.empty()) vocabulary->eos = vocabulary->end_tokens.front();
  if (vocabulary->bos.value < 0 && config.bos.value < vocabulary->size()) vocabulary->bos = config.bos;
  return std::move(*vocabulary);
}

}  // namespace

Result<Checkpoint> open_hugging_face(const std::string& directory, const OpenOptions& options) {
  const fs::path path(directory);
  BF_ASSIGN_OR_RETURN(const std::string config_text,
                      read_text(path / "config.json", kMaxConfigBytes, Presence::kRequired));
  BF_ASSIGN_OR_RETURN(const std::string generation_text,
                      read_text(path / "generation_config.json", kMaxConfigBytes, Presence::kOptional));
  BF_ASSIGN_OR_RETURN(const HuggingFaceConfig config,
                      read_hugging_face_config(config_text, generation_text, directory));
  Checkpoint checkpoint;
  checkpoint.path = directory;
  checkpoint.format = "hugging face";
  checkpoint.config = config.model;
  const fs::path named = path.filename().empty() ? path.parent_path() : path;
  checkpoint.config.name = named.filename().string();
  auto vocabulary = read_vocabulary(path, config);
  if (!vocabulary && options.vocabulary_required) return tl::unexpected(std::move(vocabulary).error());
  if (vocabulary) checkpoint.vocabulary = std::move(*vocabulary);
  if (options.weights_required) {
    BF_ASSIGN_OR_RETURN(auto shards, open_shards(path));
    adapt_to_files(shards, checkpoint.config);
    BF_ASSIGN_OR_RETURN(checkpoint.weights, make_hugging_face_weights(std::move(shards), checkpoint.config, directory));
    checkpoint.config.weight_type = main_type(*checkpoint.weights);
  }
  return checkpoint;
}

}  // namespace butterfly
