#include "butterfly/machine/measurement_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/base/read_file.h"
#include "butterfly/machine/usage/cpu_shortage.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

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

/// Other code has another speed: size and time of change tell builds apart without reading them.
std::string program_identity() {
  struct stat program {};
  if (::stat("/proc/self/exe", &program) != 0) return "";
  return fmt::format("{} bytes, {}.{:09}", program.st_size, program.st_mtim.tv_sec, program.st_mtim.tv_nsec);
}

constexpr std::string_view kDisturbed = "disturbed\n";
constexpr double kShort = 0.05;

thread_local int locks_of_thread = 0;

}  // namespace

std::optional<fs::path> cache_directory() {
  const char* setting = std::getenv("BUTTERFLY_CACHE");
  if (setting != nullptr && std::string_view(setting) == "off") return std::nullopt;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg == '/') return fs::path(xdg) / "butterfly";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache" / "butterfly";
  return std::nullopt;
}

std::optional<MeasurementCache> MeasurementCache::open(std::string_view kind, std::string_view key) {
  const auto directory = cache_directory();
  if (!directory) return std::nullopt;
  std::error_code error;  // shows when something is stored
  fs::create_directories(*directory, error);
  const std::string all = fmt::format("{}\n{}\n{}", host_name(), program_identity(), key);
  return MeasurementCache(*directory / fmt::format("{}-{:016x}.txt", kind, fnv1a(all)));
}

std::string MeasurementCache::load() const {
  constexpr std::size_t kBytesMax = 1 << 20;
  std::string text = read_file(path_.string(), kBytesMax).value_or("");
  if (!text.starts_with(kDisturbed)) return text;
  return machine_is_quiet() ? std::string() : text.substr(kDisturbed.size());
}

void MeasurementCache::store(const std::string& text, double shortage) const {
  std::error_code error;
  // Renamed into place: a reader sees the old text or the new, never half of it.
  const fs::path draft = fmt::format("{}.{}", path_.string(), getpid());
  {
    std::ofstream file(draft);
    file << (shortage > kShort ? kDisturbed : "") << text;
    file.flush();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(draft, path_, error);
  if (error) {
    log().info("measurements are not cached in {}: {}", path_.string(), error.message());
    std::error_code ignored;
    fs::remove(draft, ignored);
  }
}

std::optional<MeasurementCache::Lock> MeasurementCache::lock_host() {
  const auto directory = cache_directory();
  if (!directory) return std::nullopt;
  return std::optional<Lock>(std::in_place, *directory);
}

MeasurementCache::Lock::Lock(const fs::path& path) {
  constexpr auto kPatience = std::chrono::seconds(15);  // a process that holds it longer is stopped
  constexpr auto kPause = std::chrono::milliseconds(5);
  if (locks_of_thread++ > 0) return;
  directory_ = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (directory_.valid() && ::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
  }
}

MeasurementCache::Lock::~Lock() {
  --locks_of_thread;
}

}  // namespace butterfly
