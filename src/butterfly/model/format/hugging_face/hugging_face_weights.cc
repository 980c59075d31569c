#include "butterfly/model/format/hugging_face/hugging_face_weights.h"

#include <charconv>
#include <cstring>
#include <map>
#include <optional>

#include "butterfly/base/text/printable.h"
#include "butterfly/model/core/latent_parts.h"
#include "butterfly/model/format/hugging_face/hugging_face_encoders.h"
#include "butterfly/model/format/hugging_face/hugging_face_experts.h"
#include "butterfly/model/format/hugging_face/hugging_face_names.h"
#include "butterfly/model/format/safetensors/scaled_tensors.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

enum class Order { kAsStored, kRows, kTransposed, kPlusOne, kLatentKeys, kLatentValues, kMxfp4, kApart };

/// Where a canonical weight is in the files and how its rows come out of them.
struct Recipe {
  const SafetensorsEntry* entry = nullptr;
  const SafetensorsEntry* scales = nullptr;  // of FP8, int8 and MXFP4
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Order order = Order::kAsStored;
  DType stored_type = DType::kF32;  // kPlusOne
  std::int64_t first = 0;           // element where the weight begins; kTransposed: column; kRows, kMxfp4: row
  std::int64_t head_dim = 0;        // kRows
  bool halves = false;              // kRows: the file has heads for halves, this weight has them for adjacent pairs
  std::int64_t group = 0;  // kRows: heads of this weight between those of the others in one tensor; 0: nothing between
  std::int64_t group_step = 0;   // heads from one group to the next
  std::int64_t group_first = 0;  // head of a group where this weight's begin
  std::int64_t row_step = 0;     // kApart: elements from one row of this weight to the next; kMxfp4: rows
  std::int64_t col_step = 0;     // and from one column to the next
  std::size_t shard = 0;

  /// Order::kRows: where the file has this output.
  std::int64_t stored_row(std::int64_t row) const {
    if (halves) row = half_split_row(row, head_dim);
    if (group == 0) return first + row;
    const std::int64_t head = row / head_dim;
    return (head / group * group_step + group_first + head % group) * head_dim + row % head_dim;
  }
};

/// to[rows, cols] = transposed from[cols, from_cols], whose first `rows` columns are meant.
template <typename T>
void transpose(const std::byte* from, std::int64_t from_cols, std::int64_t rows, std::int64_t cols, std::byte* to) {
  // Tiles keep both sides in the first cache.
  constexpr std::int64_t kTile = 32;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (std::int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
          std::memcpy(to + (r * cols + c) * static_cast<std::int64_t>(sizeof(T)),
                      from + (c * from_cols + r) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        }
      }
    }
  }
}

/// to[rows, cols] = the elements of `from` at row * row_step + col * col_step.
void copy_apart(const std::byte* from, std::size_t element, const WeightPart& part, std::int64_t row_step,
                std::int64_t col_step, std::byte* to) {
  // Tiles keep both sides in the first cache.
  constexpr std::int64_t kTile = 32;
  const std::int64_t wide = part.of_cols.size();
  for (std::int64_t r0 = part.of_rows.begin; r0 < part.of_rows.end; r0 += kTile) {
    for (std::int64_t c0 = part.of_cols.begin; c0 < part.of_cols.end; c0 += kTile) {
      for (std::int64_t r = r0; r < std::min(part.of_rows.end, r0 + kTile); ++r) {
        for (std::int64_t c = c0; c < std::min(part.of_cols.end, c0 + kTile); ++c) {
          const std::int64_t at = (r - part.of_rows.begin) * wide + c - part.of_cols.begin;
          std::memcpy(to + static_cast<std::size_t>(at) * element,
                      from + static_cast<std::size_t>(r * row_step + c * col_step) * element, element);
        }
      }
    }
  }
}

/// Where an expert's outputs are in the tensor of all experts, counted in outputs.
struct StackPlace {
  std::int64_t expert = 0;
  std::int64_t all = 0;  // of each expert
  std::int64_t first_output = 0;
  std::int64_t output_step = 1;
};

class HuggingFaceWeights final : public WeightSource {
 public:
  HuggingFaceWeights(std::vector<HuggingFaceShard> shards, ModelConfig config, std::string source)
      : shards_(std::move(shards)), config_(std::move(config)), source_(std::move(source)) {}

