#include "butterfly/model/inference/relative_bias.h"

#include <algorithm>
#include <cstdlib>

#include "butterfly/model/core/finite_weights.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {

int relative_bucket(const RelativeConfig& relative, Directions directions, std::int64_t distance) {
  const bool both = directions == Directions::kBoth;
  const int buckets = both ? relative.buckets / 2 : relative.buckets;
  const int offset = both && distance > 0 ? buckets : 0;
  const std::int64_t apart = both ? std::abs(distance) : std::max<std::int64_t>(-distance, 0);
  const int exact_buckets = buckets / 2;
  if (apart < exact_buckets) return offset + static_cast<int>(apart);
  // Rounded to floats where PyTorch's are: the borders of buckets depend on it.
  const auto log_of = [](double ratio) { return static_cast<float>(exact::log(ratio)); };
  const float ratio = static_cast<float>(apart) / static_cast<float>(exact_buckets);
  const float widest = log_of(static_cast<double>(relative.distance) / exact_buckets);
  const float place = log_of(static_cast<double>(ratio)) / widest * static_cast<float>(buckets - exact_buckets);
  const int beyond = static_cast<int>(std::min(place, static_cast<float>(buckets)));
  return offset + std::min(exact_buckets + beyond, buckets - 1);
}

Result<RelativeBias> RelativeBias::load(const ModelConfig& config, int layer, const WeightSource& source,
                                        const std::string& name, const Shard& shard) {
  const RelativeConfig& relative = config.relative;
  BF_ASSIGN_OR_RETURN(const WeightView view, source.find_part(name, WeightPart::all(relative.buckets, config.heads)));
  if (block_elements(view.type) != 1) {
    return make_error(ErrorCode::kUnsupported, "{} is stored as {}, a table of distances must be f32, f16 or bf16",
                      name, to_string(view.type));
  }
  const auto heads = static_cast<std::size_t>(config.heads);
  std::vector<float> table(static_cast<std::size_t>(relative.buckets) * heads);
  const std::size_t row_size = view.bytes.size() / static_cast<std::size_t>(relative.buckets);
  for (std::size_t bucket = 0; bucket < static_cast<std::size_t>(relative.buckets); ++bucket) {
    decode_row(view.type, view.bytes.subspan(bucket * row_size, row_size),
               std::span(table).subspan(bucket * heads, heads));
  }
  BF_TRY(check_finite(source, name, table));
  RelativeBias bias;
  bias.reach_ = relative.distance;
  const Directions directions = config.is_encoder(layer) ? Directions::kBoth : Directions::kBackwards;
  for (std::int64_t head = shard.heads.begin; head < shard.heads.end; ++head) {
    for (std::int64_t distance = -bias.reach_; distance <= bias.reach_; ++distance) {
      const auto bucket = static_cast<std::size_t>(relative_bucket(relative, directions, distance));
      bias.by_distance_.push_back(table[bucket * heads + static_cast<std::size_t>(head)]);
    }
  }
  source.release(view);
  return bias;
}

void RelativeBias::fill(std::int64_t head, std::int64_t first, std::span<float> biases) const {
  const float* of_head = by_distance_.data() + head * (2 * reach_ + 1) + reach_;
  for (std::size_t i = 0; i < biases.size(); ++i) {
    biases[i] = of_head[std::clamp(first + static_cast<std::int64_t>(i), -reach_, reach_)];
  }
}

}  // namespace butterfly
