// What a probe says of links whose rate, latency and disturbances are known, on a clock of their own.
#include "butterfly/cluster/control/link_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>

namespace butterfly {
namespace {

using Seconds = std::chrono::duration<double>;

struct LinkModel {
  double bits_per_s = 1e9;
  double latency_s = 30e-6;
  double burst_bytes = 0;     // that a limited link lets through at once
  double clump_bytes = 0;     // of messages that the sender's system hands over as one, and the link carries as one
  int disturbed_message = 0;  // on whose way the receiver does not run
  double disturbance_s = 0.02;
};

/// A channel over such a link; its time passes only in waits.
class ModelledLink final : public Channel {
 public:
  explicit ModelledLink(const LinkModel& model) : model_(model), burst_(model.burst_bytes) {}

  ProbeClock clock() {
    return {.now = [this] { return now(); },
            .sleep = [this](std::chrono::microseconds time) { now_s_ += 1e-6 * static_cast<double>(time.count()); }};
  }
  double elapsed_s() const { return now_s_; }

  Status send(Message message, Deadline /*deadline*/) override {
    constexpr double kHeaders = 110;  // of frames, TCP, IP and Ethernet
    const double bytes = kHeaders + static_cast<double>(message.payload.bytes.size()) * 1514 / 1448;
    now_s_ += 1e-6;
    const double begin_s = std::max(now_s_, free_s_);
    burst_ = std::min(model_.burst_bytes, burst_ + (begin_s - free_s_) * rate());
    const double at_once = std::min(burst_, bytes);
    burst_ -= at_once;
    free_s_ = begin_s + (bytes - at_once) / rate();
    if (++sent_ == model_.disturbed_message) delay_until_s_ = free_s_ + model_.disturbance_s;
    const double received_s = std::max(free_s_ + model_.latency_s, delay_until_s_);
    answers_.push_back(received_s + kHeaders / rate() + model_.latency_s);
    clumped_ = answers_.size() > 2 && clumped_ + bytes <= model_.clump_bytes ? clumped_ + bytes : 0;
    if (clumped_ > 0) std::fill(answers_.begin() + 1, answers_.end(), answers_.back());
    return {};
  }
  Result<Message> receive(const PayloadAllocator& /*allocator*/, Deadline deadline) override {
    if (answers_.empty()) return make_error(ErrorCode::kUnavailable, "nothing was sent");
    now_s_ = std::max(now_s_ + 1e-6, answers_.front());
    answers_.pop_front();
    if (now() > deadline) return make_error(ErrorCode::kTimeout, "no message before the deadline");
    return Message{};
  }
  Status send_borrowed(Message message) override { return send(std::move(message), {}); }
  void close() override {}
  ChannelStats stats() const override { return {}; }
  bool broken() const override { return false; }
  std::string peer() const override { return "a model"; }

 private:
  double rate() const { return model_.bits_per_s / 8; }
  Deadline now() const { return Deadline(std::chrono::duration_cast<Deadline::duration>(Seconds(now_s_))); }

  const LinkModel model_;
  double now_s_ = 0, free_s_ = 0, delay_until_s_ = 0;
  double burst_;
  double clumped_ = 0;
  int sent_ = 0;
  std::deque<double> answers_;
};

struct Probed {
  LinkStatus status;
  double elapsed_s = 0;
};

Probed probed(const LinkModel& model) {
  ModelledLink link(model);
  const auto status = probe_link(link, Deadline(std::chrono::seconds(5)), link.clock());
  EXPECT_TRUE(status) << status.error().message;
  return {status.value_or(LinkStatus{}), link.elapsed_s()};
}

// Fails when a link is sent as much as a fast one carries: 1 Mbit/s needs two minutes for that.
TEST(LinkProbe, EachRateIsToldWithinASecond) {
  for (const double rate : {1e6, 2e6, 3e6, 7e6, 20e6, 50e6, 100e6, 300e6, 1e9, 10e9, 100e9}) {
    for (const double latency_s : {10e-6, 200e-6, 2e-3}) {
      for (const double burst : {0.0, 4096.0, 65'536.0}) {
        if (rate > 1e10 && latency_s > 1e-3) continue;  // eight megabytes take less than their way
        SCOPED_TRACE(fmt::format("{} bit/s, {} s, burst {}", rate, latency_s, burst));
        const Probed link = probed({.bits_per_s = rate, .latency_s = latency_s, .burst_bytes = burst});
        const double told = link.status.link.gb_per_s * 8e9;
        EXPECT_LT(link.elapsed_s, burst > 10'000 ? 1.0 : 0.5);
        EXPECT_GT(told, 0.8 * rate);
        EXPECT_LT(told, 1.2 * rate);
        if (burst == 0) {
          EXPECT_NEAR(link.status.link.latency_us, latency_s * 1e6 + 142 * 8e6 / rate, 2 + 40 * 8e6 / rate);
        }
        ASSERT_GE(link.status.times.size(), 2u);
        EXPECT_EQ(link.status.times[1].bytes, 8192u);
      }
    }
  }
}

// Fails when only the moments count at which messages come: those that come together seem to have taken no time.
TEST(LinkProbe, MessagesThatComeTogetherDoNotMakeALinkFaster) {
  for (const double rate : {1e6, 3e6, 20e6, 100e6}) {
    const double told = probed({.bits_per_s = rate, .clump_bytes = 65'536}).status.link.gb_per_s * 8e9;
    EXPECT_GT(told, 0.8 * rate);
    EXPECT_LT(told, 1.2 * rate);
  }
}

TEST(LinkProbe, AFastLinkIsMeasuredWithMegabytesAndEverySize) {
  const Probed link = probed({.bits_per_s = 1e9});
  ASSERT_EQ(link.status.times.size(), 3u);
  EXPECT_EQ(link.status.times[2].bytes, 1u << 20);
  EXPECT_NEAR(link.status.times[2].us, (1 << 20) * 8e-3 * 1514 / 1448, 100);
}

// Fails when one moment in which the other side did not run makes a fast link a slow one.
TEST(LinkProbe, OneDisturbanceChangesNothing) {
  for (int message = 1; message < 140; ++message) {
    const Probed link = probed({.bits_per_s = 10e9, .disturbed_message = message});
    EXPECT_GT(link.status.link.gb_per_s, message > 110 ? 0.2 : 1.0) << message;
    EXPECT_EQ(link.status.times.size(), 3u) << message;
  }
}

TEST(LinkProbe, ALinkThatCarriesNothingEndsAtTheDeadline) {
  ModelledLink link({.bits_per_s = 100});
  const auto status = probe_link(link, Deadline(std::chrono::seconds(5)), link.clock());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace butterfly