  /// Fills the recipes. Errors as make_hugging_face_weights.
  Status resolve() {
    BF_TRY(resolve_range({.embedding = true, .head = true}));
    for (int layer = 0; layer < config_.layers; ++layer) {
      BF_TRY(resolve_range({.first_layer = layer, .last_layer = layer + 1}));
    }
    return {};
  }

  std::vector<WeightInfo> list() const override { return list_; }
  bool contains(const std::string& name) const override { return recipes_.contains(name); }
  std::string description() const override { return source_; }

  Result<WeightView> find(const std::string& name) const override {
    BF_ASSIGN_OR_RETURN(const Recipe* recipe, recipe_of(name));
    return materialise(*recipe, WeightPart::all(recipe->rows, recipe->cols));
  }

  Result<WeightView> find_part(const std::string& name, const WeightPart& part) const override {
    BF_ASSIGN_OR_RETURN(const Recipe* recipe, recipe_of(name));
    BF_TRY(check_part(*this, {.name = name, .type = recipe->type, .rows = recipe->rows, .cols = recipe->cols}, part));
    return materialise(*recipe, part);
  }

  void read_behind(const WeightView& view) const override {
    for (const HuggingFaceShard& shard : shards_) {
      if (shard.mapping) shard.mapping->read_behind(view.bytes, kReadBehindBytes);
    }
  }

  void release(const WeightView& view) const override {
    for (const HuggingFaceShard& shard : shards_) {
      if (shard.mapping) shard.mapping->drop(view.bytes);
    }
  }

 private:
  Result<const Recipe*> recipe_of(const std::string& name) const {
    const auto found = recipes_.find(name);
    if (found != recipes_.end()) return &found->second;
    return make_error(ErrorCode::kNotFound, "{}: lacks the weight {}", source_, printable(name));
  }

  Status resolve_range(const WeightRange& range) {
    for (const WeightInfo& expected : expected_weights(config_, range)) {
      BF_ASSIGN_OR_RETURN(const Recipe recipe, resolve_weight(expected));
      recipes_.emplace(expected.name, recipe);
      const std::uint64_t bytes =
          *row_bytes(recipe.type, static_cast<std::uint64_t>(recipe.cols)) * static_cast<std::uint64_t>(recipe.rows);
      list_.push_back(
          {.name = expected.name, .type = recipe.type, .rows = recipe.rows, .cols = recipe.cols, .bytes = bytes});
    }
    return {};
  }

