#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>

#include "butterfly/machine/measurement_cache.h"
#include "butterfly/machine/peaks.h"

namespace butterfly {
namespace {

constexpr std::string_view kMagic = "butterfly-peaks 1";

struct Field {
  std::string_view name;
  double Rates::*value;
};
constexpr std::array kFields{Field{"memory_read_gb_per_s", &Rates::memory_read_gb_per_s},
                             Field{"fp32_gflops", &Rates::fp32_gflops}, Field{"int8_gops", &Rates::int8_gops}};

std::optional<MeasurementCache> open_cache(const PeakOptions& options, const std::string& cpu_name) {
  return MeasurementCache::open("peaks", fmt::format("{}\n{}\n{}", cpu_name, to_string(options.isa), options.threads));
}

std::optional<Peaks> remembered(const MeasurementCache& cache, const PeakOptions& options) {
  const auto cached = parse_peaks(cache.load());
  return cached && cached->isa == options.isa && cached->threads == options.threads ? cached : std::nullopt;
}

}  // namespace

std::string serialize(const Peaks& peaks) {
  std::string text = fmt::format("{}\nisa {}\nthreads {}\n", kMagic, to_string(peaks.isa), peaks.threads);
  for (const Field& field : kFields) {
    text += fmt::format("{} {:.6g} {:.6g}\n", field.name, peaks.one_thread.*field.value, peaks.team.*field.value);
  }
  return text;
}

std::optional<Peaks> parse_peaks(const std::string& text) {
  std::istringstream lines(text);
  std::string line, key, isa_name;
  Peaks peaks;
  if (!std::getline(lines, line) || line != kMagic) return std::nullopt;
  if (!(lines >> key >> isa_name) || key != "isa") return std::nullopt;
  const Result<Isa> isa = parse_isa(isa_name);
  if (!isa) return std::nullopt;
  peaks.isa = *isa;
  if (!(lines >> key >> peaks.threads) || key != "threads" || peaks.threads < 1) return std::nullopt;
  for (const Field& field : kFields) {
    double& one = peaks.one_thread.*field.value;
    double& team = peaks.team.*field.value;
    if (!(lines >> key >> one >> team) || key != field.name) return std::nullopt;
    if (!std::isfinite(one) || !std::isfinite(team) || one < 0.0 || team < 0.0) return std::nullopt;
  }
  return peaks;
}

Result<Peaks> cached_peaks(const PeakOptions& options, const std::string& cpu_name) {
  const auto cache = open_cache(options, cpu_name);
  if (!cache) return measure_peaks(options);
  if (const auto cached = remembered(*cache, options)) return *cached;
  const auto lock = cache->lock();
  if (const auto cached = remembered(*cache, options)) return *cached;  // another process was first
  BF_ASSIGN_OR_RETURN(const Peaks peaks, measure_peaks(options));
  cache->store(serialize(peaks));
  return peaks;
}

Result<Peaks> renewed_peaks(const PeakOptions& options, const std::string& cpu_name) {
  BF_ASSIGN_OR_RETURN(Peaks peaks, measure_peaks(options));
  const auto cache = open_cache(options, cpu_name);
  if (!cache) return peaks;
  const auto lock = cache->lock();
  if (const auto cached = remembered(*cache, options)) {
    for (const Field& field : kFields) {
      peaks.one_thread.*field.value = std::max(peaks.one_thread.*field.value, cached->one_thread.*field.value);
      peaks.team.*field.value = std::max(peaks.team.*field.value, cached->team.*field.value);
    }
  }
  cache->store(serialize(peaks));
  return peaks;
}

}  // namespace butterfly
