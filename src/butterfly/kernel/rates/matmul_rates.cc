#include "butterfly/kernel/rates/matmul_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "butterfly/base/clock.h"
#include "butterfly/base/log.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/kernel/rates/matmul_choice.h"
#include "butterfly/kernel/rates/owned_activations.h"
#include "butterfly/machine/measurement_cache.h"
#include "butterfly/machine/usage/cpu_shortage.h"
#include "butterfly/tensor/aligned_buffer.h"

namespace butterfly {
namespace {

constexpr std::array kTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kInt8};
struct MeasuredCache {
  std::string_view name;
  CacheType type;
  std::uint64_t bytes;  // of a key or a value of kHeadDim elements
};
constexpr int kHeadDim = 64;  // of attention
constexpr std::array kCaches{
    MeasuredCache{kAttention, CacheType::kF16, kHeadDim * sizeof(std::uint16_t)},
    MeasuredCache{kAttentionF32, CacheType::kF32, kHeadDim * sizeof(float)},
    MeasuredCache{kAttentionQ8_0, CacheType::kQ8_0, kHeadDim + kHeadDim / kQuantBlock * sizeof(std::uint16_t)}};
constexpr std::string_view kMagic = "butterfly-matmuls 5";
constexpr int kRepeats = 5;               // at least; a rate is of all together: what a run will find, not the best
constexpr double kSecondsPerRate = 0.15;  // at least: others may have the processor for a moment
constexpr std::uint64_t kMemoryParts =
    4;  // of what a process may take: stored and packed weights, and room beside them
constexpr std::int64_t kSliceBytes = 1 << 20;  // of weights for one row, fewer for more: tells what all would take
constexpr int kSliceRepeats = 3;
constexpr double kPackShare = 0.25;   // weights are packed once and multiplied with several times
constexpr std::int64_t kCols = 2048;  // a model's dimension, as models go
constexpr int kPattern = 0x3c;        // every byte of the weights: an ordinary number in each type

template <typename Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return seconds_since(begin);
}

class Measurement {
 public:
  Measurement(const MatmulOptions& options)
      : kernels_(tuned_kernels(options.isa)),
        team_(options.threads),
        options_(options),
        one_(kernels_, 1, kCols),
        many_(kernels_, options.prefill_rows, kCols) {}

  Result<MatmulRate> measure(DType type) {
    MatmulRate rate{.type = std::string(to_string(type))};
    {
      BF_ASSIGN_OR_RETURN(const std::uint64_t bytes, affordable_bytes(type, options_.weight_bytes, one_));
      BF_ASSIGN_OR_RETURN(const PackedMatrix large, pack(type, bytes));
      rate.decode_gb_per_s = static_cast<double>(large.bytes()) / matmul_seconds(large, one_) * 1e-9;
    }
    {
      const auto cached = std::min(static_cast<std::uint64_t>(kCachedWeights), options_.weight_bytes);
      BF_ASSIGN_OR_RETURN(const std::uint64_t bytes, affordable_bytes(type, cached, one_));
      BF_ASSIGN_OR_RETURN(const PackedMatrix few, pack(type, bytes));
      rate.cached_gb_per_s = static_cast<double>(few.bytes()) / matmul_seconds(few, one_) * 1e-9;
    }
    BF_ASSIGN_OR_RETURN(const std::uint64_t bytes, affordable_bytes(type, options_.prefill_weight_bytes, many_));
    BF_ASSIGN_OR_RETURN(const PackedMatrix small, pack(type, bytes));
    const double flops = 2.0 * static_cast<double>(many_.view.rows) * static_cast<double>(small.rows() * kCols);
    rate.prefill_gflops = flops / matmul_seconds(small, many_) * 1e-9;
    return rate;
  }

  /// Keys and values of a segment, which a cache holds as a rule; each head is one thread's.
  Result<MatmulRate> measure_attention(const MeasuredCache& cache) {
    const double threads = team_.size();
    const double kv_bytes = 2.0 * kAttentionSegment * static_cast<double>(cache.bytes);
    const double row_flops = 4.0 * kAttentionSegment * kHeadDim;
    BF_ASSIGN_OR_RETURN(const double one_s, attention_seconds(cache, 1));
    BF_ASSIGN_OR_RETURN(const double many_s, attention_seconds(cache, kAttentionRows));
    return MatmulRate{.type = std::string(cache.name),
                      .decode_gb_per_s = threads * kv_bytes / one_s * 1e-9,
                      .prefill_gflops = threads * kAttentionRows * row_flops / many_s * 1e-9};
  }

