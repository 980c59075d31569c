#include "butterfly/train/gradients/compressed_sum.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "butterfly/base/check.h"
#include "butterfly/base/clock.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/train/gradients/compression_choice.h"
#include "butterfly/train/gradients/gradient_codec.h"
#include "butterfly/train/gradients/gradient_tree.h"

namespace butterfly {
namespace {

using Clock = std::chrono::steady_clock;
using Purpose = CompressionChoice::Purpose;

constexpr std::size_t kSampleElements = 16 * 1024;  // of a bucket, for a probe: some 10 us for the fast codecs
constexpr std::size_t kSamplePieces = 4;  // from places all over the bucket: an embedding's rows are often zero
constexpr int kSampleRepeats = 2;         // the first finds cold tables and pages

/// Adds up what its scope takes.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : span_(trace::Zone::kCompress, seconds) {}

 private:
  trace::AddedSpan span_;
};

class CompressedSum final : public BucketSum {
 public:
  CompressedSum(Collectives& collectives, std::span<float> gradients, AlignedBuffer residual,
                const CompressedOptions& options)
      : collectives_(collectives),
        members_(static_cast<std::size_t>(collectives.size())),
        me_(static_cast<std::size_t>(collectives.rank())),
        gradients_(gradients),
        residual_storage_(std::move(residual)),
        residual_held_(trace::Owner::kBuffers, residual_storage_.bytes()),
        residual_(reinterpret_cast<float*>(residual_storage_.data()), residual_storage_.bytes() / sizeof(float)),
        method_(options.method),
        owes_(backward_buckets(static_cast<std::int64_t>(gradients.size()), options.bucket_bytes).size(),
              !residual_.empty()),
        choice_(owes_.size(), collectives.size()),
        plain_(make_plain_sum(collectives, gradients)) {
    for (std::size_t i = 1; i + 1 < kGradientCompressions; ++i) {
      codecs_[i] = make_gradient_codec(static_cast<GradientCompression>(i), options.isa);
    }
  }

  Status begin_step(const MicroBatches& /*share*/) override {
    // What is read where it lies does not travel.
    if (method_ == GradientCompression::kAuto && !collectives_.reads_memory()) purpose_ = choice_.next_step();
    step_begin_ = Clock::now();
    probing_s_ = 0.0;
    return {};
  }
  Status reduce(std::size_t index, ParameterRange bucket, ReduceReport& report) override;
  Status end_step(ReduceReport& report) override;
  std::vector<std::span<float>> residuals() override {
    owes_.assign(owes_.size(), !residual_.empty());  // who asks may write
    return residual_.empty() ? std::vector<std::span<float>>{} : std::vector<std::span<float>>{residual_};
  }
  std::uint64_t residual_bytes() const override { return residual_.size_bytes(); }

 private:
  GradientCodec& codec(GradientCompression method) { return *codecs_[static_cast<std::size_t>(method)]; }
  std::span<float> values(ParameterRange range) const {
    return gradients_.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }
  std::span<float> residual(ParameterRange range) const {
    if (residual_.empty()) return {};
    return residual_.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }
  ParameterRange part(ParameterRange bucket, std::size_t member) const {
    return part_of(bucket, static_cast<int>(member), collectives_.size());
  }

  Status reduce_packed(std::size_t index, ParameterRange bucket, GradientCompression method, ReduceReport& report);
  Status send_to_owners(ParameterRange bucket, GradientCodec& codec, ReduceReport& report);
  Status add_up(ParameterRange mine, GradientCodec& codec, ReduceReport& report);
  Status gather_sums(ParameterRange bucket, GradientCodec& codec, ReduceReport& report);
  void pay_residual(std::size_t index, ParameterRange bucket);
  Status probe(std::size_t index, ParameterRange bucket, ReduceReport& report);
  std::vector<float> sample_of(std::span<const float> bucket) const;
  GradientCodecCost measure(GradientCodec& codec, std::span<const float> sample);
  Status agree_on_largest(std::span<double> numbers, ReduceReport& report);

