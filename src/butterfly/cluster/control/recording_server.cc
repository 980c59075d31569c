#include "butterfly/cluster/control/recording_server.h"

#include <atomic>
#include <optional>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly {
namespace {

constexpr std::int64_t kSilenceMs = 120'000;            // of a client, after which nobody will fetch what is recorded
constexpr std::uint64_t kRecordedSpansMax = 2'000'000;  // 100 MB; the oldest go
constexpr std::size_t kPieceBytesMax = std::size_t{512} << 10;

/// The one that has it records this process for a client.
class RecordingTurn {
 public:
  RecordingTurn() : has_(!taken().exchange(true)) {}
  ~RecordingTurn() {
    if (has_) taken() = false;
  }
  RecordingTurn(const RecordingTurn&) = delete;
  RecordingTurn& operator=(const RecordingTurn&) = delete;
  explicit operator bool() const { return has_; }

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> taken{false};
    return taken;
  }
  const bool has_;
};

/// From the first wish to the last byte.
class RecordingForClient {
 public:
  explicit RecordingForClient(std::string role) : role_(std::move(role)) {}

  /// False for what is no question here.
  bool answer(const control::ControlMessage& question, control::ControlMessage& said) {
    if (question.has_clock_wanted()) {
      said.mutable_clock()->set_steady_ns(trace::now_ns());
      return true;
    }
    if (!question.has_piece_wanted()) return false;
    if (recorder_) end();
    const std::uint64_t offset = std::min<std::uint64_t>(question.piece_wanted().offset(), bytes_.size());
    said.mutable_piece()->set_bytes(bytes_.size());
    said.mutable_piece()->set_data(bytes_.substr(static_cast<std::size_t>(offset), kPieceBytesMax));
    return true;
  }

 private:
  void end() {
    trace::Recording recording = recorder_->take();
    recorder_.reset();
    recording.facts.try_emplace("role", role_);
    add_process_facts(recording);
    bytes_ = to_bytes(recording);
  }

  const std::string role_;
  std::optional<Recorder> recorder_{std::in_place, RecorderOptions{.spans_max = kRecordedSpansMax}};
  std::string bytes_;
};

}  // namespace

void serve_recording(ControlLink& link, const std::string& role) {
  control::ControlMessage begun;
  const RecordingTurn turn;
  if (!turn || trace::recording()) {
    store(Error{.code = ErrorCode::kUnavailable,
                .message = turn ? "it records itself already, as its BUTTERFLY_RECORD says"
                                : "it is recorded for another client already"},
          *begun.mutable_failure());
    static_cast<void>(link.send(begun));
    return;
  }
  RecordingForClient recording(role);
  begun.mutable_recording_begun();
  if (!link.send(begun)) return;
  for (;;) {
    const auto question = link.receive(after_ms(kSilenceMs));
    control::ControlMessage said;
    if (!question || !recording.answer(*question, said) || !link.send(said)) return;
  }
}

}  // namespace butterfly
