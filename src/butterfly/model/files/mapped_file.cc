#include "butterfly/model/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string_view>

#include "butterfly/base/descriptor.h"

namespace butterfly {
namespace {

/// What is mapped, for the signal handler, which can take no lock: `begin` is set last and cleared first.
struct Mapping {
  std::atomic<std::uintptr_t> begin{0};
  std::size_t size = 0;
  int file = -1;
  const char* path = nullptr;
  struct stat opened {};
};

constexpr std::size_t kMappingsMost = 1024;  // further ones are mapped and not watched
std::array<Mapping, kMappingsMost> mappings;
std::mutex mappings_mutex;  // held to change or read them, but not by the handler

std::uintptr_t address_of(ByteSpan bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data());
}

/// Takes the descriptor over where there is room.
void watch(const MappedFile& mapped, Descriptor& file, const struct stat& opened) {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping& mapping : mappings) {
    if (mapping.begin != 0) continue;
    mapping.size = mapped.bytes().size();
    mapping.file = file.release();
    mapping.path = mapped.path().c_str();
    mapping.opened = opened;
    mapping.begin = address_of(mapped.bytes());
    return;
  }
}

void forget(ByteSpan bytes) {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping& mapping : mappings) {
    if (mapping.begin != address_of(bytes)) continue;
    mapping.begin = 0;
    ::close(std::exchange(mapping.file, -1));
    return;
  }
}

bool same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/// Times of a write can be set back, those of the last change of any kind cannot; but links, names, owners and
/// permissions change those, too, and no byte.
bool was_written(const Mapping& mapping, const struct stat& now) {
  const struct stat& then = mapping.opened;
  if (then.st_size != now.st_size || !same(then.st_mtim, now.st_mtim)) return true;
  if (same(then.st_ctim, now.st_ctim)) return false;
  struct stat named {};
  const bool has_its_name =
      ::stat(mapping.path, &named) == 0 && named.st_ino == now.st_ino && named.st_dev == now.st_dev;
  return has_its_name && then.st_nlink == now.st_nlink && then.st_mode == now.st_mode && then.st_uid == now.st_uid &&
         then.st_gid == now.st_gid;
}

std::string describe(const timespec& time) {
  std::tm parts{};
  std::array<char, 32> text{};
  ::gmtime_r(&time.tv_sec, &parts);
  std::strftime(text.data(), text.size(), "%F %T", &parts);
  return fmt::format("{}.{:09}", text.data(), time.tv_nsec);
}

Status check(const Mapping& mapping) {
  struct stat now {};
  if (::fstat(mapping.file, &now) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", mapping.path, std::strerror(errno));
  }
  if (!was_written(mapping, now)) return {};
  return make_error(
      ErrorCode::kBadData,
      "{}: changed while it was in use: {} bytes, changed at {}, when it was opened, {} bytes, changed at "
      "{}, now",
      mapping.path, mapping.opened.st_size, describe(mapping.opened.st_ctim), now.st_size, describe(now.st_ctim));
}

bool lies_below(std::string_view path, std::string_view folder) {
  if (!path.starts_with(folder)) return false;
  return path.size() == folder.size() || folder.ends_with('/') || path[folder.size()] == '/';
}

std::atomic<int> lost_pages_exit_code{0};
std::atomic_flag lost_page_reported;

/// One write of all parts, by calls that a signal handler may make.
class Sentence {
 public:
  void add(std::string_view text) {
    const std::size_t count = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), count);
    size_ += count;
  }
  void add(std::uint64_t number) {
    std::array<char, 20> digits{};
    std::size_t at = digits.size();
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    add(std::string_view(digits.data() + at, digits.size() - at));
  }
  void write() const { [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text_.data(), size_); }

 private:
  std::array<char, 4096 + 256> text_{};
  std::size_t size_ = 0;
};

void on_lost_page(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const std::uintptr_t begin = mapping.begin;
    if (begin == 0 || address < begin || address - begin >= mapping.size) continue;
    // Several threads may meet lost pages at once: the first one says so and ends the process.
    while (lost_page_reported.test_and_set()) ::pause();
    struct stat now {};
    const bool known = ::fstat(mapping.file, &now) == 0;
    Sentence sentence;
    sentence.add("butterfly: ");
    sentence.add(mapping.path);
    sentence.add(": had ");
    sentence.add(static_cast<std::uint64_t>(mapping.size));
    if (known && static_cast<std::size_t>(now.st_size) < mapping.size) {
      sentence.add(" bytes when it was opened and has ");
      sentence.add(static_cast<std::uint64_t>(now.st_size));
      sentence.add(" now: it changed while it was in use\n");
    } else {
      sentence.add(" bytes when it was opened, and the system could not read the one at offset ");
      sentence.add(static_cast<std::uint64_t>(address - begin));
      sentence.add("\n");
    }
    sentence.write();
    ::_exit(lost_pages_exit_code);
  }
  // Not ours: the same access again, and the end that it has without a handler.
  ::signal(SIGBUS, SIG_DFL);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return make_error(code, "{}: cannot be opened: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return make_error(ErrorCode::kBadData, "{}: is no regular file", path);
  if (info.st_size == 0) return make_error(ErrorCode::kBadData, "{}: is empty", path);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    return make_error(ErrorCode::kIo, "{}: cannot be mapped: {}", path, std::strerror(errno));
  }
  const ByteSpan bytes(static_cast<const std::byte*>(address), size);
  auto mapped = std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
  watch(*mapped, file, info);
  return mapped;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  forget(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::drop(ByteSpan part) const {
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  if (begin < base || begin + part.size() > base + bytes_.size()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + part.size()) / page * page;
  // Advice only: a refusal costs memory, nothing else.
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void MappedFile::read_behind(ByteSpan part, std::size_t bytes) const {
  const auto base = address_of(bytes_), begin = address_of(part);
  if (begin < base || begin + part.size() > base + bytes_.size()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (begin + part.size()) / page * page;
  begin_to_read(first, std::min(first + bytes, base + bytes_.size()));
}

void MappedFile::read_ahead() const {
  begin_to_read(address_of(bytes_), address_of(bytes_) + bytes_.size());
}

void MappedFile::begin_to_read(std::uintptr_t first, std::uintptr_t last) const {
  // Of one call the system takes what one request to the disk may be.
  constexpr std::uintptr_t kPiece = 1 << 20;
  first = std::max(first, begun_to_read_.load(std::memory_order_relaxed));
  // Advice, as in drop().
  for (std::uintptr_t at = first; at < last; at += kPiece) {
    (void)::madvise(reinterpret_cast<void*>(at), std::min(kPiece, last - at), MADV_WILLNEED);
  }
  if (first < last) begun_to_read_.store(last, std::memory_order_relaxed);
}

Status MappedFile::unchanged() const {
  const std::lock_guard lock(mappings_mutex);
  for (const Mapping& mapping : mappings) {
    if (mapping.begin == address_of(bytes_)) return check(mapping);
  }
  return {};
}

Status files_unchanged(const std::string& path) {
  const std::lock_guard lock(mappings_mutex);
  for (const Mapping& mapping : mappings) {
    if (mapping.begin != 0 && lies_below(mapping.path, path)) BF_TRY(check(mapping));
  }
  return {};
}

void explain_lost_pages(int exit_code) {
  lost_pages_exit_code = exit_code;
  struct sigaction action {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace butterfly