  Collectives& collectives_;
  const std::size_t members_, me_;
  std::span<float> gradients_;
  AlignedBuffer residual_storage_;
  trace::Held residual_held_;
  std::span<float> residual_;  // empty where no codec is lossy
  const GradientCompression method_;
  std::vector<bool> owes_;  // of each bucket: its residual may be other than zero
  CompressionChoice choice_;
  Purpose purpose_ = Purpose::kTrain;
  Clock::time_point step_begin_{};
  double probing_s_ = 0.0;  // of this step: what a probe takes beside the exchange
  std::array<std::unique_ptr<GradientCodec>, kGradientCompressions> codecs_;
  const std::unique_ptr<BucketSum> plain_;

  // For one bucket. Places for each member's bytes are as large as they can become.
  std::vector<std::byte> packed_, received_;
  std::vector<ByteSpan> to_;
  std::vector<MutableByteSpan> from_;
  std::vector<float> sum_, decoded_;
};

Status CompressedSum::reduce(std::size_t index, ParameterRange bucket, ReduceReport& report) {
  if (method_ != GradientCompression::kAuto) return reduce_packed(index, bucket, method_, report);
  if (purpose_ == Purpose::kProbe) {
    pay_residual(index, bucket);
    return probe(index, bucket, report);
  }
  const GradientCompression method = choice_.method(index);
  if (method != GradientCompression::kOff) return reduce_packed(index, bucket, method, report);
  pay_residual(index, bucket);
  return plain_->reduce(index, bucket, report);
}

/// What is residual goes with a bucket that travels with all its bits.
void CompressedSum::pay_residual(std::size_t index, ParameterRange bucket) {
  if (!owes_[index]) return;
  add_to(values(bucket), residual(bucket));
  std::ranges::fill(residual(bucket), 0.0F);
  owes_[index] = false;
}

Status CompressedSum::reduce_packed(std::size_t index, ParameterRange bucket, GradientCompression method,
                                    ReduceReport& report) {
  ++report.buckets[static_cast<std::size_t>(method)];
  report.uncompressed_bytes += collectives_.all_reduce_bytes(values(bucket).size_bytes(), AllReduceAlgorithm::kAuto);
  if (!is_lossy(method)) pay_residual(index, bucket);
  if (is_lossy(method)) owes_[index] = true;
  GradientCodec& chosen = codec(method);
  BF_TRY(send_to_owners(bucket, chosen, report));
  BF_TRY(add_up(part(bucket, me_), chosen, report));
  return gather_sums(bucket, chosen, report);
}

/// Leaves the other members' packed values of my part in from_.
Status CompressedSum::send_to_owners(ParameterRange bucket, GradientCodec& codec, ReduceReport& report) {
  std::size_t room = 0;
  for (std::size_t member = 0; member < members_; ++member)
    room += codec.bytes_max(values(part(bucket, member)).size());
  packed_.resize(std::max(packed_.size(), room));
  to_.assign(members_, {});
  from_.assign(members_, {});
  std::vector<std::uint64_t> sizes(members_, 0), announced(members_, 0);
  {
    const Stopwatch watch(report.codec_s);
    std::size_t begin = 0;
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == me_) continue;
      const ParameterRange theirs = part(bucket, member);
      const MutableByteSpan place = std::span(packed_).subspan(begin, codec.bytes_max(values(theirs).size()));
      sizes[member] = codec.encode(values(theirs), residual(theirs), place);
      to_[member] = place.first(sizes[member]);
      begin += sizes[member];
    }
  }
  const std::size_t mine = values(part(bucket, me_)).size();
  if (const auto fixed = codec.fixed_bytes(mine)) {
    std::ranges::fill(announced, *fixed);
  } else {
    std::vector<ByteSpan> to(members_);
    std::vector<MutableByteSpan> from(members_);
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == me_) continue;
      to[member] = std::as_bytes(std::span(&sizes[member], 1));
      from[member] = std::as_writable_bytes(std::span(&announced[member], 1));
    }
    BF_TRY(collectives_.all_to_all(to, from));
    report.formula_bytes += (members_ - 1) * sizeof(std::uint64_t);
  }
  const std::size_t most = codec.bytes_max(mine);
  received_.resize(std::max(received_.size(), members_ * most));
  for (std::size_t member = 0; member < members_; ++member) {
    if (member == me_) continue;
    if (announced[member] > most) {
      return make_error(ErrorCode::kProtocol, "rank {} announces {} bytes of packed gradients, at most {} are possible",
                        member, announced[member], most);
    }
    from_[member] = std::span(received_).subspan(member * most, announced[member]);
    report.formula_bytes += sizes[member];
  }
  return collectives_.all_to_all(to_, from_);
}

