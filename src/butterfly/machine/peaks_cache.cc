#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>

#include "butterfly/machine/measurement_cache.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/usage/cpu_shortage.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::string_view kMagic = "butterfly-peaks 1";
constexpr std::string_view kCachesMagic = "butterfly-cache-rates 1";

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
  const CpuShortage shortage;
  BF_ASSIGN_OR_RETURN(const Peaks peaks, measure_peaks(options));
  cache->store(serialize(peaks), shortage.share());
  return peaks;
}

Result<Peaks> renewed_peaks(const PeakOptions& options, const std::string& cpu_name) {
  PeakOptions alone = options;
  alone.other_work = OtherWork::kDiscounted;
  const CpuShortage shortage;
  BF_ASSIGN_OR_RETURN(Peaks peaks, measure_peaks(alone));
  const double short_of = shortage.share();
  const auto cache = open_cache(options, cpu_name);
  if (!cache) return peaks;
  const auto lock = cache->lock();
  if (const auto cached = remembered(*cache, options)) {
    for (const Field& field : kFields) {
      peaks.one_thread.*field.value = std::max(peaks.one_thread.*field.value, cached->one_thread.*field.value);
      peaks.team.*field.value = std::max(peaks.team.*field.value, cached->team.*field.value);
    }
  }
  cache->store(serialize(peaks), short_of);
  return peaks;
}

std::string serialize(const std::vector<CacheRate>& rates) {
  std::string text = fmt::format("{}\n", kCachesMagic);
  for (const CacheRate& rate : rates) text += fmt::format("{} {} {:.6g}\n", rate.level, rate.bytes, rate.gb_per_s);
  return text;
}

std::optional<std::vector<CacheRate>> parse_cache_rates(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kCachesMagic) return std::nullopt;
  std::vector<CacheRate> rates;
  while (std::getline(lines, line)) {
    std::istringstream numbers(line);
    CacheRate rate;
    if (!(numbers >> rate.level >> rate.bytes >> rate.gb_per_s) || rate.level < 1 || !std::isfinite(rate.gb_per_s) ||
        rate.gb_per_s <= 0.0) {
      return std::nullopt;
    }
    rates.push_back(rate);
  }
  return rates;
}

Result<std::vector<CacheRate>> cached_cache_rates(Isa isa, int threads, const Topology& topology) {
  const auto cache =
      MeasurementCache::open("caches", fmt::format("{}\n{}\n{}", topology.cpu_name, to_string(isa), threads));
  if (!cache) return measure_cache_rates(isa, threads, topology.caches);
  if (auto known = parse_cache_rates(cache->load())) return *known;
  const auto lock = cache->lock();
  if (auto known = parse_cache_rates(cache->load())) return *known;  // another process was first
  const CpuShortage shortage;
  BF_ASSIGN_OR_RETURN(const std::vector<CacheRate> rates, measure_cache_rates(isa, threads, topology.caches));
  cache->store(serialize(rates), shortage.share());
  return rates;
}

void set_cache_facts(Isa isa, int threads, const Topology& topology) {
  if (!trace::recording()) return;
  trace::set_recording(false);  // the buffers that this reads are no part of the run
  const auto rates = cached_cache_rates(isa, threads, topology);
  trace::set_recording(true);
  if (!rates) return;
  for (const CacheRate& rate : *rates) {
    trace::set_fact(fmt::format("cache.l{}.gb_per_s", rate.level), rate.gb_per_s);
    trace::set_fact(fmt::format("cache.l{}.bytes", rate.level), static_cast<double>(rate.bytes));
  }
}

}  // namespace butterfly
