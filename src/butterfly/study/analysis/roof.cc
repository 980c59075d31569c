#include "butterfly/study/analysis/roof.h"

#include <algorithm>

#include "butterfly/tensor/dtype.h"

namespace butterfly::study {
namespace {

bool is_float(std::string_view type) {
  return type.empty() || type == "f32" || type == "f16" || type == "bf16";
}

}  // namespace

std::string type_name(std::uint8_t type) {
  return type < kDTypes ? std::string(kDTypeInfos[type].name) : std::string();
}

double peak_flops(const Process& process, std::string_view type) {
  // Training has kernels of its own, and peaks of its own where it was trained.
  const std::string_view operands = type.empty() || type == "f32" ? "fp32" : type;
  const double own = std::max(process.number(fmt::format("peak.{}_gflops", operands)),
                              process.number(fmt::format("peak.train_{}_gflops", operands)));
  const double fp32 = process.number("peak.fp32_gflops");
  const double bytes = is_float(type) ? 0.0 : process.number("peak.int8_gops");
  // No matmul is faster than the machine: where one is, the peak was disturbed when it was measured.
  const double matmul = process.number(fmt::format("matmul.{}.prefill_gflops", type.empty() ? "f32" : type));
  return 1e9 * std::max({own > 0.0 ? own : bytes > 0.0 ? bytes : fp32, matmul, 0.0});
}

double peak_bandwidth(const Process& process) {
  return 1e9 * std::max(process.number("peak.memory_gb_per_s"), 0.0);
}

double Roof::least_s(double flops, double bytes) const {
  if ((flops > 0.0 && flops_per_s <= 0.0) || (bytes > 0.0 && bytes_per_s <= 0.0)) return 0.0;
  return std::max(flops > 0.0 ? flops / flops_per_s : 0.0, bytes > 0.0 ? bytes / bytes_per_s : 0.0);
}

Roof roof_of(const Process& process, std::string_view type) {
  Roof roof{.flops_per_s = peak_flops(process, type), .bytes_per_s = peak_bandwidth(process)};
  for (int level = 0; level < kCacheLevels; ++level) {
    roof.cache_bytes_per_s[static_cast<std::size_t>(level)] =
        1e9 * std::max(process.number(fmt::format("cache.l{}.gb_per_s", level + 1).c_str()), 0.0);
  }
  return roof;
}

}  // namespace butterfly::study
