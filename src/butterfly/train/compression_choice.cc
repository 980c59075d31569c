#include "butterfly/train/compression_choice.h"

#include <algorithm>
#include <numeric>

namespace butterfly {

double codec_seconds(const GradientCodecCost& cost, double bytes, int members) {
  const double others = static_cast<double>(members - 1) / members;
  return bytes * (cost.encode_s_per_byte + 2.0 * others * cost.decode_s_per_byte);
}

CompressionChoice::Purpose CompressionChoice::next_step() {
  const std::int64_t step = step_++;
  if (step + 1 == next_probe_) return Purpose::kBaseline;
  if (step != next_probe_) return Purpose::kTrain;
  before_ = chosen_;
  return Purpose::kProbe;
}

void CompressionChoice::observe(std::size_t bucket, const BucketCosts& costs) {
  chosen_[bucket] = GradientCompression::kOff;
  codec_s_[bucket] = 0.0;
  double best = costs.all_reduce_s / kMargin;
  for (std::size_t i = 0; i < kAutoMethods.size(); ++i) {
    const double codec_s = codec_seconds(costs.codecs[i], costs.bytes, members_);
    const double seconds = codec_s + costs.codecs[i].size * costs.all_reduce_s;
    if (seconds >= best) continue;
    best = seconds;
    chosen_[bucket] = kAutoMethods[i];
    codec_s_[bucket] = codec_s;
  }
}

void CompressionChoice::end_probe() {
  if (std::accumulate(codec_s_.begin(), codec_s_.end(), 0.0) * kMargin >= exposed_s_) {
    std::ranges::fill(chosen_, GradientCompression::kOff);
    std::ranges::fill(codec_s_, 0.0);
  }
  pause_ = chosen_ == before_ ? std::min(2 * pause_, kPauseMax) : kPauseMin;
  next_probe_ = step_ + pause_;
}

}  // namespace butterfly