 private:
  /// One head's `rows` over a segment of keys.
  Result<double> attention_seconds(const MeasuredCache& cache, int rows) {
    constexpr int kPages = kAttentionSegment / kKvPageTokens;
    const std::size_t page_bytes = kKvPageTokens * cache.bytes;
    const std::vector<unsigned char> pages(kPages * page_bytes, kPattern);
    const std::vector<float> q(static_cast<std::size_t>(rows) * kHeadDim, 0.5f);
    std::vector<float> out(q.size());
    constexpr std::uint64_t kScratch = kAttentionRows * (kAttentionSegment + 2 * kHeadDim) * sizeof(float);
    BF_ASSIGN_OR_RETURN(const AlignedBuffer scratch, AlignedBuffer::create(kScratch));
    std::array<const unsigned char*, kPages> page_of{};
    for (std::size_t i = 0; i < page_of.size(); ++i) page_of[i] = pages.data() + i * page_bytes;
    std::array<const float*, kAttentionRows> q_rows{};
    std::array<float*, kAttentionRows> out_rows{};
    std::array<int, kAttentionRows> visible{};
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      q_rows[row] = q.data() + row * kHeadDim;
      out_rows[row] = out.data() + row * kHeadDim;
      visible[row] = kAttentionSegment;
    }
    const AttentionArgs args{.k_pages = page_of.data(),
                             .v_pages = page_of.data(),
                             .type = cache.type,
                             .head_dim = kHeadDim,
                             .v_stride = kHeadDim,
                             .scale = 0.125f,
                             .rows = rows,
                             .q = q_rows.data(),
                             .out = out_rows.data(),
                             .visible = visible.data(),
                             .scratch = reinterpret_cast<float*>(scratch.data())};
    return usual_seconds([&] { kernels_.attention(args); });
  }

  /// All, or as much as one matmul takes seconds_max for. Where that is less than all, computing takes longer than
  /// reading from memory would, and a cache that holds it changes nothing.
  Result<std::uint64_t> affordable_bytes(DType type, std::uint64_t weight_bytes, const OwnedActivations& x) {
    const std::uint64_t panels = *row_bytes(type, kCols) * kPanel * static_cast<unsigned>(team_.size());
    const auto slice = std::max(panels, static_cast<std::uint64_t>(kSliceBytes / x.view.rows));
    const std::uint64_t slice_bytes = std::min(weight_bytes, slice);
    double slice_s = std::numeric_limits<double>::infinity();
    for (int repeat = 0; repeat < kSliceRepeats; ++repeat) {
      Result<PackedMatrix> packed;
      const double pack_s = seconds_of([&] { packed = pack(type, slice_bytes); });
      if (!packed) return tl::unexpected(packed.error());
      const double matmul_s = with_matmul(*packed, x, [](const auto& matmul) { return seconds_of(matmul); });
      slice_s = std::min(slice_s, std::max(kPackShare * pack_s, matmul_s));
    }
    const double affordable = static_cast<double>(slice_bytes) * options_.seconds_max / slice_s;
    if (affordable >= static_cast<double>(weight_bytes)) return weight_bytes;
    return std::max(slice_bytes, static_cast<std::uint64_t>(affordable));
  }

  Result<PackedMatrix> pack(DType type, std::uint64_t weight_bytes) {
    const std::uint64_t row = *row_bytes(type, kCols);
    const auto rows = std::max<std::int64_t>(kPanel, static_cast<std::int64_t>(weight_bytes / row));
    const std::size_t bytes = row * static_cast<std::size_t>(rows);
    if (source_.size() < bytes) source_.resize(bytes, static_cast<std::byte>(kPattern));
    return PackedMatrix::pack({.type = type, .rows = rows, .cols = kCols, .bytes = ByteSpan(source_).first(bytes)},
                              team_);
  }

  template <typename Timing>
  double with_matmul(const PackedMatrix& weights, const OwnedActivations& x, const Timing& timing) {
    std::vector<float> y(static_cast<std::size_t>(x.view.rows * weights.rows()));
    const LinearJob job{.weights = &weights, .x = &x.view, .slices = SliceBorders::single(kCols), .y = y.data()};
    return timing([&] { run_linear(kernels_, team_, std::span(&job, 1)); });
  }

  double matmul_seconds(const PackedMatrix& weights, const OwnedActivations& x) {
    return with_matmul(weights, x, [this](const auto& matmul) { return usual_seconds(matmul); });
  }

  template <typename Run>
  double usual_seconds(const Run& run) const {
    double spent = 0;
    int repeats = 0;
    run();  // touches everything once
    while ((repeats < kRepeats || spent < kSecondsPerRate) && spent < options_.seconds_max) {
      spent += seconds_of(run);
      ++repeats;
    }
    return std::max(spent / std::max(repeats, 1), 1e-9);
  }

  const Kernels& kernels_;
  ThreadTeam team_;
  const MatmulOptions options_;
  const OwnedActivations one_, many_;
  std::vector<std::byte> source_;
};

}  // namespace

