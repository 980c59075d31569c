// Reductions that hide behind the backward pass: the flat array is cut into buckets from its end to its beginning, and
// as soon as the last micro-batch has made one final, the thread of a queue sums it over all ranks. What happens to one
// bucket is a BucketSum's. Used by the training thread; the reducer owns the queue.
#pragma once

#include <memory>
#include <vector>

#include "butterfly/train/gradients/reducer.h"
#include "butterfly/wire/collective/collective_queue.h"

namespace butterfly {

/// How one bucket becomes the sum over all ranks. The training thread calls begin_step(), micro_batch_done() and
/// end_step(), the queue's thread the others, never both at once for the same elements.
class BucketSum {
 public:
  virtual ~BucketSum() = default;

  /// Errors: kNoMemory.
  virtual Status begin_step(const MicroBatches& /*share*/) { return {}; }
  /// As GradientReducer::fresh_gradients(); nothing: in the gradients the micro-batches add up.
  virtual std::span<float> leaf() { return {}; }
  /// After the backward pass of a micro-batch that is not the last.
  virtual void micro_batch_done() {}
  /// Before the first bucket of a step. Adds what it sends by the formula.
  virtual Status begin_exchange(ReduceReport& /*report*/) { return {}; }
  /// Bucket `index` of the step; its gradients become the sum. Adds to formula_bytes, uncompressed_bytes, codec_s and
  /// buckets. Errors: those of the collectives.
  virtual Status reduce(std::size_t index, ParameterRange bucket, ReduceReport& report) = 0;
  /// After the last bucket; no communication is under way.
  virtual Status end_step(ReduceReport& /*report*/) { return {}; }

  virtual std::vector<std::span<float>> residuals() { return {}; }
  virtual std::uint64_t residual_bytes() const { return 0; }
};

/// `elements` in buckets of `bucket_bytes`, a multiple of 64, from the end to the beginning; the last may be smaller.
std::vector<ParameterRange> backward_buckets(std::int64_t elements, std::int64_t bucket_bytes);

/// Part `member` of a range that `members` divide among themselves, its border at a multiple of kPartElements from the
/// range's beginning.
inline constexpr std::int64_t kPartElements = 32;
ParameterRange part_of(ParameterRange range, int member, int members);

class BucketReducer final : public GradientReducer {
 public:
  /// `collectives` is borrowed. `gradients`: the flat array. `buckets`: from its end to its beginning.
  BucketReducer(Collectives& collectives, std::span<float> gradients, std::vector<ParameterRange> buckets,
                std::unique_ptr<BucketSum> sum, std::shared_ptr<CollectiveQueue> queue);
  /// Aborts the collectives in the middle of a step: the other ranks wait for its buckets.
  ~BucketReducer() override;
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  void begin_step(const MicroBatches& share) override;
  std::span<float> fresh_gradients(int micro_batch) override;
  void gradients_ready(int micro_batch, ParameterRange range) override;
  void micro_batch_done(int micro_batch) override;
  Result<ReduceReport> finish() override;
  std::vector<std::span<float>> residuals() override { return sum_->residuals(); }
  std::uint64_t residual_bytes() const override { return sum_->residual_bytes(); }

 private:
  void submit(std::size_t buckets);
  Status reduce(std::size_t index);

  Collectives& collectives_;
  const std::span<float> gradients_;
  const std::vector<ParameterRange> buckets_;
  const std::unique_ptr<BucketSum> sum_;
  MicroBatches share_{};
  Status status_{};  // of the training thread's part of the step
  bool in_step_ = false;
  std::size_t submitted_ = 0;  // buckets of this step
  ReduceReport report_{};      // the queue's while buckets are on their way
  std::shared_ptr<CollectiveQueue> queue_;
};

/// The sum by all_reduce: its order follows the number of ranks.
std::unique_ptr<BucketSum> make_plain_sum(Collectives& collectives, std::span<float> gradients);

/// Floats of all ranks, by the collectives' own algorithm.
Status all_reduce_floats(Collectives& collectives, std::span<float> values);

}  // namespace butterfly
