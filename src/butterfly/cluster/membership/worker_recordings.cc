#include "butterfly/cluster/membership/worker_recordings.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "butterfly/base/log.h"
#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly {
namespace {

constexpr std::chrono::milliseconds kLookEvery{1000};
constexpr std::int64_t kBeginMs = 2000;
constexpr std::int64_t kClockMs = 1000;
constexpr std::int64_t kFetchMs = 30'000;

/// An address as a part of a file's name.
std::string file_part(std::string address) {
  const auto is_plain = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.'; };
  std::ranges::replace_if(
      address, [&](char c) { return !is_plain(c); }, '_');
  return address;
}

}  // namespace

WorkerRecordings::WorkerRecordings(std::string folder, NodeAccess access,
                                   std::function<std::vector<NodeDescriptor>()> workers)
    : folder_(std::move(folder)), access_(std::move(access)), workers_(std::move(workers)) {
  look();
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, kLookEvery, [&] { return stop.stop_requested(); }) && !stop.stop_requested()) {
      look();
    }
  });
}

WorkerRecordings::~WorkerRecordings() {
  thread_.request_stop();
  thread_.join();
  std::vector<std::jthread> fetching;
  for (auto& [address, worker] : recorded_) {
    if (worker.recording) fetching.emplace_back([this, &address, &worker] { fetch(address, worker); });
  }
}

/// Begins with those that are new, and compares clocks with the others.
void WorkerRecordings::look() {
  for (auto& [address, worker] : recorded_) {
    if (!worker.recording) continue;
    const Status compared = worker.recording->compare_clocks(after_ms(kClockMs));
    if (compared) continue;
    log().warn("the recording of worker {} is lost: {}", address, compared.error().message);
    worker.recording.reset();
    ++worker.times;
  }
  for (const NodeDescriptor& node : workers_()) {
    const auto [found, is_new] = recorded_.try_emplace(node.address, Recorded{.name = node.name});
    Recorded& worker = found->second;
    if (worker.recording || (!is_new && worker.times < 2)) continue;
    auto begun = RemoteRecording::begin(node.address, access_, after_ms(kBeginMs));
    if (begun) {
      worker.recording = std::move(*begun);
    } else if (is_new) {
      log().warn("worker {} is not recorded: {}", node.address, begun.error().message);
    }
  }
}

void WorkerRecordings::fetch(const std::string& address, Recorded& worker) const {
  auto recording = worker.recording->fetch(after_ms(kFetchMs));
  if (!recording) {
    log().warn("the recording of worker {} is lost: {}", address, recording.error().message);
    return;
  }
  recording->facts["node"] = address;
  recording->facts["node.name"] = worker.name;
  std::string name = "worker-" + file_part(address);
  if (worker.times > 1) name += fmt::format("-{}", worker.times);
  const Status written = write_recording(folder_, name, *recording);
  if (!written) log().warn("the recording of worker {} is lost: {}", address, written.error().message);
}

}  // namespace butterfly
