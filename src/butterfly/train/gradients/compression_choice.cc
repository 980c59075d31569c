#include "butterfly/train/gradients/compression_choice.h"

#include <algorithm>

namespace butterfly {
namespace {

double saved_seconds(const BucketCosts& costs, std::size_t codec) {
  return (1.0 - costs.codecs[codec].size) * costs.all_reduce_s;
}

/// The method that wins most where a second of transfer is worth `worth` seconds of a processor.
GradientCompression best_method(const BucketCosts& costs, double worth, int members) {
  GradientCompression best = GradientCompression::kOff;
  double most = 0.0;
  for (std::size_t i = 0; i < kAutoMethods.size(); ++i) {
    const double codec_s = codec_seconds(costs.codecs[i], costs.bytes, members);
    const double saved_s = worth * saved_seconds(costs, i);
    if (saved_s < CompressionChoice::kMargin * codec_s || saved_s - codec_s <= most) continue;
    most = saved_s - codec_s;
    best = kAutoMethods[i];
  }
  return best;
}

bool packs_nothing(const std::vector<GradientCompression>& methods) {
  return std::ranges::all_of(methods, [](GradientCompression method) { return method == GradientCompression::kOff; });
}

}  // namespace

double codec_seconds(const GradientCodecCost& cost, double bytes, int members) {
  const double others = static_cast<double>(members - 1) / members;
  return bytes * (cost.encode_s_per_byte + 2.0 * others * cost.decode_s_per_byte);
}

double forecast_gain(const std::vector<BucketCosts>& costs, const std::vector<GradientCompression>& methods,
                     double exposed_s, int members) {
  double saved_s = 0.0, codec_s = 0.0;
  for (std::size_t bucket = 0; bucket < costs.size(); ++bucket) {
    const auto found = std::ranges::find(kAutoMethods, methods[bucket]);
    if (found == kAutoMethods.end()) continue;
    const auto codec = static_cast<std::size_t>(found - kAutoMethods.begin());
    saved_s += saved_seconds(costs[bucket], codec);
    codec_s += codec_seconds(costs[bucket].codecs[codec], costs[bucket].bytes, members);
  }
  return std::min(exposed_s, saved_s) - codec_s;
}

std::vector<GradientCompression> forecast_methods(const std::vector<BucketCosts>& costs, double exposed_s,
                                                  int members) {
  std::vector<GradientCompression> best(costs.size(), GradientCompression::kOff);
  double most = 0.0;
  // Where less can be won than could be saved, a cheaper codec that saves less wins more.
  for (const double worth : {1.0, 0.75, 0.5, 0.35, 0.25}) {
    std::vector<GradientCompression> methods;
    for (const BucketCosts& bucket : costs) methods.push_back(best_method(bucket, worth, members));
    const double gain = forecast_gain(costs, methods, exposed_s, members);
    if (gain <= most) continue;
    most = gain;
    best = std::move(methods);
  }
  return best;
}

CompressionChoice::Purpose CompressionChoice::next_step() {
  const std::int64_t step = step_++;
  purpose_ = trial_                    ? Purpose::kTrial
             : step + 1 == next_probe_ ? Purpose::kBaseline
             : step == next_probe_     ? Purpose::kProbe
                                       : Purpose::kTrain;
  return purpose_;
}

void CompressionChoice::end_step(const StepTimes& times) {
  if (purpose_ == Purpose::kBaseline) baseline_s_ = times.step_s;
  if (purpose_ == Purpose::kProbe) end_probe(times);
  if (purpose_ == Purpose::kTrial) end_trial_step(times.step_s);
}

void CompressionChoice::end_probe(const StepTimes& plain) {
  const bool held_off = packs_nothing(held_);
  challenger_ = forecast_methods(costs_, plain.exposed_s, members_);
  const double gain = forecast_gain(costs_, challenger_, plain.exposed_s, members_) -
                      forecast_gain(costs_, held_, plain.exposed_s, members_);
  if (challenger_ != held_ && gain >= kWorthTrying * plain.step_s) {
    std::vector<double> held_s{baseline_s_}, challenger_s;
    if (held_off) held_s.push_back(plain.step_s);
    if (packs_nothing(challenger_)) challenger_s.push_back(plain.step_s);
    trial_.emplace(std::move(held_s), std::move(challenger_s));
  } else if (!held_off && plain.step_s < kClearlySlower * baseline_s_) {
    std::ranges::fill(challenger_, GradientCompression::kOff);
    trial_.emplace(std::vector{baseline_s_}, std::vector{plain.step_s});
  } else {
    pause_after(false);
  }
}

void CompressionChoice::end_trial_step(double step_s) {
  const auto verdict = trial_->observe(step_s);
  if (verdict == CompressionTrial::Verdict::kOpen) return;
  trial_.reset();
  if (verdict == CompressionTrial::Verdict::kChallenger) held_ = challenger_;
  pause_after(verdict == CompressionTrial::Verdict::kChallenger);
}

void CompressionChoice::pause_after(bool changed) {
  if (changed) pause_ = kPauseMin;
  next_probe_ = step_ + pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
}

}  // namespace butterfly
