#include "butterfly/train/run/event_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "butterfly/base/hash/crc32c.h"
#include "butterfly/train/run/events.pb.h"

namespace butterfly {
namespace {

template <typename T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t masked_crc32c(ByteSpan bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string event_record(std::string_view event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  std::string record = length + little_endian(masked_crc32c(as_bytes(length)));
  record.append(event);
  return record + little_endian(masked_crc32c(as_bytes(event)));
}

Result<EventFile> EventFile::create(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be made: {}", directory, error.message());
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  EventFile file;
  file.path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", directory, static_cast<std::int64_t>(now_s()),
                           host.data(), ::getpid());
  file.file_.reset(std::fopen(file.path_.c_str(), "ab"));
  if (!file.file_) {
    return make_error(ErrorCode::kIo, "{}: cannot be created: {}", file.path_, std::strerror(errno));
  }
  events::Event first;
  first.set_wall_time(now_s());
  first.set_file_version("brain.Event:2");
  BF_TRY(file.write(first.SerializeAsString()));
  return file;
}

Status EventFile::add(std::int64_t step, const Scalars& scalars) {
  events::Event event;
  event.set_wall_time(now_s());
  event.set_step(step);
  events::Summary& summary = *event.mutable_summary();
  for (const auto& [tag, value] : scalars) {
    events::Value& one = *summary.add_value();
    one.set_tag(std::string(tag));
    one.set_simple_value(static_cast<float>(value));
  }
  return write(event.SerializeAsString());
}

Status EventFile::write(const std::string& event) {
  const std::string record = event_record(event);
  // Whole records at a time, so that a viewer beside a running program never reads half of one.
  const bool written =
      std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() && std::fflush(file_.get()) == 0;
  if (!written) return make_error(ErrorCode::kIo, "{}: cannot be written: {}", path_, std::strerror(errno));
  return {};
}

}  // namespace butterfly