/// The sum of my part, in rank order, in sum_.
Status CompressedSum::add_up(ParameterRange mine, GradientCodec& codec, ReduceReport& report) {
  const Stopwatch watch(report.codec_s);
  const std::span<float> own = values(mine);
  sum_.resize(own.size());
  decoded_.resize(own.size());
  for (std::size_t member = 0; member < members_; ++member) {
    if (member == 0) {
      if (me_ == 0) std::ranges::copy(own, sum_.begin());
      if (me_ != 0) BF_TRY(codec.decode(from_[0], sum_));
    } else if (member == me_) {
      add_to(sum_, own);
    } else {
      BF_TRY(codec.decode(from_[member], decoded_));
      add_to(sum_, decoded_);
    }
  }
  return {};
}

Status CompressedSum::gather_sums(ParameterRange bucket, GradientCodec& codec, ReduceReport& report) {
  const ParameterRange mine = part(bucket, me_);
  std::vector<std::uint64_t> sizes(members_, 0);
  std::vector<std::size_t> begins(members_ + 1, 0);
  for (std::size_t member = 0; member < members_; ++member) {
    begins[member + 1] = begins[member] + codec.bytes_max(values(part(bucket, member)).size());
  }
  packed_.resize(std::max(packed_.size(), begins.back()));
  {
    const Stopwatch watch(report.codec_s);
    sizes[me_] = codec.encode(sum_, residual(mine), std::span(packed_).subspan(begins[me_]));
  }
  report.formula_bytes += (members_ - 1) * sizes[me_];
  if (!codec.fixed_bytes(0)) {
    std::vector<MutableByteSpan> parts;
    for (std::uint64_t& size : sizes) parts.push_back(std::as_writable_bytes(std::span(&size, 1)));
    BF_TRY(collectives_.all_gather(parts));
    report.formula_bytes += (members_ - 1) * sizeof(std::uint64_t);
  }
  std::vector<MutableByteSpan> parts;
  for (std::size_t member = 0; member < members_; ++member) {
    const std::size_t elements = values(part(bucket, member)).size();
    const std::size_t size = codec.fixed_bytes(elements).value_or(sizes[member]);
    if (size > codec.bytes_max(elements)) {
      return make_error(ErrorCode::kProtocol, "rank {} announces {} bytes of packed sums, at most {} are possible",
                        member, size, codec.bytes_max(elements));
    }
    parts.push_back(std::span(packed_).subspan(begins[member], size));
  }
  BF_TRY(collectives_.all_gather(parts));
  const Stopwatch watch(report.codec_s);
  for (std::size_t member = 0; member < members_; ++member) {
    BF_TRY(codec.decode(parts[member], values(part(bucket, member))));
  }
  return {};
}

std::vector<float> CompressedSum::sample_of(std::span<const float> bucket) const {
  if (bucket.size() <= kSampleElements) return {bucket.begin(), bucket.end()};
  std::vector<float> sample;
  for (std::size_t piece = 0; piece < kSamplePieces; ++piece) {
    const auto from = bucket.subspan(piece * (bucket.size() / kSamplePieces), kSampleElements / kSamplePieces);
    sample.insert(sample.end(), from.begin(), from.end());
  }
  return sample;
}

