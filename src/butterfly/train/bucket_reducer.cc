#include "butterfly/train/bucket_reducer.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/train/gradient_tree.h"

namespace butterfly {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class PlainSum final : public BucketSum {
 public:
  PlainSum(Collectives& collectives, std::span<float> gradients) : collectives_(collectives), gradients_(gradients) {}

  Status reduce(std::size_t /*index*/, ParameterRange bucket, ReduceReport& report) override {
    const auto values =
        gradients_.subspan(static_cast<std::size_t>(bucket.begin), static_cast<std::size_t>(bucket.size()));
    const std::uint64_t bytes = all_reduce_bytes(values.size_bytes(), collectives_.size());
    report.formula_bytes += bytes;
    report.uncompressed_bytes += bytes;
    ++report.buckets[static_cast<std::size_t>(GradientCompression::kOff)];
    return all_reduce_floats(collectives_, values);
  }

 private:
  Collectives& collectives_;
  std::span<float> gradients_;
};

}  // namespace

std::vector<ParameterRange> backward_buckets(std::int64_t elements, std::int64_t bucket_bytes) {
  const std::int64_t size = std::max<std::int64_t>(1, bucket_bytes / 64) * 16;
  std::vector<ParameterRange> buckets;
  for (std::int64_t end = elements; end > 0; end = buckets.back().begin) {
    buckets.push_back({.begin = std::max<std::int64_t>(0, end - size), .end = end});
  }
  return buckets;
}

ParameterRange part_of(ParameterRange range, int member, int members) {
  const long blocks = (range.size() + kPartElements - 1) / kPartElements;
  const WorkRange part = split_work(blocks, member, members);
  return {.begin = std::min(range.end, range.begin + part.begin * kPartElements),
          .end = std::min(range.end, range.begin + part.end * kPartElements)};
}

std::uint64_t all_reduce_bytes(std::uint64_t bytes, int members) {
  const auto count = static_cast<std::uint64_t>(members);
  return 2 * bytes * (count - 1) / count;
}

Status all_reduce_floats(Collectives& collectives, std::span<float> values) {
  const ReduceFunction add = [](MutableByteSpan into, ByteSpan from) {
    add_to({reinterpret_cast<float*>(into.data()), into.size() / sizeof(float)},
           {reinterpret_cast<const float*>(from.data()), from.size() / sizeof(float)});
  };
  return collectives.all_reduce(std::as_writable_bytes(values), sizeof(float), add, AllReduceAlgorithm::kAuto);
}

std::unique_ptr<BucketSum> make_plain_sum(Collectives& collectives, std::span<float> gradients) {
  return std::make_unique<PlainSum>(collectives, gradients);
}

BucketReducer::BucketReducer(Collectives& collectives, std::int64_t elements, std::int64_t bucket_bytes,
                             std::unique_ptr<BucketSum> sum)
    : collectives_(collectives),
      buckets_(backward_buckets(elements, bucket_bytes)),
      sum_(std::move(sum)),
      thread_([this] { communicate(); }) {}

BucketReducer::~BucketReducer() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    if (in_step_) collectives_.abort();
  }
  changed_.notify_all();
  thread_.join();
}

void BucketReducer::begin_step(const MicroBatches& share) {
  BF_CHECK(share.first < share.last && share.last <= share.total, "a rank computes at least one micro-batch");
  share_ = share;
  report_ = {};
  const Status begun = sum_->begin_step(share);
  std::lock_guard lock(mutex_);
  in_step_ = true;
  available_ = 0;
  done_ = 0;
  if (!begun && !error_) error_ = begun.error();
}

void BucketReducer::gradients_ready(int micro_batch, ParameterRange range) {
  if (micro_batch != share_.last - 1) return;
  const auto pending =
      std::ranges::find_if(buckets_, [&](ParameterRange bucket) { return bucket.begin < range.begin; });
  announce(static_cast<std::size_t>(pending - buckets_.begin()));
}

void BucketReducer::announce(std::size_t buckets) {
  {
    std::lock_guard lock(mutex_);
    if (buckets <= available_) return;
    available_ = buckets;
  }
  changed_.notify_all();
}

void BucketReducer::micro_batch_done(int micro_batch) {
  if (micro_batch == share_.last - 1) return announce(buckets_.size());
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
  }
  sum_->micro_batch_done();
}

Result<ReduceReport> BucketReducer::finish() {
  const auto begin = Clock::now();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !working_ && (error_ || done_ == buckets_.size()); });
    in_step_ = false;
    if (error_) return tl::unexpected(*error_);
  }
  report_.exposed_s = seconds_since(begin);
  if (const Status ended = sum_->end_step(report_); !ended) {
    std::lock_guard lock(mutex_);
    error_ = ended.error();
    return tl::unexpected(ended.error());
  }
  return report_;
}

void BucketReducer::communicate() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || (!error_ && done_ < available_); });
    if (ending_) return;
    const std::size_t index = done_;
    working_ = true;
    lock.unlock();
    const auto begin = Clock::now();
    const std::uint64_t sent_before = collectives_.stats().bytes_sent;
    const Status reduced = reduce_next(index);
    report_.bytes_sent += collectives_.stats().bytes_sent - sent_before;
    report_.communication_s += seconds_since(begin);
    lock.lock();
    working_ = false;
    if (!reduced) error_ = reduced.error();
    ++done_;
    changed_.notify_all();
  }
}

Status BucketReducer::reduce_next(std::size_t index) {
  if (index == 0) BF_TRY(sum_->begin_exchange(report_));
  return sum_->reduce(index, buckets_[index], report_);
}

}  // namespace butterfly
