#include "butterfly/wire/tcp/break_even.h"

#include <algorithm>

#include "butterfly/wire/channel/codec.h"

namespace butterfly {
namespace {

constexpr double kNewWeight = 0.5;  // of an observation in the moving averages

double mix(double average, double seen) {
  return average == 0 ? seen : average + kNewWeight * (seen - average);
}

}  // namespace

bool BreakEven::probe_is_due(std::uint64_t payload_bytes) {
  if (mode_ != Compression::kAuto || payload_bytes < kPayloadBytesMin) return false;
  if (payloads_++ < next_probe_) return false;
  ++probes_;
  next_probe_ = payloads_;
  if (probes_ >= kFirstProbes) {
    next_probe_ += pause_;
    pause_ = best_ == Codec::kNone ? std::min(2 * pause_, kPauseMax) : kPauseMin;
  }
  return true;
}

void BreakEven::observe(const std::array<CodecCost, 2>& costs_of_codecs, double link_bytes_per_s) {
  for (std::size_t i = 0; i < costs_.size(); ++i) {
    costs_[i].seconds_per_byte = mix(costs_[i].seconds_per_byte, costs_of_codecs[i].seconds_per_byte);
    costs_[i].saved = mix(costs_[i].saved, costs_of_codecs[i].saved);
  }
  if (link_bytes_per_s > 0) link_bytes_per_s_ = mix(link_bytes_per_s_, link_bytes_per_s);
  Codec best = Codec::kNone;
  double best_gain = 0;
  for (std::size_t i = 0; i < costs_.size() && link_bytes_per_s_ > 0; ++i) {
    const double won = costs_[i].saved / link_bytes_per_s_;
    const double enough = kCodecs[i] == best_ ? 1.0 : kMargin;  // no flapping where both are about equal
    const double gain = won - costs_[i].seconds_per_byte;
    if (won > enough * costs_[i].seconds_per_byte && gain > best_gain) {
      best = kCodecs[i];
      best_gain = gain;
    }
  }
  best_ = best;
}

Codec BreakEven::fixed_or_best() const {
  switch (mode_) {
    case Compression::kOff:
      break;
    case Compression::kLz4:
      return Codec::kLz4;
    case Compression::kZstd:
      return Codec::kZstd;
    case Compression::kAuto:
      return best_;
  }
  return Codec::kNone;
}

}  // namespace butterfly
