// Whether packing a bucket of gradients saves time: what the codecs did to a sample of it against how fast the
// collectives move bytes. A calculation over numbers that all ranks have agreed on, so that all choose alike; it
// measures nothing itself. Not thread-safe.
//
// wire/break_even.h answers the same for payloads of one connection, by what one side has seen of LZ4 and zstd. Here
// several ranks must choose alike, codecs are more, and owners decode and encode again: the rule is the same, the sums
// are others.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "butterfly/train/run_config.h"

namespace butterfly {

/// What kAuto chooses among. fp16 is not there: as large as bf16, with less range.
inline constexpr std::array kAutoMethods{GradientCompression::kBf16, GradientCompression::kInt8,
                                         GradientCompression::kLz4, GradientCompression::kZstd};

struct GradientCodecCost {
  double encode_s_per_byte = 0.0;  // of the floats
  double decode_s_per_byte = 0.0;
  double size = 1.0;  // packed bytes for each byte of floats
};

/// Of one bucket, the slowest of all ranks in each.
struct BucketCosts {
  std::array<GradientCodecCost, kAutoMethods.size()> codecs{};
  double all_reduce_s = 0.0;  // of the bucket as it is
  double bytes = 0.0;
};

/// A rank encodes its bucket once (what goes to owners, and its own part's sum) and decodes the other ranks' values of
/// its part and the other owners' sums: 2 (n - 1) / n of a bucket.
double codec_seconds(const GradientCodecCost& cost, double bytes, int members);

class CompressionChoice {
 public:
  /// A method is chosen where  codec_seconds + size * all_reduce_s < all_reduce_s / kMargin.
  static constexpr double kMargin = 1.25;
  /// Steps between probes: few at first, then twice as many while nothing changes.
  static constexpr std::int64_t kFirstProbe = 2, kPauseMin = 16, kPauseMax = 1024;

  CompressionChoice(std::size_t buckets, int members)
      : members_(members), chosen_(buckets, GradientCompression::kOff), codec_s_(buckets, 0.0) {}

  /// What a step is for: to train, to see how long the ranks wait without compression, or to probe. The last two send
  /// every bucket as it is.
  enum class Purpose : std::uint8_t { kTrain, kBaseline, kProbe };
  /// Of the next step; counts it.
  Purpose next_step();

  /// Of a baseline: the longest time that a rank waited for the exchange after its backward pass.
  void observe_exposed(double exposed_s) { exposed_s_ = exposed_s; }

  /// Of each bucket of a probe.
  void observe(std::size_t bucket, const BucketCosts& costs);

  /// After the last bucket of a probe. Codecs take processor time that the backward pass may want: where all of it is
  /// more than the ranks waited at all, nothing can be won, and nothing is packed.
  void end_probe();

  GradientCompression method(std::size_t bucket) const { return chosen_[bucket]; }

 private:
  const int members_;
  std::vector<GradientCompression> chosen_;
  std::vector<double> codec_s_;
  std::vector<GradientCompression> before_;
  double exposed_s_ = 0.0;
  std::int64_t step_ = 0, next_probe_ = kFirstProbe, pause_ = kPauseMin;
};

}  // namespace butterfly
