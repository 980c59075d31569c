#include "butterfly/model/core/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

/// The splitmix64 sequence (https://prng.di.unimi.it/splitmix64.c): a counter put through a mixer.
class Counter {
 public:
  explicit Counter(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

std::uint64_t seed_of(std::uint64_t seed, std::string_view name) {
  // FNV-1a over the name: each weight has a sequence of its own.
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return Counter(hash ^ Counter(seed).next()).next();
}

/// Uniform with mean 0 and the given deviation.
class Uniform {
 public:
  explicit Uniform(float deviation) : scale_(deviation * 1.7320508f * 0x1p-31f) {}  // sqrt(3) / 2^31
  float operator()(std::uint32_t bits) const { return static_cast<float>(static_cast<std::int32_t>(bits)) * scale_; }

 private:
  float scale_;
};

// Deviations of the stored integers: of -8..7 as nibbles come, and of -127..127 with -128 folded onto -127.
constexpr float kNibbleDeviation = 4.6368f;
constexpr float kByteDeviation = 73.9f;

void fill_q4_0(Counter& counter, float deviation, MutableByteSpan row) {
  const std::uint16_t scale = float_to_half(deviation / kNibbleDeviation);
  for (std::size_t at = 0; at < row.size(); at += sizeof(BlockQ4_0)) {
    const std::uint64_t bits[2] = {counter.next(), counter.next()};
    BlockQ4_0 block;
    // Nibbles have mean -1/2; half of the blocks turn it around.
    block.scale = static_cast<std::uint16_t>(scale | (counter.next() & 0x8000u));
    std::memcpy(block.quants, bits, sizeof(bits));
    std::memcpy(row.data() + at, &block, sizeof(block));
  }
}

void fill_q8_0(Counter& counter, float deviation, MutableByteSpan row) {
  const std::uint16_t scale = float_to_half(deviation / kByteDeviation);
  for (std::size_t at = 0; at < row.size(); at += sizeof(BlockQ8_0)) {
    const std::uint64_t bits[4] = {counter.next(), counter.next(), counter.next(), counter.next()};
    BlockQ8_0 block;
    block.scale = scale;
    std::memcpy(block.quants, bits, sizeof(bits));
    for (std::int8_t& quant : block.quants) quant = quant == -128 ? std::int8_t{-127} : quant;
    std::memcpy(row.data() + at, &block, sizeof(block));
  }
}

/// Random quants and scales; the scale of a block is set so that values have about the deviation, and its minimum so
/// that their mean is about 0.
struct RandomBlock {
  std::size_t scale = 0;  // where its half is
  std::optional<std::size_t> minimum{};
  float deviation = 1.0f;  // of the values with a scale of 1
  float mean = 0.0f;       // of the values without a minimum, in units of the random part of the minimum
};

RandomBlock random_block(DType type) {
  switch (type) {
    case DType::kQ4_1:
      return {.minimum = 2, .deviation = 4.61f, .mean = -7.5f};
    case DType::kQ5_0:
      return {.deviation = 9.24f};
    case DType::kQ5_1:
      return {.minimum = 2, .deviation = 9.23f, .mean = -15.5f};
    case DType::kQ2_K:
      return {.scale = 80, .minimum = 82, .deviation = 17.0f, .mean = 1.5f};
    case DType::kQ3_K:
      return {.scale = 108, .deviation = 42.4f};
    case DType::kQ4_K:
      return {.minimum = 2, .deviation = 256.0f, .mean = 7.5f};
    case DType::kQ5_K:
      return {.minimum = 2, .deviation = 523.0f, .mean = 15.5f};
    case DType::kQ6_K:
      return {.scale = 208, .deviation = 1366.0f};
    case DType::kIQ4_XS:
      return {.deviation = 1250.0f};
    default:
      return {.deviation = 67.6f};  // IQ4_NL
  }
}

void fill_blocks(DType type, Counter& counter, float deviation, MutableByteSpan row) {
  for (std::size_t at = 0; at < row.size(); at += 8) {
    const std::uint64_t bits = counter.next();
    std::memcpy(row.data() + at, &bits, std::min<std::size_t>(8, row.size() - at));
  }
  const auto step = static_cast<std::size_t>(block_bytes(type));
  if (type == DType::kMXFP4) {
    // Quants have a deviation of about 5; the exponent is of half a quant's unit.
    const int exponent = std::clamp(128 + static_cast<int>(std::lround(std::log2(deviation / 5.3f))), 2, 254);
    for (std::size_t at = 0; at < row.size(); at += step) row[at] = static_cast<std::byte>(exponent);
    return;
  }
  const RandomBlock block = random_block(type);
  const float scale = deviation / block.deviation;
  const std::uint16_t scale_half = float_to_half(scale);
  const std::uint16_t minimum_half = float_to_half(scale * block.mean);
  for (std::size_t at = 0; at < row.size(); at += step) {
    std::memcpy(row.data() + at + block.scale, &scale_half, 2);
    if (block.minimum) std::memcpy(row.data() + at + *block.minimum, &minimum_half, 2);
  }
}

template <typename T, typename Encode>
void fill_plain(Counter& counter, float deviation, MutableByteSpan row, Encode encode) {
  const Uniform uniform(deviation);
  for (std::size_t at = 0; at < row.size(); at += sizeof(T)) {
    const T value = encode(uniform(static_cast<std::uint32_t>(counter.next() >> 32)));
    std::memcpy(row.data() + at, &value, sizeof(T));
  }
}

void fill_row(DType type, Counter& counter, float deviation, MutableByteSpan row) {
  switch (type) {
    case DType::kQ4_0:
      return fill_q4_0(counter, deviation, row);
    case DType::kQ8_0:
    case DType::kInt8:  // all blocks have one scale
      return fill_q8_0(counter, deviation, row);
    case DType::kF16:
      return fill_plain<std::uint16_t>(counter, deviation, row, float_to_half);
    case DType::kBF16:
      return fill_plain<std::uint16_t>(counter, deviation, row, float_to_bfloat16);
    case DType::kF32:
      return fill_plain<float>(counter, deviation, row, [](float value) { return value; });
    case DType::kI32:
      return;
    default:
      return fill_blocks(type, counter, deviation, row);
  }
}

class RandomSource final : public WeightSource {
 public:
  RandomSource(const ModelConfig& config, std::uint64_t seed) : name_("random " + config.name), seed_(seed) {
    weights_ =
        expected_weights(config, {.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true});
    for (std::size_t i = 0; i < weights_.size(); ++i) index_[weights_[i].name] = i;
  }

  std::vector<WeightInfo> list() const override { return weights_; }
  bool contains(const std::string& name) const override { return index_.contains(name); }
  std::string description() const override { return name_; }

  Result<WeightView> find(const std::string& name) const override {
    BF_ASSIGN_OR_RETURN(const WeightInfo* info, info_of(name));
    return make_rows(*info, {0, info->rows});
  }

  /// Whole rows are made: numbers of a row follow each other.
  Result<WeightView> find_part(const std::string& name, const WeightPart& part) const override {
    BF_ASSIGN_OR_RETURN(const WeightInfo* info, info_of(name));
    BF_TRY(check_part(*this, *info, part));
    return make_rows(*info, part.of_rows).cut({0, part.of_rows.size()}, part.of_cols);
  }

 private:
  Result<const WeightInfo*> info_of(const std::string& name) const {
    const auto found = index_.find(name);
    if (found == index_.end()) return make_error(ErrorCode::kNotFound, "{}: has no weight {}", name_, name);
    return &weights_[found->second];
  }

  WeightView make_rows(const WeightInfo& info, const IndexRange& rows) const {
    const std::uint64_t row_size = info.bytes / static_cast<std::uint64_t>(info.rows);
    const auto memory = std::make_shared<std::vector<std::byte>>(row_size * static_cast<std::uint64_t>(rows.size()));
    fill(info, rows, *memory);
    return WeightView{.type = info.type, .rows = rows.size(), .cols = info.cols, .bytes = *memory, .owner = memory};
  }

  void fill(const WeightInfo& info, const IndexRange& rows, MutableByteSpan bytes) const {
    const bool norm = info.name.find("norm.") != std::string::npos;
    if (norm) {
      const float value = info.name.ends_with(".weight") ? 1.0f : 0.0f;
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) std::memcpy(&bytes[at], &value, sizeof(float));
      return;
    }
    constexpr float kBiasDeviation = 0.02f;
    const float deviation = info.rows == 1 ? kBiasDeviation : 1.0f / std::sqrt(static_cast<float>(info.cols));
    const std::size_t row_size = bytes.size() / static_cast<std::size_t>(rows.size());
    const std::uint64_t seed = seed_of(seed_, info.name);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      Counter counter(Counter(seed ^ static_cast<std::uint64_t>(row)).next());
      fill_row(info.type, counter, deviation,
               bytes.subspan(static_cast<std::size_t>(row - rows.begin) * row_size, row_size));
    }
  }