  /// Also tries the name without its first part: files saved from a model without its head lack it.
  bool locate(const std::string& name, Recipe& recipe) const {
    const std::string bare = name.substr(name.find('.') + 1);
    for (const std::string& candidate : {name, bare}) {
      for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
        const auto& entries = shards_[shard].file.entries();
        const auto found = entries.find(candidate);
        if (found == entries.end()) continue;
        recipe.entry = &found->second;
        recipe.shard = shard;
        return true;
      }
    }
    return false;
  }

  /// A parallel block with two norms calls them otherwise than one with a single norm (Falcon).
  std::string stored_name(const std::string& canonical) const {
    std::string name = hugging_face_name(canonical, config_.architecture);
    if (config_.architecture != "falcon" || !config_.parallel_block || config_.shared_norm) return name;
    for (const auto& [from, to] :
         {std::pair{".input_layernorm.", ".ln_attn."}, {".post_attention_layernorm.", ".ln_mlp."}}) {
      const std::size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, std::string_view(from).size(), to);
    }
    return name;
  }

  Result<Recipe> resolve_weight(const WeightInfo& expected) const {
    const bool gpt2 = config_.architecture == "gpt2";
    std::string name = stored_name(expected.name);
    Recipe recipe{.rows = expected.rows, .cols = expected.cols};
    const std::vector<std::string> names = encoder_weight_names(config_, expected.name);
    const std::optional<StoredEncoderWeight> stored = find_encoder_weight(shards_, names);
    if (stored) {
      name = stored->name;
      recipe.entry = stored->entry;
      recipe.shard = stored->shard;
    } else if (!names.empty()) {
      name = names.front();
    }
    bool found = stored || (names.empty() && locate(name, recipe));
    const StackedExperts stacked = stacked_experts(expected.name, config_.architecture);
    const bool of_stack = !found && !stacked.name.empty() && locate(stacked.name, recipe);
    if (of_stack) {
      name = stacked.name;
      found = true;
    }
    // A tied matrix may be stored under the name of its other use.
    if (!found && config_.tied_head && expected.name == "token_embd.weight") found = locate("lm_head.weight", recipe);
    if (!found && locate_mxfp4(name, recipe)) return place_mxfp4(name, std::move(recipe));
    if (!found && !stacked.name.empty() && locate_mxfp4(stacked.name, recipe)) {
      return place_mxfp4(stacked.name, std::move(recipe), stack_place(expected, stacked));
    }
    if (!found) return make_error(ErrorCode::kNotFound, "{}: lacks the weight {} ({})", source_, name, expected.name);
    if (recipe.entry->type_name == "F8_E4M3" || recipe.entry->type_name == "I8") {
      BF_TRY(find_scales(name, recipe));
      recipe.type = DType::kBF16;
    } else if (recipe.entry->type) {
      recipe.type = *recipe.entry->type;
    } else {
      return make_error(ErrorCode::kUnsupported, "{}: {} is stored as {}, supported are F32, F16, BF16, F8_E4M3 and I8",
                        source_, name, printable(recipe.entry->type_name));
    }
    std::vector<std::int64_t> shape = {expected.rows, expected.cols};
    if (expected.rows == 1) shape = {expected.cols};
    if (expected.name.ends_with(".ffn_gate_inp_shexp.weight")) shape = {1, expected.cols};
    if (of_stack) {
      place_stacked(expected, stacked, recipe, shape);
    } else if (gpt2) {
      place_gpt2(expected, recipe, shape);
    } else if (stored) {
      recipe.first = place_encoder_weight(config_, expected, *stored, shape);
    } else {
      place(expected, recipe, shape);
    }
    if (recipe.entry->shape != shape) {
      return make_error(ErrorCode::kBadData, "{}: {} has the shape {}, the model's configuration says {}", source_,
                        name, shape_text(recipe.entry->shape), shape_text(shape));
    }
    const bool whole_rows = recipe.order == Order::kAsStored || recipe.order == Order::kRows;
    if (is_int8(recipe) && whole_rows && recipe.cols % kQuantBlock == 0) recipe.type = DType::kInt8;
    return recipe;
  }

  static bool is_int8(const Recipe& recipe) { return recipe.entry->type_name == "I8"; }

  Status find_scales(const std::string& name, Recipe& recipe) const {
    const char* suffix = is_int8(recipe) ? "_scale" : "_scale_inv";
    Recipe scales;
    if (!locate(name + suffix, scales)) {
      return make_error(ErrorCode::kNotFound, "{}: {} is stored as {}, its scales {}{} are missing", source_, name,
                        recipe.entry->type_name, name, suffix);
    }
    recipe.scales = scales.entry;
    const auto check = is_int8(recipe) ? check_int8 : check_fp8;
    if (const auto fits = check({recipe.entry, recipe.scales}, name); !fits) {
      return make_error(fits.error().code, "{}: {}", source_, fits.error().message);
    }
    return {};
  }

  /// A matrix X that the files have as X_blocks and X_scales.
  bool locate_mxfp4(const std::string& name, Recipe& recipe) const {
    const std::string stem = name.substr(0, name.rfind(".weight"));
    Recipe scales;
    if (!locate(stem + "_scales", scales) || !locate(stem + "_blocks", recipe)) return false;
    recipe.scales = scales.entry;
    return true;
  }

  /// `stack`: of a tensor that has the matrices of all experts.
  Result<Recipe> place_mxfp4(const std::string& name, Recipe recipe, std::optional<StackPlace> stack = {}) const {
    if (const auto fits = check_mxfp4({recipe.entry, recipe.scales}, name); !fits) {
      return make_error(fits.error().code, "{}: {}", source_, fits.error().message);
    }
    std::vector<std::int64_t> shape{recipe.rows, recipe.cols / kQuantBlock};
    if (stack) shape = {config_.moe.experts, stack->all, recipe.cols / kQuantBlock};
    if (recipe.scales->shape != shape || recipe.cols % kQuantBlock != 0) {
      return make_error(ErrorCode::kBadData,
                        "{}: the scales of {} have the shape {}, the model's configuration says {}", source_, name,
                        shape_text(recipe.scales->shape), shape_text(shape));
    }
    recipe.type = DType::kMXFP4;
    recipe.order = Order::kMxfp4;
    recipe.row_step = stack ? stack->output_step : 1;
    if (stack) recipe.first = stack->expert * stack->all + stack->first_output;
    return recipe;
  }

  static std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::int64_t extent : shape) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
    return text + "]";
  }

  void place(const WeightInfo& expected, Recipe& recipe, std::vector<std::int64_t>& shape) const {
    const WeightNameParts parts = split_weight_name(expected.name);
    const std::int64_t group = config_.heads / config_.kv_heads;
    const QkvOrder qkv = qkv_order(config_.architecture);
    const bool q = parts.stem == "attn_q";
    const bool k = parts.stem == "attn_k";
    if ((q || k) && rotates_halves_in_files(config_.architecture)) {
      recipe.order = Order::kRows;
      recipe.halves = true;
    } else if (qkv != QkvOrder::kApart && (q || k || parts.stem == "attn_v")) {
      shape.front() = config_.q_dim() + 2 * std::int64_t{config_.kv_dim()};
      if (qkv == QkvOrder::kByKeyHead) {
        recipe.order = Order::kRows;
        recipe.group = q ? group : 1;
        recipe.group_step = group + 2;
        recipe.group_first = q ? 0 : k ? group : group + 1;
      } else {
        recipe.first = q ? 0 : k ? config_.q_dim() : config_.q_dim() + config_.kv_dim();
      }
    } else if (parts.stem == "ffn_gate" || parts.stem == "ffn_up") {
      const std::string gate = "blk.0.ffn_gate.weight";
      const std::string up = "blk.0.ffn_up.weight";
      const bool fused = hugging_face_name(gate, config_.architecture) == hugging_face_name(up, config_.architecture);
      if (fused) shape.front() *= 2;
      if (fused && parts.stem == "ffn_up") recipe.first = config_.ff_dim;
    } else if (parts.stem == "attn_k_b" || parts.stem == "attn_v_b") {
      recipe.order = parts.stem == "attn_k_b" ? Order::kLatentKeys : Order::kLatentValues;
      shape = {latent_rows(config_), config_.latent.dim};
    } else if (norms_around_one(config_.architecture) && parts.stem.ends_with("norm")) {
      recipe.order = Order::kPlusOne;
      recipe.stored_type = recipe.type;
      recipe.type = DType::kF32;
    }
    recipe.head_dim = config_.head_dim;
    if (recipe.order == Order::kAsStored && expected.rows > 1) recipe.first *= expected.cols;
  }

  static StackPlace stack_place(const WeightInfo& expected, const StackedExperts& stacked) {
    const WeightNameParts parts = split_weight_name(expected.name);
    StackPlace place;
    std::from_chars(parts.expert.data(), parts.expert.data() + parts.expert.size(), place.expert);
    const std::int64_t outputs = expected.rows == 1 ? expected.cols : expected.rows;
    place.all = stacked.of_gate_and_up ? 2 * outputs : outputs;
    const bool second = stacked.of_gate_and_up && parts.stem == "ffn_up_exps";
    place.output_step = stacked.interleaved ? 2 : 1;
    place.first_output = second ? (stacked.interleaved ? 1 : outputs) : 0;
    return place;
  }

  /// One tensor has the matrices, or the biases, of all experts.
  void place_stacked(const WeightInfo& expected, const StackedExperts& stacked, Recipe& recipe,
                     std::vector<std::int64_t>& shape) const {
    const auto [expert, all, first_output, output_step] = stack_place(expected, stacked);
    const bool vector = expected.rows == 1;
    const std::int64_t inputs = vector ? 1 : expected.cols;
    shape = {config_.moe.experts};
    if (vector) {
      shape.push_back(all);
    } else {
      shape.insert(shape.end(), {stacked.transposed ? inputs : all, stacked.transposed ? all : inputs});
    }
    recipe.first = expert * all * inputs + first_output * (stacked.transposed ? 1 : inputs);
    if (!stacked.transposed && !stacked.interleaved) return;
    recipe.order = Order::kApart;
    recipe.row_step = stacked.transposed ? output_step : output_step * inputs;
    recipe.col_step = stacked.transposed ? all : 1;
    if (vector) recipe.col_step = output_step;
  }

  /// GPT-2 stores matrices as [inputs, outputs], and Q, K and V beside one another in the outputs.
  void place_gpt2(const WeightInfo& expected, Recipe& recipe, std::vector<std::int64_t>& shape) const {
    const WeightNameParts parts = split_weight_name(expected.name);
    const std::int64_t outputs = expected.rows == 1 ? expected.cols : expected.rows;
    std::int64_t stored = outputs;
    if (parts.stem == "attn_q" || parts.stem == "attn_k" || parts.stem == "attn_v") {
      stored = config_.q_dim() + 2 * std::int64_t{config_.kv_dim()};
      if (parts.stem == "attn_k") recipe.first = config_.q_dim();
      if (parts.stem == "attn_v") recipe.first = config_.q_dim() + config_.kv_dim();
    }
    if (expected.rows == 1) {
      shape = {stored};
    } else if (!parts.layer.empty()) {
      recipe.order = Order::kTransposed;
      shape = {expected.cols, stored};
    }
  }

  /// A matrix whose rows are whole ones of the file's.
  WeightView materialise_int8(const Recipe& recipe, const WeightPart& part) const {
    const auto stored_row = [&](std::int64_t row) {
      return recipe.order == Order::kRows ? recipe.stored_row(row) : recipe.first / recipe.cols + row;
    };
    return int8_rows({recipe.entry, recipe.scales}, part.of_rows, stored_row)
        .cut({0, part.of_rows.size()}, part.of_cols);
  }

  /// FP8 as the bf16 that it stands for, of which the rest knows; of a matrix that is not reordered the wanted rows.
  /// So int8 of matrices that are reordered in other ways than by rows.
  WeightView materialise_scaled(const Recipe& recipe, const WeightPart& part) const {
    const bool in_order = recipe.order == Order::kAsStored && recipe.first == 0;
    const IndexRange rows = in_order ? part.of_rows : IndexRange{0, recipe.entry->shape[0]};
    const WeightView stored = (is_int8(recipe) ? int8_as_bf16 : fp8_rows)({recipe.entry, recipe.scales}, rows);
    if (const auto& mapping = shards_[recipe.shard].mapping; mapping && !in_order) mapping->drop(recipe.entry->bytes);
    if (in_order) return stored.cut({0, rows.size()}, part.of_cols);
    const SafetensorsEntry entry{
        .type_name = "BF16", .type = DType::kBF16, .shape = recipe.entry->shape, .bytes = stored.bytes};
    Recipe plain = recipe;
    plain.entry = &entry;
    plain.scales = nullptr;
    WeightView view = materialise(plain, part);
    if (!view.owner) view.owner = stored.owner;
    return view;
  }

  WeightView materialise(const Recipe& recipe, const WeightPart& part) const {
    if (recipe.order == Order::kMxfp4) {
      const RowSteps rows{.first = recipe.first + part.of_rows.begin * recipe.row_step,
                          .step = recipe.row_step,
                          .count = part.of_rows.size()};
      return mxfp4_rows({recipe.entry, recipe.scales}, rows).cut({0, rows.count}, part.of_cols);
    }
    if (recipe.type == DType::kInt8) return materialise_int8(recipe, part);
    if (recipe.scales != nullptr) return materialise_scaled(recipe, part);
    if (recipe.order == Order::kLatentKeys || recipe.order == Order::kLatentValues) {
      const WeightView both{
          .type = recipe.type, .rows = latent_rows(config_), .cols = config_.latent.dim, .bytes = recipe.entry->bytes};
      const bool keys = recipe.order == Order::kLatentKeys;
      return (keys ? latent_keys(config_, both) : latent_values(config_, both)).cut(part.of_rows, part.of_cols);
    }
    const auto element = static_cast<std::size_t>(block_bytes(recipe.type));
    WeightView view{.type = recipe.type, .rows = recipe.rows, .cols = recipe.cols};
    if (recipe.order == Order::kAsStored) {
      const std::size_t size = static_cast<std::size_t>(recipe.rows) * static_cast<std::size_t>(recipe.cols) * element;
      view.bytes = recipe.entry->bytes.subspan(static_cast<std::size_t>(recipe.first) * element, size);
      view = view.cut(part.of_rows, part.of_cols);
      // The format does not align tensors; a copy is aligned.
      if (reinterpret_cast<std::uintptr_t>(view.bytes.data()) % element == 0) return view;
    }
    const auto copy = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(part.of_rows.size()) *
                                                               static_cast<std::size_t>(part.of_cols.size()) * element);
    fill(recipe, part, view, *copy);
    if (const auto& mapping = shards_[recipe.shard].mapping; mapping && recipe.order == Order::kRows) {
      mapping->drop(recipe.entry->bytes);
    }
    return {recipe.type, part.of_rows.size(), part.of_cols.size(), *copy, copy};
  }

  /// `stored`: the part as an order kAsStored has it.
  static void fill(const Recipe& recipe, const WeightPart& part, const WeightView& stored,
                   std::vector<std::byte>& copy) {
    const auto element = static_cast<std::size_t>(block_bytes(recipe.type));
    const ByteSpan from = recipe.entry->bytes;
    switch (recipe.order) {
      case Order::kAsStored: {
        const std::size_t row = copy.size() / static_cast<std::size_t>(stored.rows);
        const std::size_t step = stored.stride == 0 ? row : stored.stride;
        for (std::size_t r = 0; r < static_cast<std::size_t>(stored.rows); ++r) {
          std::memcpy(copy.data() + r * row, stored.bytes.data() + r * step, row);
        }
        return;
      }
      case Order::kRows: {
        // The outputs of a vector (a bias) are its elements.
        const bool vector = recipe.rows == 1;
        const IndexRange outputs = vector ? part.of_cols : part.of_rows;
        const std::size_t unit = vector ? element : static_cast<std::size_t>(recipe.cols) * element;
        const std::size_t skip = vector ? 0 : static_cast<std::size_t>(part.of_cols.begin) * element;
        const std::size_t size = copy.size() / static_cast<std::size_t>(outputs.size());
        std::byte* to = copy.data();
        for (std::int64_t r = outputs.begin; r < outputs.end; ++r, to += size) {
          const auto source = static_cast<std::size_t>(recipe.stored_row(r));
          std::memcpy(to, from.data() + source * unit + skip, size);
        }
        return;
      }
      case Order::kPlusOne: {
        const auto count = static_cast<std::size_t>(part.of_cols.size());
        const auto size = static_cast<std::size_t>(block_bytes(recipe.stored_type));
        std::vector<float> values(count);
        decode_row(recipe.stored_type, from.subspan(static_cast<std::size_t>(part.of_cols.begin) * size, count * size),
                   values);
        for (float& value : values) value += 1.0f;
        std::memcpy(copy.data(), values.data(), copy.size());
        return;
      }
      case Order::kLatentKeys:
      case Order::kLatentValues:
      case Order::kMxfp4:
        return;
      case Order::kTransposed: {
        const std::int64_t cols = recipe.entry->shape[1];
        const std::int64_t first = part.of_cols.begin * cols + recipe.first + part.of_rows.begin;
        const std::byte* begin = from.data() + static_cast<std::size_t>(first) * element;
        const bool wide = recipe.type == DType::kF32;
        (wide ? transpose<std::uint32_t> : transpose<std::uint16_t>)(begin, cols, part.of_rows.size(),
                                                                     part.of_cols.size(), copy.data());
        return;
      }
      case Order::kApart: {
        const std::byte* begin = from.data() + static_cast<std::size_t>(recipe.first) * element;
        copy_apart(begin, element, part, recipe.row_step, recipe.col_step, copy.data());
        return;
      }
    }
  }

  std::vector<HuggingFaceShard> shards_;
  ModelConfig config_;
  std::string source_;
  std::map<std::string, Recipe, std::less<>> recipes_;
  std::vector<WeightInfo> list_;
};

}  // namespace

Result<std::shared_ptr<const WeightSource>> make_hugging_face_weights(std::vector<HuggingFaceShard> shards,
                                                                      const ModelConfig& config, std::string source) {
  const auto weights = std::make_shared<HuggingFaceWeights>(std::move(shards), config, std::move(source));
  BF_TRY(weights->resolve());
  return std::shared_ptr<const WeightSource>(weights);
}

}  // namespace butterfly
