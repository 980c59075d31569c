#include "butterfly/cluster/control/remote_recording.h"

#include <algorithm>

#include "butterfly/base/units.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kRecordingBytesMax = std::uint64_t{1} << 30;
constexpr int kRoundTrips = 16;
constexpr std::size_t kOffsetsMax = 4096;  // of more comparisons every second one is forgotten

Result<control::ControlMessage> exchange(ControlLink& link, const control::ControlMessage& question,
                                         Deadline deadline) {
  BF_TRY(link.send(question));
  BF_ASSIGN_OR_RETURN(auto answer, link.receive(deadline));
  if (answer.has_failure()) return tl::unexpected(read_failure(answer.failure(), link.peer()));
  return answer;
}

tl::unexpected<Error> unexpected_answer(const ControlLink& link, std::string_view question) {
  return make_error(ErrorCode::kProtocol, "{} answered {} with something else", link.peer(), question);
}

}  // namespace

ClockOffset offset_over(const std::vector<ClockOffset>& found) {
  if (found.empty()) return {};
  const std::uint64_t best = std::ranges::min(found, {}, &ClockOffset::error_ns).error_ns;
  // Those that took long say little.
  std::vector<ClockOffset> good;
  std::ranges::copy_if(found, std::back_inserter(good),
                       [&](const ClockOffset& one) { return one.error_ns <= 2 * best + 1000; });
  const auto [low, high] = std::ranges::minmax(good, {}, &ClockOffset::offset_ns);
  ClockOffset all{.offset_ns = low.offset_ns + (high.offset_ns - low.offset_ns) / 2};
  for (const ClockOffset& one : good) {
    const std::int64_t apart = std::max(one.offset_ns, all.offset_ns) - std::min(one.offset_ns, all.offset_ns);
    all.error_ns = std::max(all.error_ns, static_cast<std::uint64_t>(apart) + one.error_ns);
  }
  return all;
}

RemoteRecording::RemoteRecording(ChannelPtr channel) : link_(std::make_unique<ControlLink>(std::move(channel))) {}

RemoteRecording::~RemoteRecording() = default;

Result<std::unique_ptr<RemoteRecording>> RemoteRecording::begin(const std::string& address, const NodeAccess& access,
                                                                Deadline deadline) {
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kStatus, .session = make_session_id(), .label = "recording"};
  connecting.channel.spin = std::chrono::microseconds(200);  // a receiver that sleeps makes the clock's error larger
  connecting.access = access;
  BF_ASSIGN_OR_RETURN(ChannelPtr channel, connect_tcp(address, connecting, deadline));
  std::unique_ptr<RemoteRecording> made(new RemoteRecording(std::move(channel)));
  control::ControlMessage question;
  question.mutable_recording_wanted();
  BF_ASSIGN_OR_RETURN(const auto answer, exchange(*made->link_, question, deadline));
  if (!answer.has_recording_begun()) return unexpected_answer(*made->link_, "a wish for a recording");
  BF_TRY(made->compare_clocks(deadline));
  return made;
}

Status RemoteRecording::compare_clocks(Deadline deadline) {
  control::ControlMessage question;
  question.mutable_clock_wanted();
  ClockOffset best{.error_ns = ~std::uint64_t{0}};
  for (int i = 0; i < kRoundTrips; ++i) {
    const std::uint64_t begin = trace::now_ns();
    BF_ASSIGN_OR_RETURN(const auto answer, exchange(*link_, question, deadline));
    const std::uint64_t half = (trace::now_ns() - begin) / 2;
    if (!answer.has_clock()) return unexpected_answer(*link_, "a question about its clock");
    if (half >= best.error_ns) continue;
    best = {.offset_ns = static_cast<std::int64_t>(begin + half - answer.clock().steady_ns()), .error_ns = half + 1};
  }
  if (offsets_.size() == kOffsetsMax) {
    std::erase_if(offsets_, [i = 0](const ClockOffset&) mutable { return i++ % 2 == 1; });
  }
  offsets_.push_back(best);
  return {};
}

Result<trace::Recording> RemoteRecording::fetch(Deadline deadline) {
  BF_TRY(compare_clocks(deadline));
  std::string bytes;
  for (std::uint64_t whole = 1; bytes.size() < whole;) {
    control::ControlMessage question;
    question.mutable_piece_wanted()->set_offset(bytes.size());
    BF_ASSIGN_OR_RETURN(const auto answer, exchange(*link_, question, deadline));
    if (!answer.has_piece()) return unexpected_answer(*link_, "a wish for a piece of its recording");
    const control::Piece& piece = answer.piece();
    if (piece.bytes() > kRecordingBytesMax || (!bytes.empty() && piece.bytes() != whole)) {
      return make_error(ErrorCode::kProtocol, "{} says that its recording has {}, before {}, the limit is {}",
                        link_->peer(), format_bytes(piece.bytes()), format_bytes(whole),
                        format_bytes(kRecordingBytesMax));
    }
    whole = piece.bytes();
    if (piece.data().empty() || piece.data().size() > whole - bytes.size()) {
      return make_error(ErrorCode::kProtocol, "{} sent {} bytes of its recording where {} are left", link_->peer(),
                        piece.data().size(), whole - bytes.size());
    }
    bytes += piece.data();
  }
  BF_ASSIGN_OR_RETURN(trace::Recording recording, trace::parse_recording(as_bytes(bytes)));
  const ClockOffset offset = offset_over(offsets_);
  recording.clock_offset_ns = offset.offset_ns;
  recording.clock_error_ns = offset.error_ns;
  return recording;
}

}  // namespace butterfly