GradientCodecCost CompressedSum::measure(GradientCodec& codec, std::span<const float> sample) {
  std::vector<float> scratch(sample.size());
  std::vector<std::byte> bytes(codec.bytes_max(sample.size()));
  const auto all = static_cast<double>(sample.size_bytes());
  GradientCodecCost cost{.encode_s_per_byte = 1.0, .decode_s_per_byte = 1.0};
  for (int repeat = 0; repeat < kSampleRepeats; ++repeat) {
    std::ranges::fill(scratch, 0.0F);
    auto begin = Clock::now();
    const std::size_t size = codec.encode(sample, scratch, bytes);
    cost.encode_s_per_byte = std::min(cost.encode_s_per_byte, seconds_since(begin) / all);
    begin = Clock::now();
    // What was just packed here unpacks.
    BF_CHECK(codec.decode(ByteSpan(bytes).first(size), scratch).has_value());
    cost.decode_s_per_byte = std::min(cost.decode_s_per_byte, seconds_since(begin) / all);
    cost.size = static_cast<double>(size) / all;
  }
  return cost;
}

/// A bucket that travels as it is, timed without waiting for who is late, beside what the codecs do to a sample of it.
Status CompressedSum::probe(std::size_t index, ParameterRange bucket, ReduceReport& report) {
  std::vector<double> numbers;
  {
    const Stopwatch watch(probing_s_);
    const std::vector<float> sample = sample_of(values(bucket));
    for (const GradientCompression method : kAutoMethods) {
      const GradientCodecCost cost = measure(codec(method), sample);
      numbers.insert(numbers.end(), {cost.encode_s_per_byte, cost.decode_s_per_byte, cost.size});
    }
  }
  BF_TRY(collectives_.barrier());
  const auto begin = Clock::now();
  BF_TRY(plain_->reduce(index, bucket, report));
  numbers.push_back(seconds_since(begin));
  const Stopwatch watch(probing_s_);
  BF_TRY(agree_on_largest(numbers, report));
  BucketCosts costs{.all_reduce_s = numbers.back(), .bytes = static_cast<double>(values(bucket).size_bytes())};
  for (std::size_t i = 0; i < kAutoMethods.size(); ++i) {
    costs.codecs[i] = {
        .encode_s_per_byte = numbers[3 * i], .decode_s_per_byte = numbers[3 * i + 1], .size = numbers[3 * i + 2]};
  }
  choice_.observe(index, costs);
  return {};
}

Status CompressedSum::agree_on_largest(std::span<double> numbers, ReduceReport& report) {
  std::vector<double> all(members_ * numbers.size());
  std::vector<MutableByteSpan> parts;
  for (std::size_t member = 0; member < members_; ++member) {
    const auto place = std::span(all).subspan(member * numbers.size(), numbers.size());
    if (member == me_) std::ranges::copy(numbers, place.begin());
    parts.push_back(std::as_writable_bytes(place));
  }
  BF_TRY(collectives_.all_gather(parts));
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& largest = numbers[i % numbers.size()];
    largest = std::max(largest, all[i]);
  }
  report.formula_bytes += (members_ - 1) * numbers.size_bytes();
  return {};
}

Status CompressedSum::end_step(ReduceReport& report) {
  if (method_ != GradientCompression::kAuto) return {};
  if (!choice_.is_timed()) {
    choice_.end_step({});
    return {};
  }
  std::array<double, 2> times{std::max(0.0, seconds_since(step_begin_) - probing_s_),
                              std::max(0.0, report.exposed_s - probing_s_)};
  const std::uint64_t sent_before = collectives_.stats().bytes_sent;
  BF_TRY(agree_on_largest(times, report));
  report.bytes_sent += collectives_.stats().bytes_sent - sent_before;
  choice_.end_step({.step_s = times[0], .exposed_s = times[1]});
  return {};
}

}  // namespace

Result<std::unique_ptr<BucketSum>> make_compressed_sum(Collectives& collectives, std::span<float> gradients,
                                                       const CompressedOptions& options) {
  AlignedBuffer residual;
  if (is_lossy(options.method) || options.method == GradientCompression::kAuto) {
    BF_ASSIGN_OR_RETURN(residual, AlignedBuffer::create(gradients.size_bytes()));
    std::ranges::fill(std::span(residual.data(), residual.bytes()), std::byte{0});
  }
  return std::make_unique<CompressedSum>(collectives, gradients, std::move(residual), options);
}

}  // namespace butterfly
