#include "butterfly/model/packed/packed_cache.h"

#include <filesystem>
#include <numeric>
#include <thread>

#include "butterfly/base/hash/crc32c.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/base/read_file.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/files/file_stamp.h"
#include "butterfly/model/files/pending_file.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

/// What packing makes of known bytes of every type: another layout is another version of the files.
std::uint32_t layout_checksum() {
  ThreadTeam alone(1);
  std::uint32_t sum = 0;
  for (const DType type : kAllDTypes) {
    std::vector<std::uint8_t> stored(*row_bytes(type, kSuperBlock) * kPanel);
    std::iota(stored.begin(), stored.end(), std::uint8_t{1});
    const auto packed = PackedMatrix::pack(
        {.type = type, .rows = kPanel, .cols = kSuperBlock, .bytes = std::as_bytes(std::span(stored))}, alone);
    if (packed) sum = crc32c(packed->packed(), sum);
  }
  return sum;
}

/// What says of a part that its checksums hold: this file, as it is now, since this start of the machine. Empty where a
/// change at this moment might not show.
std::string mark_of(const std::string& path) {
  const std::uint64_t machine = this_core().machine;
  if (machine == 0 || until_stamp_settles(path).count() > 0) return {};
  return fmt::format("{:x} {}", machine, file_stamp(path));
}

std::string path_of_mark(const std::string& path) {
  return path + "-checked";
}

void write_mark(const std::string& path, const std::string& mark) {
  if (mark.empty()) return;
  PendingFile file(path_of_mark(path));
  // Without it the next start looks at the checksums, no more.
  if (file.open() && file.write(mark.data(), mark.size())) (void)file.commit();
}

}  // namespace

void PackedCache::set_model(const std::string& identity) {
  model_folder_.clear();
  if (folder_.empty() || identity.empty()) return;
  static const std::uint32_t layout = layout_checksum();
  const std::string whole = fmt::format("{} {:08x}", identity, layout);
  model_folder_ = folder_ + "/" + to_hex(sha256(as_bytes(whole))).substr(0, 32);
  std::error_code error;
  fs::create_directories(model_folder_, error);
  if (!error) return;
  log().warn("no packed weights are kept: {}: {}", model_folder_, error.message());
  model_folder_.clear();
}

void PackedCache::forget_model() {
  if (model_folder_.empty()) return;
  std::error_code ignored;
  fs::remove_all(model_folder_, ignored);
  model_folder_.clear();
}

std::shared_ptr<const WeightSource> PackedCache::find(const std::string& name, ThreadTeam& team) const {
  const std::string path = path_of(name), mark = mark_of(path);
  const bool checked = !mark.empty() && read_file(path_of_mark(path), kAnySize).value_or("") == mark;
  auto part = PackedPart::open(path, team, checked ? PartCheck::kForm : PartCheck::kBytes);
  if (part && !checked && mark_of(path) == mark) write_mark(path, mark);
  if (part) return *part;
  if (part.error().code != ErrorCode::kNotFound) log().warn("{}, so it is packed anew", part.error().message);
  return nullptr;
}

void PackedCache::keep(const std::string& name, const PackedRecorder& recorder) {
  const std::string path = path_of(name);
  const Status written = recorder.write(path);
  if (written) {
    std::this_thread::sleep_for(until_stamp_settles(path));
    return write_mark(path, mark_of(path));
  }
  // The next part would fail as well, and no start is to wait for a full disk once for each of them.
  log().warn("no packed weights are kept: {}", written.error().message);
  model_folder_.clear();
}

}  // namespace butterfly
