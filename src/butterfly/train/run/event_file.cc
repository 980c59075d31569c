#include "butterfly/train/run/event_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "butterfly/base/hash/crc32c.h"

namespace butterfly {
namespace {

/// A protobuf message, field after field (https://protobuf.dev/programming-guides/encoding).
class Message {
 public:
  Message& number(int field, std::uint64_t value) {
    tag(field, 0);
    varint(value);
    return *this;
  }
  Message& real64(int field, double value) {
    tag(field, 1);
    return raw(&value, sizeof(value));
  }
  Message& real32(int field, float value) {
    tag(field, 5);
    return raw(&value, sizeof(value));
  }
  Message& bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    text_.append(value);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void tag(int field, unsigned wire_type) { varint((static_cast<unsigned>(field) << 3) | wire_type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>((value & 0x7F) | 0x80));
    text_.push_back(static_cast<char>(value));
  }
  Message& raw(const void* value, std::size_t size) {
    text_.append(static_cast<const char*>(value), size);
    return *this;
  }

  std::string text_;
};

template <typename T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Fields of Event, Summary and Summary.Value.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr int kValue = 1;
constexpr int kTag = 1, kSimpleValue = 2;

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
  EventFile events;
  events.path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", directory, static_cast<std::int64_t>(now_s()),
                             host.data(), ::getpid());
  events.file_.reset(std::fopen(events.path_.c_str(), "ab"));
  if (!events.file_) {
    return make_error(ErrorCode::kIo, "{}: cannot be created: {}", events.path_, std::strerror(errno));
  }
  BF_TRY(events.write(Message().real64(kWallTime, now_s()).bytes(kFileVersion, "brain.Event:2").text()));
  return events;
}

Status EventFile::add(std::int64_t step, const Scalars& scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars) {
    summary.bytes(kValue, Message().bytes(kTag, tag).real32(kSimpleValue, static_cast<float>(value)).text());
  }
  return write(Message()
                   .real64(kWallTime, now_s())
                   .number(kStep, static_cast<std::uint64_t>(step))
                   .bytes(kSummary, summary.text())
                   .text());
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