  std::string name_;
  std::uint64_t seed_;
  std::vector<WeightInfo> weights_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

void add_piece(Vocabulary& vocabulary, std::string piece, TokenType type) {
  vocabulary.scores.push_back(type == TokenType::kNormal ? -static_cast<float>(vocabulary.size()) : 0.0f);
  vocabulary.pieces.push_back(std::move(piece));
  vocabulary.types.push_back(type);
}

Vocabulary placeholder_vocabulary(int size) {
  constexpr int kSmallest = 512;  // room for the special tokens, 256 bytes and ASCII
  Vocabulary vocabulary;
  if (size < kSmallest) return vocabulary;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  add_piece(vocabulary, "<unk>", TokenType::kUnknown);
  add_piece(vocabulary, "<s>", TokenType::kControl);
  add_piece(vocabulary, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) add_piece(vocabulary, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  add_piece(vocabulary, "\u2581", TokenType::kNormal);
  for (char c = '!'; c <= '~'; ++c) add_piece(vocabulary, std::string(1, c), TokenType::kNormal);
  while (vocabulary.size() < size) {
    add_piece(vocabulary, fmt::format("\u2581word{}", vocabulary.size()), TokenType::kNormal);
  }
  vocabulary.unknown = TokenId{0};
  vocabulary.bos = TokenId{1};
  vocabulary.eos = TokenId{2};
  vocabulary.end_tokens = {TokenId{2}};
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

}  // namespace

Result<Checkpoint> random_checkpoint(const ModelConfig& config, const RandomWeights& options) {
  BF_TRY(validate(config));
  if (options.type == DType::kI32) {
    return make_error(ErrorCode::kUnsupported, "weights cannot have the type {}", to_string(options.type));
  }
  Checkpoint checkpoint;
  checkpoint.path = config.name;
  checkpoint.format = "random";
  checkpoint.config = config;
  checkpoint.config.weight_type = options.type;
  checkpoint.config.rope = with_explicit_factors(config.rope);
  checkpoint.vocabulary = placeholder_vocabulary(config.vocab);
  checkpoint.weights = std::make_shared<RandomSource>(checkpoint.config, options.seed);
  return checkpoint;
}

}  // namespace butterfly
