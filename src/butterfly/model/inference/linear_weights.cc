#include "butterfly/model/inference/linear_weights.h"

#include <cstring>

#include "butterfly/model/core/finite_weights.h"
#include "butterfly/model/inference/compute.h"
#include "butterfly/tensor/half.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

Result<std::vector<float>> load_vector(const WeightSource& source, const std::string& name, std::int64_t size,
                                       const IndexRange& held) {
  BF_ASSIGN_OR_RETURN(const WeightView view,
                      source.find_part(name, {.rows = 1, .cols = size, .of_rows = {0, 1}, .of_cols = held}));
  std::vector<float> values(static_cast<std::size_t>(held.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    switch (view.type) {
      case DType::kF32:
        std::memcpy(&values[i], view.bytes.data() + 4 * i, 4);
        break;
      case DType::kF16:
      case DType::kBF16:
        std::memcpy(&half, view.bytes.data() + 2 * i, 2);
        values[i] = view.type == DType::kF16 ? half_to_float(half) : bfloat16_to_float(half);
        break;
      default:
        return make_error(ErrorCode::kUnsupported, "{} is stored as {}, a vector must be f32, f16 or bf16", name,
                          to_string(view.type));
    }
  }
  BF_TRY(check_finite(source, name, values));
  return values;
}

namespace {

Result<PackedMatrix> load_matrix(const WeightSource& source, const std::string& name, const WeightPart& part,
                                 ThreadTeam& team) {
  if (std::optional<PackedMatrix> packed = source.find_packed(name, part)) return std::move(*packed);
  BF_ASSIGN_OR_RETURN(const WeightView view, source.find_part(name, part));
  source.read_behind(view);
  PackedMatrix matrix;
  {
    const trace::Scope scope(trace::Zone::kPackWeights);
    BF_TRY(check_finite(source, name, view.matrix(), team));
    auto packed = PackedMatrix::pack(view.matrix(), team);
    if (!packed && packed.error().code == ErrorCode::kBadData) {
      return make_error(ErrorCode::kBadData, "{}: {}: {}", source.description(), name, packed.error().message);
    }
    BF_ASSIGN_OR_RETURN(matrix, std::move(packed));
  }
  source.release(view);
  source.was_packed(name, part, matrix);
  return matrix;
}

}  // namespace

Result<LinearWeights> load_linear(const WeightSource& source, const std::string& name, const LinearPart& part,
                                  ThreadTeam& team) {
  LinearWeights linear;
  if (!part.matrix.empty()) {
    BF_ASSIGN_OR_RETURN(linear.matrix, load_matrix(source, name + ".weight", part.matrix, team));
  }
  if (part.with_bias && part.matrix.of_rows.size() > 0) {
    BF_ASSIGN_OR_RETURN(linear.bias, load_vector(source, name + ".bias", part.matrix.rows, part.matrix.of_rows));
  }
  return linear;
}

Result<ActivationRows> allocate_activations(Arena& arena, std::int64_t rows, std::int64_t cols, float* values) {
  ActivationRows x;
  x.rows = rows;
  x.cols = cols;
  x.values = values;
  if (cols % kQuantBlock != 0) return x;
  const auto count = static_cast<std::uint64_t>(rows * cols);
  BF_ASSIGN_OR_RETURN(const auto quants, arena.allocate_array<std::int8_t>(count));
  BF_ASSIGN_OR_RETURN(const auto scales, arena.allocate_array<float>(count / kQuantBlock));
  BF_ASSIGN_OR_RETURN(const auto sums, arena.allocate_array<BlockSums>(count / kQuantBlock));
  x.quants = quants.data();
  x.scales = scales.data();
  x.sums = sums.data();
  return x;
}

namespace {

trace::Work work_of_quantising(std::int64_t rows, std::int64_t cols) {
  trace::Work work = work_on_rows(rows, cols, cols);
  work.bytes += quantised_bytes(rows, cols);
  return work;
}

void quantise(const Compute& compute, const ActivationRows& x, const RowForm& form) {
  for_each_row(compute, x.rows, x.cols,
               [&](std::int64_t row) { quantize_activation_row(*compute.kernels, x, row, form); });
}

}  // namespace

void prepare_rows(const Compute& compute, const ActivationRows& x, const RowForm& form) {
  if (!form.quantised) return;
  const trace::Scope scope(trace::Zone::kQuantize, work_of_quantising(x.rows, x.cols));
  quantise(compute, x, form);
}

Result<ActivationRows> prepared_rows(const Compute& compute, std::int64_t rows, std::int64_t cols, float* values,
                                     const RowForm& form) {
  if (!form.quantised) return ActivationRows{.rows = rows, .cols = cols, .values = values};
  const trace::Scope scope(trace::Zone::kQuantize, work_of_quantising(rows, cols));
  BF_ASSIGN_OR_RETURN(const ActivationRows x, allocate_activations(*compute.arena, rows, cols, values));
  quantise(compute, x, form);
  return x;
}

namespace {

/// The gated ReLU is no choice of a configuration.
auto gated_activation(const Kernels& kernels, Activation activation) {
  if (activation == Activation::kGeluErf) return kernels.gelu_erf_mul;
  return activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;
}

}  // namespace

PlainActivation plain_activation(const Kernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return kernels.silu;
    case Activation::kGeluTanh:
      return kernels.gelu;
    case Activation::kGeluErf:
      return kernels.gelu_erf;
    case Activation::kRelu:
      return kernels.relu;
  }
  return nullptr;
}

void activate_rows(const Compute& compute, const MlpActivation& kind, const ActivationRows& h, const float* gate,
                   float* up) {
  const Kernels& kernels = *compute.kernels;
  const std::int64_t ff_dim = h.cols;
  const auto gated = gated_activation(kernels, kind.activation);
  trace::Work work = work_on_rows(h.rows, ff_dim, (kind.mlp == MlpKind::kGated ? 3 : 2) * ff_dim);
  if (kind.form.quantised) work.bytes += quantised_bytes(h.rows, ff_dim);
  const trace::Scope scope(trace::Zone::kActivation, work);
  for_each_row(compute, h.rows, 4 * ff_dim, [&](std::int64_t row) {
    float* y = up + row * ff_dim;
    const float* g = kind.mlp == MlpKind::kGated ? gate + row * ff_dim : nullptr;
    if (kind.limit > 0.0f) {
      kernels.clamped_swiglu(g, y, kind.limit, ff_dim, y);
    } else if (kind.mlp == MlpKind::kGated) {
      gated(g, y, ff_dim, y);
    } else {
      plain_activation(kernels, kind.activation)(y, ff_dim, y);
    }
    if (kind.form.quantised) quantize_activation_row(kernels, h, row, kind.form);
  });
}

}  // namespace butterfly
