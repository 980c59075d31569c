#include "butterfly/model/core/parameter_weights.h"

#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

class ParameterSource final : public WeightSource {
 public:
  ParameterSource(const ParameterSet& parameters, std::string description)
      : parameters_(parameters), description_(std::move(description)) {}

  std::vector<WeightInfo> list() const override {
    std::vector<WeightInfo> list;
    for (const Parameter& parameter : parameters_.list()) {
      list.push_back({.name = parameter.name,
                      .type = DType::kF32,
                      .rows = parameter.rows,
                      .cols = parameter.cols,
                      .bytes = static_cast<std::uint64_t>(parameter.size()) * sizeof(float)});
    }
    return list;
  }

  bool contains(const std::string& name) const override { return parameters_.find(name).has_value(); }
  std::string description() const override { return description_; }

  Result<WeightView> find(const std::string& name) const override {
    const auto found = parameters_.find(name);
    if (!found) return make_error(ErrorCode::kNotFound, "{}: has no weight {}", description_, name);
    const Parameter& parameter = **found;
    const auto values = parameters_.weights().subspan(static_cast<std::size_t>(parameter.offset),
                                                      static_cast<std::size_t>(parameter.size()));
    return WeightView{
        .type = DType::kF32, .rows = parameter.rows, .cols = parameter.cols, .bytes = std::as_bytes(values)};
  }

 private:
  const ParameterSet& parameters_;
  std::string description_;
};

}  // namespace

Status load_weights(const WeightSource& source, ParameterSet& parameters,
                    const std::function<void(const Parameter&)>& made) {
  for (const Parameter& parameter : parameters.list()) {
    BF_ASSIGN_OR_RETURN(const WeightView view,
                        find_checked(source, {.name = parameter.name, .rows = parameter.rows, .cols = parameter.cols}));
    const auto cols = static_cast<std::size_t>(view.cols);
    const std::size_t row_size = view.bytes.size() / static_cast<std::size_t>(view.rows);
    const std::span<float> values = parameters.weight(parameter);
    for (std::size_t row = 0; row < static_cast<std::size_t>(view.rows); ++row) {
      decode_row(view.type, view.bytes.subspan(row * row_size, row_size), values.subspan(row * cols, cols));
    }
    source.release(view);
    if (made) made(parameter);
  }
  return {};
}

std::unique_ptr<WeightSource> export_weights(const ParameterSet& parameters, std::string description) {
  return std::make_unique<ParameterSource>(parameters, std::move(description));
}

Checkpoint trained_checkpoint(const ParameterSet& parameters, const ModelConfig& config, Vocabulary vocabulary) {
  Checkpoint checkpoint;
  checkpoint.path = config.name;
  checkpoint.format = "trained";
  checkpoint.config = config;
  checkpoint.config.weight_type = DType::kF32;
  checkpoint.vocabulary = std::move(vocabulary);
  checkpoint.weights = export_weights(parameters, config.name);
  return checkpoint;
}

}  // namespace butterfly
