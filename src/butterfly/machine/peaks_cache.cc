#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "butterfly/base/log.h"
#include "butterfly/machine/peaks.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "butterfly-peaks 1";

struct Field {
  std::string_view name;
  double Rates::*value;
};
constexpr std::array kFields{Field{"memory_read_gb_per_s", &Rates::memory_read_gb_per_s},
                             Field{"fp32_gflops", &Rates::fp32_gflops}, Field{"int8_gops", &Rates::int8_gops}};

/// FNV-1a, 64 bits: names files, protects nothing. http://www.isthe.com/chongo/tech/comp/fnv/
std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// Hosts that share a home directory may have the same CPU and other memory.
std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

void write_whole(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  // Renamed into place: a reader sees the old text or the new, never half of it.
  const fs::path draft = fmt::format("{}.{}", path.string(), getpid());
  {
    std::ofstream file(draft);
    file << text;
    file.flush();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(draft, path, error);
  if (error) {
    log().info("peaks are not cached in {}: {}", path.string(), error.message());
    std::error_code ignored;
    fs::remove(draft, ignored);
  }
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

std::optional<std::filesystem::path> cache_directory() {
  const char* setting = std::getenv("BUTTERFLY_CACHE");
  if (setting != nullptr && std::string_view(setting) == "off") return std::nullopt;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg == '/') return fs::path(xdg) / "butterfly";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache" / "butterfly";
  return std::nullopt;
}

Result<Peaks> cached_peaks(const PeakOptions& options, const std::string& cpu_name) {
  const auto directory = cache_directory();
  if (!directory) return measure_peaks(options);
  const std::string key = fmt::format("{}\n{}\n{}\n{}", host_name(), cpu_name, to_string(options.isa), options.threads);
  const fs::path path = *directory / fmt::format("peaks-{:016x}.txt", fnv1a(key));
  {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    const auto cached = parse_peaks(text.str());
    if (cached && cached->isa == options.isa && cached->threads == options.threads) return *cached;
  }
  BF_ASSIGN_OR_RETURN(const Peaks peaks, measure_peaks(options));
  write_whole(path, serialize(peaks));
  return peaks;
}

}  // namespace butterfly
