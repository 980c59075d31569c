#include "butterfly/model/format/weight_error.h"

#include <cmath>

#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

class Rows {
 public:
  explicit Rows(const WeightView& view)
      : view_(view), bytes_(*row_bytes(view.type, static_cast<std::uint64_t>(view.cols))) {
    values_.resize(static_cast<std::size_t>(view.cols));
  }
  std::span<const float> row(std::int64_t row) {
    const std::uint64_t step = view_.stride == 0 ? bytes_ : view_.stride;
    decode_row(view_.type, view_.bytes.subspan(static_cast<std::uint64_t>(row) * step, bytes_), values_);
    return values_;
  }

 private:
  const WeightView& view_;
  std::uint64_t bytes_ = 0;
  std::vector<float> values_;
};

double relative_error(const WeightView& judged, const WeightView& against) {
  Rows judged_rows(judged);
  Rows against_rows(against);
  double differences = 0;
  double all = 0;
  for (std::int64_t row = 0; row < against.rows; ++row) {
    const auto a = judged_rows.row(row);
    const auto b = against_rows.row(row);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const double value = static_cast<double>(b[i]);
      const double difference = static_cast<double>(a[i]) - value;
      differences += difference * difference;
      all += value * value;
    }
  }
  return all > 0 ? std::sqrt(differences / all) : std::sqrt(differences);
}

}  // namespace

Result<std::vector<WeightError>> weight_errors(const Checkpoint& judged, const Checkpoint& against,
                                               const std::stop_token& stop) {
  std::vector<WeightError> errors;
  const ModelConfig& config = against.config;
  const WeightRange all{.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = true};
  for (const WeightInfo& weight : expected_weights(config, all)) {
    if (weight.rows == 1) continue;
    if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled before {}", weight.name);
    BF_ASSIGN_OR_RETURN(const WeightView exact, find_checked(*against.weights, weight));
    BF_ASSIGN_OR_RETURN(const WeightView other, find_checked(*judged.weights, weight));
    errors.push_back({.name = weight.name, .type = other.type, .relative = relative_error(other, exact)});
    against.weights->release(exact);
    judged.weights->release(other);
  }
  return errors;
}

}  // namespace butterfly