Result<std::vector<MatmulRate>> measure_matmuls(const MatmulOptions& options) {
  if (options.threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "matmuls need at least 1 thread, not {}", options.threads);
  }
  const std::vector<Isa>& supported = supported_isas();
  if (std::ranges::find(supported, options.isa) == supported.end()) {
    return make_error(ErrorCode::kInvalidArgument, "this machine does not support {}", to_string(options.isa));
  }
  Measurement measurement(options);
  std::vector<MatmulRate> rates;
  for (const DType type : kTypes) {
    BF_ASSIGN_OR_RETURN(MatmulRate rate, measurement.measure(type));
    rates.push_back(std::move(rate));
  }
  for (const MeasuredCache& cache : kCaches) {
    BF_ASSIGN_OR_RETURN(MatmulRate attention, measurement.measure_attention(cache));
    rates.push_back(std::move(attention));
  }
  return rates;
}

std::vector<MatmulRate> remembered_matmuls(Isa isa, int threads, const std::string& cpu_name,
                                           std::uint64_t memory_bytes) {
  // Raised with kernels or layouts whose rates are others: what an older program measured is not theirs.
  constexpr int kKernelsMeasured = 2;
  const auto cache = MeasurementCache::open(
      "matmuls", fmt::format("{}\n{}\n{}\n{}", cpu_name, to_string(isa), threads, kKernelsMeasured));
  if (!cache) return {};
  if (auto rates = parse_matmuls(cache->load())) return std::move(*rates);
  const auto lock = cache->lock();
  if (auto rates = parse_matmuls(cache->load())) return std::move(*rates);  // another process was first
  MatmulOptions options{.isa = isa, .threads = threads};
  const bool cramped = memory_bytes / kMemoryParts < options.weight_bytes;
  options.weight_bytes = std::min(options.weight_bytes, memory_bytes / kMemoryParts);
  options.prefill_weight_bytes = std::min(options.prefill_weight_bytes, memory_bytes / kMemoryParts);
  const CpuShortage shortage;
  auto rates = measure_matmuls(options);
  if (!rates) {
    log().warn("matmuls are not measured: {}", rates.error().message);
    return {};
  }
  if (!cramped) cache->store(serialize(*rates), shortage.share());
  return std::move(*rates);
}

std::string serialize(const std::vector<MatmulRate>& rates) {
  std::string text = fmt::format("{}\n", kMagic);
  for (const MatmulRate& rate : rates) {
    text += fmt::format("{} {:.6g} {:.6g} {:.6g}\n", rate.type, rate.decode_gb_per_s, rate.prefill_gflops,
                        rate.cached_gb_per_s);
  }
  return text;
}

std::optional<std::vector<MatmulRate>> parse_matmuls(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kMagic) return std::nullopt;
  std::vector<MatmulRate> rates;
  for (std::size_t i = 0; i < kTypes.size() + kCaches.size(); ++i) {
    const std::string_view type = i < kTypes.size() ? to_string(kTypes[i]) : kCaches[i - kTypes.size()].name;
    MatmulRate rate;
    if (!(lines >> rate.type >> rate.decode_gb_per_s >> rate.prefill_gflops >> rate.cached_gb_per_s)) {
      return std::nullopt;
    }
    if (rate.type != type) return std::nullopt;
    for (const double number : {rate.decode_gb_per_s, rate.prefill_gflops, rate.cached_gb_per_s}) {
      if (!std::isfinite(number) || number < 0.0) return std::nullopt;
    }
    rates.push_back(std::move(rate));
  }
  return rates;
}

}  // namespace butterfly
