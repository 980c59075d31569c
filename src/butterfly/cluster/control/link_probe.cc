#include "butterfly/cluster/control/link_probe.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "butterfly/base/statistics.h"
#include "butterfly/wire/channel/frame.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kSmallBytes = 64;
constexpr std::uint64_t kMiddleBytes = 8192;
constexpr std::uint64_t kBulkBytes = 1 << 20;
constexpr int kTrainMessages = 8;
constexpr std::array<std::uint64_t, 4> kTrainBytes{1024, 4096, 16'384, 65'536};  // of each message
constexpr std::size_t kTrainsMax = 3;                                            // of one length
constexpr double kTrainS = 0.09;         // no train that is expected to take longer, but for round trips
constexpr double kBulkS = 0.12;          // the same for megabytes
constexpr double kFirstTrainS = 1.0;     // the same for the first one, which a slow link needs
constexpr double kSuspiciousDrop = 1.5;  // a train slower by this factor than the one before may have been disturbed

/// Round trips of one size.
struct Rounds {
  std::uint64_t bytes = 0;
  int times = 1;
  int times_min = 1;
  double budget_s = 0.025;  // after which the others are left out
  std::chrono::microseconds pause{};
};

class LinkProbe {
 public:
  LinkProbe(Channel& channel, Deadline deadline, const ProbeClock& clock)
      : channel_(channel), deadline_(deadline), clock_(clock) {}

  Result<LinkStatus> measure() {
    constexpr std::chrono::microseconds kWakePause{400};  // longer than a receiver spins
    BF_ASSIGN_OR_RETURN(bulk_, allocate_payload(kBulkBytes));
    BF_TRY(add_time({.bytes = kSmallBytes, .times = 51, .times_min = 3}));
    status_.link.latency_us = status_.times.front().us;
    BF_TRY(add_time({.bytes = kMiddleBytes, .times = 21}));
    BF_ASSIGN_OR_RETURN(const double bytes_per_s, climb());
    if (kBulkBytes / bytes_per_s <= allowed_s(kBulkS))
      BF_TRY(add_time({.bytes = kBulkBytes, .times = 5, .budget_s = 0.06}));
    // As between steps: the other side sleeps when the message comes.
    BF_ASSIGN_OR_RETURN(const double woken_s,
                        round_trip_s({.bytes = kSmallBytes, .times = 15, .times_min = 3, .pause = kWakePause}));
    status_.link.wake_us = std::max(woken_s - 2 * back_s_, 0.0) * 1e6;
    status_.link.gb_per_s = bytes_per_s * 1e-9;
    if (carries_bulk(bytes_per_s)) BF_TRY(measure_bulk());
    return status_;
  }

 private:
  double seconds_since(Deadline begin) const { return std::chrono::duration<double>(clock_.now() - begin).count(); }
  double allowed_s(double limit_s) const { return limit_s + 4 * back_s_; }
  Payload payload(std::uint64_t bytes) const { return {.owner = bulk_.owner, .bytes = bulk_.bytes.first(bytes)}; }

  /// Seconds of a message with a payload and of its answer without one, the median.
  Result<double> round_trip_s(const Rounds& rounds) {
    std::vector<double> seconds;
    const Deadline first = clock_.now();
    for (int i = 0; i < rounds.times && (i < rounds.times_min || seconds_since(first) < rounds.budget_s); ++i) {
      if (rounds.pause.count() > 0) clock_.sleep(rounds.pause);
      const Deadline begin = clock_.now();
      BF_TRY(channel_.send({.payload = payload(rounds.bytes)}, deadline_));
      BF_TRY(channel_.receive(refuse_payload, deadline_));
      seconds.push_back(seconds_since(begin));
    }
    return median(std::move(seconds));
  }

  Status add_time(const Rounds& rounds) {
    BF_ASSIGN_OR_RETURN(const double both_s, round_trip_s(rounds));
    if (status_.times.empty()) back_s_ = both_s / 2;
    status_.times.push_back({.bytes = rounds.bytes, .us = std::max(both_s - back_s_, 0.0) * 1e6});
    return {};
  }

