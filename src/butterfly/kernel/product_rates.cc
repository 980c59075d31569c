#include "butterfly/kernel/product_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>

#include "butterfly/base/log.h"
#include "butterfly/kernel/dispatch.h"
#include "butterfly/kernel/linear.h"
#include "butterfly/machine/measurement_cache.h"

namespace butterfly {
namespace {

constexpr std::array kTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0};
constexpr std::string_view kMagic = "butterfly-products 1";
constexpr int kRepeats = 3;                   // at least; a rate is the best of them
constexpr double kSecondsPerRate = 0.02;      // at least: others may have the processor for a moment
constexpr std::int64_t kCols = 1024;          // a model's dimension, as models go
constexpr int kPattern = 0x3c;                // every byte of the weights: an ordinary number in each type
constexpr std::int64_t kPanelsPerThread = 2;  // of the product with many rows, whose weights stay in a cache

/// Rows of activations with memory of their own.
struct Activations {
  Activations(const Kernels& kernels, std::int64_t rows)
      : values(static_cast<std::size_t>(rows * kCols), 0.5f),
        quants(values.size()),
        scales(values.size() / kQuantBlock),
        sums(scales.size()),
        view{.rows = rows,
             .cols = kCols,
             .values = values.data(),
             .quants = quants.data(),
             .scales = scales.data(),
             .sums = sums.data()} {
    for (std::int64_t row = 0; row < rows; ++row) quantize_activation_row(kernels, view, row);
  }
  std::vector<float> values;
  std::vector<std::int8_t> quants;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  ActivationRows view;
};

class Measurement {
 public:
  Measurement(const ProductOptions& options)
      : kernels_(kernels_for(options.isa)),
        team_(options.threads),
        weight_bytes_(options.weight_bytes),
        one_(kernels_, 1),
        many_(kernels_, options.prefill_rows) {}

  Result<ProductRate> measure(DType type) {
    const std::uint64_t row = *row_bytes(type, kCols);
    const auto rows = std::max<std::int64_t>(kPanel, static_cast<std::int64_t>(weight_bytes_ / row));
    BF_ASSIGN_OR_RETURN(const PackedMatrix large, pack(type, rows));
    BF_ASSIGN_OR_RETURN(const PackedMatrix small, pack(type, kPanel * kPanelsPerThread * team_.size()));
    const double flops = 2.0 * static_cast<double>(many_.view.rows) * static_cast<double>(small.rows() * kCols);
    return ProductRate{.type = std::string(to_string(type)),
                       .decode_gb_per_s = static_cast<double>(large.bytes()) / best_seconds(large, one_) * 1e-9,
                       .prefill_gflops = flops / best_seconds(small, many_) * 1e-9};
  }

 private:
  Result<PackedMatrix> pack(DType type, std::int64_t rows) {
    const std::size_t bytes = *row_bytes(type, kCols) * static_cast<std::size_t>(rows);
    if (source_.size() < bytes) source_.resize(bytes, static_cast<std::byte>(kPattern));
    return PackedMatrix::pack({.type = type, .rows = rows, .cols = kCols, .bytes = ByteSpan(source_).first(bytes)},
                              team_);
  }

  double best_seconds(const PackedMatrix& weights, const Activations& x) {
    std::vector<float> y(static_cast<std::size_t>(x.view.rows * weights.rows()));
    const LinearJob job{.weights = &weights, .x = &x.view, .lanes = LaneBorders::single(kCols), .y = y.data()};
    double best = 1e30, spent = 0;
    for (int repeat = 0; repeat < kRepeats || spent < kSecondsPerRate; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      run_linear(kernels_, team_, std::span(&job, 1));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best = std::min(best, seconds);
      spent += seconds;
    }
    return std::max(best, 1e-9);
  }

  const Kernels& kernels_;
  ThreadTeam team_;
  const std::uint64_t weight_bytes_;
  const Activations one_, many_;
  std::vector<std::byte> source_;
};

}  // namespace

Result<std::vector<ProductRate>> measure_products(const ProductOptions& options) {
  if (options.threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "products need at least 1 thread, not {}", options.threads);
  }
  const std::vector<Isa>& supported = supported_isas();
  if (std::ranges::find(supported, options.isa) == supported.end()) {
    return make_error(ErrorCode::kInvalidArgument, "this machine does not support {}", to_string(options.isa));
  }
  Measurement measurement(options);
  std::vector<ProductRate> rates;
  for (const DType type : kTypes) {
    BF_ASSIGN_OR_RETURN(ProductRate rate, measurement.measure(type));
    rates.push_back(std::move(rate));
  }
  return rates;
}

std::vector<ProductRate> remembered_products(Isa isa, int threads, const std::string& cpu_name) {
  const auto cache = MeasurementCache::open("products", fmt::format("{}\n{}\n{}", cpu_name, to_string(isa), threads));
  if (!cache) return {};
  if (auto rates = parse_products(cache->load())) return std::move(*rates);
  const auto lock = cache->lock();
  if (auto rates = parse_products(cache->load())) return std::move(*rates);  // another process was first
  auto rates = measure_products({.isa = isa, .threads = threads});
  if (!rates) {
    log().warn("products are not measured: {}", rates.error().message);
    return {};
  }
  cache->store(serialize(*rates));
  return std::move(*rates);
}

std::string serialize(const std::vector<ProductRate>& rates) {
  std::string text = fmt::format("{}\n", kMagic);
  for (const ProductRate& rate : rates) {
    text += fmt::format("{} {:.6g} {:.6g}\n", rate.type, rate.decode_gb_per_s, rate.prefill_gflops);
  }
  return text;
}

std::optional<std::vector<ProductRate>> parse_products(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kMagic) return std::nullopt;
  std::vector<ProductRate> rates;
  for (const DType type : kTypes) {
    ProductRate rate;
    if (!(lines >> rate.type >> rate.decode_gb_per_s >> rate.prefill_gflops)) return std::nullopt;
    if (rate.type != to_string(type)) return std::nullopt;
    for (const double number : {rate.decode_gb_per_s, rate.prefill_gflops}) {
      if (!std::isfinite(number) || number < 0.0) return std::nullopt;
    }
    rates.push_back(std::move(rate));
  }
  return rates;
}

}  // namespace butterfly
