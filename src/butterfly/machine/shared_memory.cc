#include "butterfly/machine/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "butterfly/base/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace butterfly {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

std::string message_of(int error) {
  return std::generic_category().message(error);
}

tl::unexpected<Error> failed(const char* what) {
  return make_error(ErrorCode::kIo, "{}: {}", what, message_of(errno));
}

/// Where this number of bytes can be mapped on huge pages: what the system chooses by itself is seldom aligned to them.
/// Null where nothing has to be.
void* reserve_aligned(std::uint64_t bytes) {
  if (bytes < kHugePage) return nullptr;
  const std::uint64_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* all = ::mmap(nullptr, pages + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(all);
  const std::uint64_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(all) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(begin + before + pages, kHugePage - before);
  return begin + before;
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Status SharedMemory::map(std::uint64_t bytes) {
  void* const place = reserve_aligned(bytes);
  const int flags = place == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED;
  void* memory = ::mmap(place, bytes, PROT_READ | PROT_WRITE, flags, descriptor_.get(), 0);
  if (memory == MAP_FAILED) return failed("cannot map shared memory");
  bytes_ = {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes)};
  if (bytes >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
  return {};
}

Result<SharedMemory> SharedMemory::create(std::uint64_t bytes) {
  SharedMemory made(::memfd_create("butterfly", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.descriptor_.valid()) return failed("cannot create shared memory");
  if (::ftruncate(made.descriptor(), static_cast<off_t>(bytes)) != 0) return failed("cannot size shared memory");
  BF_TRY(made.map(bytes));
  // Pages become huge ones when they are touched through the mapping, and not when the file system allocates them.
  if (bytes >= kHugePage) ::madvise(made.bytes_.data(), bytes, MADV_POPULATE_WRITE);
  // All of them, now: running out later would be a signal and no error.
  if (const int error = ::posix_fallocate(made.descriptor(), 0, static_cast<off_t>(bytes)); error != 0) {
    return make_error(ErrorCode::kNoMemory, "the operating system refused {} of shared memory: {}", format_bytes(bytes),
                      message_of(error));
  }
  if (::fcntl(made.descriptor(), F_ADD_SEALS, kSeals) != 0) return failed("cannot seal shared memory");
  return made;
}

Result<SharedMemory> SharedMemory::adopt(int descriptor, std::uint64_t bytes) {
  SharedMemory made(descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return failed("cannot look at shared memory");
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (static_cast<std::uint64_t>(status.st_size) != bytes || seals < 0 || (seals & kSeals) != kSeals) {
    return make_error(ErrorCode::kProtocol, "shared memory of {} bytes with seals {}, {} with {} were expected",
                      status.st_size, seals, bytes, kSeals);
  }
  BF_TRY(made.map(bytes));
  return made;
}

}  // namespace butterfly
