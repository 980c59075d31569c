// Reductions that hide behind the backward pass: the flat array is cut into buckets from its end to its beginning, and
// as soon as the last micro-batch has made one final, a thread of its own sums it over all ranks. What happens to one
// bucket is a BucketSum's. One training thread; the reducer owns its communication thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "butterfly/train/reducer.h"

namespace butterfly {

/// How one bucket becomes the sum over all ranks. The training thread calls begin_step(), micro_batch_done() and
/// end_step(), the communication thread the others, never both at once for the same elements.
class BucketSum {
 public:
  virtual ~BucketSum() = default;

  /// Errors: kNoMemory.
  virtual Status begin_step(const MicroBatches& /*share*/) { return {}; }
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
};

/// `elements` in buckets of so many bytes, a multiple of 64, from the end to the beginning; the last may be smaller.
std::vector<ParameterRange> backward_buckets(std::int64_t elements, std::int64_t bucket_bytes);

/// Part `member` of a range that `members` divide among themselves, its border at a multiple of kPartElements from the
/// range's beginning.
inline constexpr std::int64_t kPartElements = 32;
ParameterRange part_of(ParameterRange range, int member, int members);

/// What an all-reduce of `bytes` sends on each of `members`, but for borders: two parts of all but one.
std::uint64_t all_reduce_bytes(std::uint64_t bytes, int members);

class BucketReducer final : public GradientReducer {
 public:
  /// `collectives` is borrowed. `elements`: of the flat array.
  BucketReducer(Collectives& collectives, std::int64_t elements, std::int64_t bucket_bytes,
                std::unique_ptr<BucketSum> sum);
  /// Aborts the collectives in the middle of a step: the other ranks wait for its buckets.
  ~BucketReducer() override;
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  void begin_step(const MicroBatches& share) override;
  void gradients_ready(int micro_batch, ParameterRange range) override;
  void micro_batch_done(int micro_batch) override;
  Result<ReduceReport> finish() override;
  std::vector<std::span<float>> residuals() override { return sum_->residuals(); }

 private:
  void communicate();
  Status reduce_next(std::size_t index);
  void announce(std::size_t buckets);

  Collectives& collectives_;
  const std::vector<ParameterRange> buckets_;
  const std::unique_ptr<BucketSum> sum_;
  MicroBatches share_{};   // the training thread's
  ReduceReport report_{};  // the communication thread's while buckets are on their way

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t available_ = 0;  // buckets of this step that are final here
  std::size_t done_ = 0;       // that have been reduced
  bool in_step_ = false;
  bool working_ = false;
  bool ending_ = false;
  std::optional<Error> error_;  // the first; nothing is reduced after it

  std::thread thread_;
};

/// The sum by all_reduce: its order follows the number of ranks.
std::unique_ptr<BucketSum> make_plain_sum(Collectives& collectives, std::span<float> gradients);

/// Floats of all ranks, by the collectives' own algorithm.
Status all_reduce_floats(Collectives& collectives, std::span<float> values);

}  // namespace butterfly
