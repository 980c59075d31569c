#include "butterfly/machine/usage/recorded_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "butterfly/base/log.h"

namespace butterfly {

std::string record_folder() {
  const char* folder = std::getenv(kRecordFolder);
  return folder == nullptr ? std::string() : std::string(folder);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

void add_process_facts(trace::Recording& recording) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  recording.facts.try_emplace("host", host.data());
  recording.facts.try_emplace("boot_id", boot_id());
  recording.facts.try_emplace("pid", fmt::format("{}", ::getpid()));
  recording.facts.try_emplace("role", "process");
}

Status write_recording(const std::string& folder, trace::Recording recording) {
  add_process_facts(recording);
  return write_recording(folder, fmt::format("{}-{}", recording.fact("role"), recording.fact("pid")), recording);
}

Status write_recording(const std::string& folder, const std::string& name, const trace::Recording& recording) {
  const std::string path = fmt::format("{}/{}.bftrace", folder, name);
  const std::string bytes = to_bytes(recording);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return make_error(ErrorCode::kIo, "{}: could not write {} bytes", path, bytes.size());
  return {};
}

RecordedProcess::RecordedProcess(const std::string& role) {
  if (record_folder().empty()) return;
  trace::set_fact("role", role);
  recorder_ = std::make_unique<Recorder>();
}

RecordedProcess::~RecordedProcess() {
  if (recorder_ == nullptr) return;
  const Status written = write_recording(record_folder(), recorder_->take());
  if (!written) log().error("the recording is lost: {}", written.error().message);
}

}  // namespace butterfly
