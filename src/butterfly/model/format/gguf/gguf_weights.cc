#include "butterfly/model/format/gguf/gguf_weights.h"

#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "butterfly/model/core/latent_parts.h"
#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/model/format/gguf/gguf_config.h"
#include "butterfly/model/format/gguf/gguf_encoders.h"
#include "butterfly/model/format/gguf/gguf_experts.h"
#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_shards.h"
#include "butterfly/model/format/gguf/gguf_tensor_types.h"
#include "butterfly/model/format/gguf/gguf_vocabulary.h"

namespace butterfly {
namespace {

bool replace_once(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

using Mappings = std::vector<std::shared_ptr<const MappedFile>>;  // kept as long as views of their bytes

class GgufWeights final : public WeightSource {
 public:
  GgufWeights(GgufFile file, const ModelConfig& config, Mappings mappings)
      : file_(std::move(file)), mappings_(std::move(mappings)), config_(config) {
    const std::int64_t q = config.q_dim();
    const std::int64_t kv = config.kv_dim();
    const std::int64_t qkv = q + 2 * kv;
    parts_ = {{".attn_q.", kQkv, 0, q, qkv}, {".attn_k.", kQkv, q, kv, qkv}, {".attn_v.", kQkv, q + kv, kv, qkv}};
    const bool gate_is_apart = file_.find_tensor("blk.0.ffn_gate.weight") != nullptr;
    if (gguf_fusion(config.architecture).gate_up && !gate_is_apart) {
      const std::int64_t ff = config.ff_dim;
      parts_.push_back({".ffn_gate.", kGateUp, 0, ff, 2 * ff});
      parts_.push_back({kGateUp, kGateUp, ff, ff, 2 * ff});
    }
    experts_ = config.moe.experts;
    if (is_gguf_encoder(config.architecture)) rename_encoder();
    // What the file calls otherwise.
    const bool renames = gguf_weight_name(config, "blk.0.ffn_norm.weight") != "blk.0.ffn_norm.weight";
    for (int layer = 0; renames && layer < config.layers; ++layer) {
      for (const char* norm : {"attn_norm", "ffn_norm"}) {
        for (const char* kind : {"weight", "bias"}) {
          const std::string canonical = fmt::format("blk.{}.{}.{}", layer, norm, kind);
          const std::string name = gguf_weight_name(config, canonical);
          if (name != canonical) renamed_[canonical] = name;
        }
      }
    }
  }

  std::vector<WeightInfo> list() const override {
    std::vector<WeightInfo> result;
    for (const GgufTensor& tensor : file_.tensors()) {
      const std::string name = canonical(std::string(tensor.name));
      bool fused = false;
      for (const bool keys : {true, false}) {
        std::string part_name = name;
        if (!tensor.type || !replace_once(part_name, kLatentBoth, keys ? kLatentKeys : kLatentValues)) continue;
        fused = true;
        const DType type = keys ? latent_key_type(*tensor.type) : *tensor.type;
        const std::int64_t rows = config_.heads * (keys ? config_.latent.dim : config_.latent.value_dim);
        const std::int64_t cols = keys ? config_.head_dim - config_.rope.dim : config_.latent.dim;
        const auto row = row_bytes(type, static_cast<std::uint64_t>(cols)).value_or(0);
        result.push_back({.name = part_name,
                          .type = type,
                          .rows = rows,
                          .cols = cols,
                          .bytes = row * static_cast<std::uint64_t>(rows)});
      }
      for (std::int64_t expert = 0; expert < experts_ && expert_weight(name, 0); ++expert) {
        fused = true;
        append(result, *expert_weight(name, expert));
      }
      for (const Part& part : parts_) {
        std::string part_name = name;
        if (!replace_once(part_name, part.fused, part.infix)) continue;
        fused = true;
        append(result, part_name);
      }
      if (!fused) append(result, name);
    }
    return result;
  }

  bool contains(const std::string& name) const override {
    return locate(name).has_value() || latent_tensor(name) != nullptr;
  }

  Result<WeightView> find(const std::string& name) const override {
    const std::optional<Location> location = locate(name);
    if (!location && latent_tensor(name) != nullptr) return latent_part(name);
    if (!location) return make_error(ErrorCode::kNotFound, "{}: lacks the weight {}", file_.source(), printable(name));
    if (location->expert >= 0) return plane(*location);
    BF_ASSIGN_OR_RETURN(const WeightView whole, view_of(*location->tensor));
    if (!location->part) return whole;
    return slice(name, whole, *location);
  }

  std::string description() const override { return file_.source(); }

  void read_behind(const WeightView& view) const override {
    for (const auto& mapping : mappings_) mapping->read_behind(view.bytes, kReadBehindBytes);
  }

  void release(const WeightView& view) const override {
    for (const auto& mapping : mappings_) mapping->drop(view.bytes);
  }

 private:
  void rename_encoder() {
    // Layers without a table of distances have that of the first of their side.
    const auto with_table = [&](const std::string& name, const std::string& canonical) {
      if (file_.find_tensor(name) != nullptr || !canonical.ends_with(".attn_rel_b.weight")) return name;
      return name.substr(0, 3) + ".blk.0.attn_rel_b.weight";
    };
    const auto rename = [&](const WeightRange& range) {
      for (const WeightInfo& weight : expected_weights(config_, range)) {
        const std::string name = with_table(gguf_weight_name(config_, weight.name), weight.name);
        if (name != weight.name) renamed_[weight.name] = name;
      }
    };
    rename({.embedding = true, .head = true});
    for (int layer = 0; layer < config_.layers; ++layer) {
      // A hostile number of layers ends at the first that is not there.
      const std::string output = gguf_weight_name(config_, fmt::format("blk.{}.attn_output.weight", layer));
      if (file_.find_tensor(output) == nullptr) return;
      rename({.first_layer = layer, .last_layer = layer + 1});
    }
  }

  static constexpr std::string_view kQkv = ".attn_qkv.";
  static constexpr std::string_view kGateUp = ".ffn_up.";
  static constexpr std::string_view kLatentBoth = ".attn_kv_b.";
  static constexpr std::string_view kLatentKeys = ".attn_k_b.";
  static constexpr std::string_view kLatentValues = ".attn_v_b.";

  /// Rows [begin, begin + count) of the fused matrix, which has `total`.
  struct Part {
    std::string_view infix;
    std::string_view fused;
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t total = 0;
  };
  struct Location {
    const GgufTensor* tensor = nullptr;
    const Part* part = nullptr;
    std::int64_t expert = -1;  // the plane of this expert
  };

  std::optional<Location> locate(const std::string& name) const {
    const auto other = renamed_.find(name);
    if (other != renamed_.end()) {
      const GgufTensor* tensor = file_.find_tensor(other->second);
      return tensor ? std::optional(Location{tensor, nullptr, -1}) : std::nullopt;
    }
    if (const auto expert = expert_tensor(name)) {
      const GgufTensor* tensor = file_.find_tensor(expert->name);
      return tensor ? std::optional(Location{tensor, nullptr, expert->expert}) : std::nullopt;
    }
    const GgufTensor* whole = file_.find_tensor(name);
    for (const Part& part : parts_) {
      std::string fused = name;
      if ((whole && part.infix != part.fused) || !replace_once(fused, part.infix, part.fused)) continue;
      if (const GgufTensor* tensor = file_.find_tensor(fused)) return Location{tensor, &part, -1};
    }
    return whole ? std::optional(Location{whole, nullptr, -1}) : std::nullopt;
  }

  std::string canonical(const std::string& stored) const {
    for (const auto& [name, other] : renamed_) {
      if (other == stored) return name;
    }
    return stored;
  }

  Status check_type(const GgufTensor& tensor) const {
    if (tensor.type) return {};
    return make_error(ErrorCode::kUnsupported, "{}: {} is stored as {}, supported are {}", file_.source(),
                      printable(tensor.name), tensor.type_name, computable_gguf_types());
  }

  /// One expert's matrix of a tensor of three dimensions, or its bias of one of two.
  Result<WeightView> plane(const Location& location) const {
    const GgufTensor& tensor = *location.tensor;
    BF_TRY(check_type(tensor));
    const bool bias = tensor.name.ends_with(".bias");
    const int dims = bias ? 2 : 3;
    const std::int64_t planes = tensor.shape[static_cast<std::size_t>(dims - 1)];
    if (tensor.dims != dims || planes != experts_ || location.expert >= planes) {
      return make_error(ErrorCode::kBadData,
                        "{}: {} has {} dimensions, the last of {}, expected {}, the last of {} experts", file_.source(),
                        printable(tensor.name), tensor.dims, planes, dims, experts_);
    }
    const std::size_t bytes = tensor.bytes.size() / static_cast<std::size_t>(planes);
    return WeightView{.type = *tensor.type,
                      .rows = bias ? 1 : tensor.shape[1],
                      .cols = tensor.shape[0],
                      .bytes = tensor.bytes.subspan(static_cast<std::size_t>(location.expert) * bytes, bytes)};
  }

  Result<WeightView> view_of(const GgufTensor& tensor) const {
    BF_TRY(check_type(tensor));
    if (tensor.dims > 3) {
      return make_error(ErrorCode::kBadData, "{}: {} has {} dimensions, expected 1 to 3", file_.source(),
                        printable(tensor.name), tensor.dims);
    }
    // The bytes are there, so the product is small.
    const std::int64_t rows = tensor.shape[1] * tensor.shape[2];
    return WeightView{.type = *tensor.type, .rows = rows, .cols = tensor.shape[0], .bytes = tensor.bytes};
  }

  /// The tensor that has attn_k_b and attn_v_b, where one of them is asked for and the file has it; else null.
  const GgufTensor* latent_tensor(std::string name) const {
    if (!config_.has_latent()) return nullptr;
    const bool found = replace_once(name, kLatentKeys, kLatentBoth) || replace_once(name, kLatentValues, kLatentBoth);
    return found ? file_.find_tensor(name) : nullptr;
  }

  Result<WeightView> latent_part(const std::string& name) const {
    const std::string both(latent_tensor(name)->name);
    BF_ASSIGN_OR_RETURN(const WeightView view,
                        find_checked(*this, {.name = both, .rows = latent_rows(config_), .cols = config_.latent.dim}));
    const bool keys = name.find(kLatentKeys) != std::string::npos;
    return keys ? latent_keys(config_, view) : latent_values(config_, view);
  }

  Result<WeightView> slice(const std::string& name, const WeightView& whole, const Location& location) const {
    const std::int64_t expected = location.part->total;
    const bool is_vector = location.tensor->dims == 1;
    const std::int64_t outputs = is_vector ? whole.cols : whole.rows;
    if (outputs != expected) {
      return make_error(ErrorCode::kBadData, "{}: {} comes from {} with {} outputs, the model's configuration says {}",
                        file_.source(), name, printable(location.tensor->name), outputs, expected);
    }
    WeightView view = whole;
    (is_vector ? view.cols : view.rows) = location.part->count;
    const auto unit =
        is_vector ? row_bytes(whole.type, 1) : row_bytes(whole.type, static_cast<std::uint64_t>(whole.cols));
    if (!unit) {
      return make_error(ErrorCode::kUnsupported, "{}: {} is a vector in blocks ({})", file_.source(), name,
                        to_string(whole.type));
    }
    view.bytes = whole.bytes.subspan(static_cast<std::size_t>(location.part->begin) * *unit,
                                     static_cast<std::size_t>(location.part->count) * *unit);
    return view;
  }

  void append(std::vector<WeightInfo>& result, const std::string& name) const {
    if (const auto view = find(name)) {
      result.push_back(
          {.name = name, .type = view->type, .rows = view->rows, .cols = view->cols, .bytes = view->bytes.size()});
    }
  }

  GgufFile file_;
  Mappings mappings_;
  ModelConfig config_;
  std::vector<Part> parts_;
  std::int64_t experts_ = 0;
  std::map<std::string, std::string, std::less<>> renamed_;  // canonical to stored
};

Status check_all_weights(const WeightSource& source, const ModelConfig& config) {
  const auto check = [&](const WeightRange& range) -> Status {
    for (const WeightInfo& expected : expected_weights(config, range)) BF_TRY(find_checked(source, expected));
    return {};
  };
  BF_TRY(check({.embedding = true, .head = true}));
  // Layer by layer: a hostile layer count fails at the first missing one.
  for (int layer = 0; layer < config.layers; ++layer) BF_TRY(check({.first_layer = layer, .last_layer = layer + 1}));
  return {};
}

Result<Checkpoint> open(GgufFile file, Mappings mappings, const OpenOptions& options) {
  const std::string source = file.source();
  BF_ASSIGN_OR_RETURN(const auto int8, file.get_bool(kGgufInt8Key));
  if (int8.value_or(false)) BF_TRY(file.take_q8_0_as_int8());
  Checkpoint checkpoint;
  checkpoint.path = source;
  checkpoint.format = fmt::format("gguf v{}", file.version());
  if (file.tensors().empty() && options.weights_required) {
    return make_error(ErrorCode::kBadData, "{}: has no weights, only {} metadata entries", source, file.keys().size());
  }
  auto vocabulary = read_gguf_vocabulary(file);
  if (!vocabulary && options.vocabulary_required) return tl::unexpected(std::move(vocabulary).error());
  if (vocabulary) checkpoint.vocabulary = std::move(*vocabulary);
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  const bool count_rows = checkpoint.vocabulary.size() == 0 && embedding;
  const std::int64_t tokens =
      count_rows ? std::min<std::int64_t>(embedding->shape[1], INT_MAX) : checkpoint.vocabulary.size();
  BF_ASSIGN_OR_RETURN(checkpoint.config, read_gguf_config(file, static_cast<int>(tokens)));
  checkpoint.weights = std::make_shared<GgufWeights>(std::move(file), checkpoint.config, std::move(mappings));
  if (options.weights_required) BF_TRY(check_all_weights(*checkpoint.weights, checkpoint.config));
  return checkpoint;
}

}  // namespace

Result<Checkpoint> open_gguf(std::shared_ptr<const MappedFile> file, const OpenOptions& options) {
  BF_ASSIGN_OR_RETURN(GgufFile parsed, GgufFile::parse(file->bytes(), file->path()));
  BF_ASSIGN_OR_RETURN(Mappings mappings, add_gguf_shards(file->path(), parsed));
  mappings.push_back(std::move(file));
  return open(std::move(parsed), std::move(mappings), options);
}

Result<Checkpoint> open_gguf_bytes(ByteSpan bytes, const std::string& source, const OpenOptions& options) {
  BF_ASSIGN_OR_RETURN(GgufFile file, GgufFile::parse(bytes, source));
  return open(std::move(file), {}, options);
}

}  // namespace butterfly