  /// Bytes per second of several messages in a row. The first ones widen the window of a distant link, and may be what
  /// a limited one lets through at once: the second half counts. Where round trips explain little of the time, so does
  /// the whole: the last ones may have come together.
  Result<double> train(std::uint64_t bytes) {
    constexpr double kManyRoundTrips = 4;
    const Deadline begin = clock_.now();
    for (int i = 0; i < kTrainMessages; ++i) BF_TRY(channel_.send({.payload = payload(bytes)}, deadline_));
    Deadline half{};
    for (int i = 0; i < kTrainMessages; ++i) {
      BF_TRY(channel_.receive(refuse_payload, deadline_));
      if (i == kTrainMessages / 2 - 1) half = clock_.now();
    }
    const double all = static_cast<double>(bytes + kFrameHeaderBytes) * kTrainMessages;
    const double half_s = std::max(seconds_since(half), 1e-9);
    const double all_s = seconds_since(begin) - 2 * back_s_;
    const double of_half = all / 2 / half_s;
    return all_s > kManyRoundTrips * 2 * back_s_ ? std::min(of_half, all / all_s) : of_half;
  }

  /// Adds what trains of one length reached, several of them where `go_on` says so and time is left.
  template <typename GoOn>
  Status add_trains(std::uint64_t bytes, std::vector<double>& reached, const GoOn& go_on) {
    if (reached.empty()) trains_begin_ = clock_.now();
    while (reached.size() < kTrainsMax && seconds_since(trains_begin_) < kTrainS && go_on()) {
      BF_ASSIGN_OR_RETURN(const double bytes_per_s, train(bytes));
      reached.push_back(bytes_per_s);
    }
    return {};
  }

  /// Longer and longer trains, up to the longest that the link carries in time; bytes per second of the fastest of the
  /// last ones: disturbances make them slower.
  Result<double> climb() {
    double bytes_per_s = kMiddleBytes / std::max(status_.times.back().us * 1e-6, 1e-9);
    std::vector<double> reached;
    std::uint64_t last = 0;
    for (const std::uint64_t bytes : kTrainBytes) {
      const double limit_s = bytes == kTrainBytes.front() ? kFirstTrainS : allowed_s(kTrainS);
      if (static_cast<double>(bytes) * kTrainMessages / bytes_per_s > limit_s) break;
      last = bytes;
      reached.clear();
      const auto suspicious = [&] {
        return reached.empty() || std::ranges::max(reached) * kSuspiciousDrop < bytes_per_s;
      };
      BF_TRY(add_trains(bytes, reached, suspicious));
      bytes_per_s = std::ranges::max(reached);
    }
    if (last == 0 || carries_bulk(bytes_per_s)) return bytes_per_s;
    BF_TRY(add_trains(last, reached, [] { return true; }));
    // The first one may have had a part of what a limited link lets through at once.
    return std::ranges::max(std::span(reached).subspan(reached.size() > 1 ? 1 : 0));
  }

  bool carries_bulk(double bytes_per_s) const { return kTrainMessages * kBulkBytes / bytes_per_s <= allowed_s(kBulkS); }

  Status measure_bulk() {
    const Deadline begin = clock_.now();
    for (int i = 0; i < kTrainMessages; ++i) BF_TRY(channel_.send({.payload = bulk_}, deadline_));
    for (int i = 0; i < kTrainMessages; ++i) BF_TRY(channel_.receive(refuse_payload, deadline_));
    const double all_s = seconds_since(begin);
    // The way of the last one's end and of its answer is latency, which counts by itself.
    constexpr double kBytes = static_cast<double>(kBulkBytes) * kTrainMessages;
    status_.link.gb_per_s = kBytes / std::max({all_s - 2 * back_s_, all_s / 2, 1e-9}) * 1e-9;
    return {};
  }

  Channel& channel_;
  const Deadline deadline_;
  const ProbeClock& clock_;
  Payload bulk_;
  LinkStatus status_;
  double back_s_ = 0;  // the way of a small answer
  Deadline trains_begin_{};
};

}  // namespace

Result<LinkStatus> probe_link(Channel& channel, Deadline deadline, const ProbeClock& clock) {
  return LinkProbe(channel, deadline, clock).measure();
}

}  // namespace butterfly
