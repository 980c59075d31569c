// What each bucket of gradients travels as, so that steps are short: what the codecs did to a sample of it and how fast
// the collectives move bytes say which methods should pay, and steps with and without them, timed in turn, say whether
// they do. Numbers that all ranks have agreed on go in, so that all choose alike; it measures nothing itself. Not
// thread-safe.
//
// Why both: a forecast is cheap and finds the method among many, but cannot know what a codec takes from a backward
// pass on the same processors, nor which part of a transfer is bytes. So it proposes, and the steps decide.
// wire/break_even.h is the same question for payloads of one connection, where one side may decide alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "butterfly/train/config/run_config.h"
#include "butterfly/train/gradients/compression_trial.h"

namespace butterfly {

/// What kAuto chooses among. fp16 is not there: as large as bf16, with less range.
inline constexpr std::array kAutoMethods{GradientCompression::kBf16, GradientCompression::kInt8,
                                         GradientCompression::kLz4, GradientCompression::kZstd};

struct GradientCodecCost {
  double encode_s_per_byte = 0.0;  // of the floats
  double decode_s_per_byte = 0.0;
  double size = 1.0;  // packed bytes for each byte of floats
};

/// What one bucket costs, on the slowest of all ranks in each figure.
struct BucketCosts {
  std::array<GradientCodecCost, kAutoMethods.size()> codecs{};
  double all_reduce_s = 0.0;  // of the bucket as it is
  double bytes = 0.0;
};

/// Times of a step on the slowest rank, without what probing took.
struct StepTimes {
  double step_s = 0.0;
  double exposed_s = 0.0;  // of them, waiting for the exchange after the backward pass
};

/// A rank encodes its bucket once (what goes to owners, and its own part's sum) and decodes the other ranks' values of
/// its part and the other owners' sums: 2 (n - 1) / n of a bucket.
double codec_seconds(const GradientCodecCost& cost, double bytes, int members);

/// The seconds by which a step becomes shorter where bucket i travels as methods[i]. No more than the ranks waited can
/// be won, and a codec takes its time from them or from the backward pass:
///   min(exposed_s, sum of (1 - size) all_reduce_s) - sum of codec_seconds.
double forecast_gain(const std::vector<BucketCosts>& costs, const std::vector<GradientCompression>& methods,
                     double exposed_s, int members);

/// The methods of the largest gain; kOff for a bucket where (1 - size) all_reduce_s is below kMargin codec_seconds.
std::vector<GradientCompression> forecast_methods(const std::vector<BucketCosts>& costs, double exposed_s, int members);

class CompressionChoice {
 public:
  static constexpr double kMargin = 1.25;
  /// The share of a step without compression that a forecast has to win to be tried.
  static constexpr double kWorthTrying = 0.02;
  /// One step as it is that takes this multiple of a packed one says that packing still pays.
  static constexpr double kClearlySlower = 1.3;
  /// Steps until the first probe (the first ones plan memory), and between the end of what one started and the next:
  /// few at first, then twice as many while nothing changes.
  static constexpr std::int64_t kFirstProbe = 3, kPauseMin = 16, kPauseMax = 1024;

  CompressionChoice(std::size_t buckets, int members)
      : members_(members), held_(buckets, GradientCompression::kOff), challenger_(held_), costs_(buckets) {}

  /// kBaseline: an ordinary step that is timed. kProbe: every bucket is sent as it is and timed, beside samples of the
  /// codecs. kTrial: of one of two choices.
  enum class Purpose : std::uint8_t { kTrain, kBaseline, kProbe, kTrial };
  /// Begins a step.
  Purpose next_step();

  /// The method of the step under way; not of a probe.
  GradientCompression method(std::size_t bucket) const { return (challenging() ? challenger_ : held_)[bucket]; }

  /// Whether observe_step() is wanted at the end of the step under way.
  bool is_timed() const { return purpose_ != Purpose::kTrain && (!trial_ || trial_->counted()); }

  /// Called for each bucket of a probe.
  void observe(std::size_t bucket, const BucketCosts& costs) { costs_[bucket] = costs; }

  /// Ends a step. `times` are looked at where is_timed().
  void end_step(const StepTimes& times);

 private:
  bool challenging() const { return trial_ && trial_->side() == CompressionTrial::Side::kChallenger; }
  void end_probe(const StepTimes& plain);
  void end_trial_step(double step_s);
  void pause_after(bool changed);

  const int members_;
  std::vector<GradientCompression> held_, challenger_;
  std::vector<BucketCosts> costs_;
  std::optional<CompressionTrial> trial_;
  Purpose purpose_ = Purpose::kTrain;
  double baseline_s_ = 0.0;
  std::int64_t step_ = 0, next_probe_ = kFirstProbe, pause_ = kPauseMin;
};

}  // namespace butterfly
