#include "butterfly/train/gradients/bucket_reducer.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/train/gradients/gradient_tree.h"

namespace butterfly {
namespace {

class PlainSum final : public BucketSum {
 public:
  PlainSum(Collectives& collectives, std::span<float> gradients) : collectives_(collectives), gradients_(gradients) {}

  Status reduce(std::size_t /*index*/, ParameterRange bucket, ReduceReport& report) override {
    const auto values =
        gradients_.subspan(static_cast<std::size_t>(bucket.begin), static_cast<std::size_t>(bucket.size()));
    const std::uint64_t bytes = collectives_.all_reduce_bytes(values.size_bytes(), AllReduceAlgorithm::kAuto);
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

BucketReducer::BucketReducer(Collectives& collectives, std::span<float> gradients, std::vector<ParameterRange> buckets,
                             std::unique_ptr<BucketSum> sum, std::shared_ptr<CollectiveQueue> queue)
    : collectives_(collectives),
      gradients_(gradients),
      buckets_(std::move(buckets)),
      sum_(std::move(sum)),
      queue_(std::move(queue)) {}

BucketReducer::~BucketReducer() {
  if (in_step_) collectives_.abort();
  // Others may hold the queue, too.
  [[maybe_unused]] const Status last = queue_->wait_all();
}

void BucketReducer::begin_step(const MicroBatches& share) {
  BF_CHECK(share.first < share.last && share.last <= share.total, "a rank computes at least one micro-batch");
  share_ = share;
  report_ = {};
  submitted_ = 0;
  in_step_ = true;
  status_ = sum_->begin_step(share);
}

std::span<float> BucketReducer::fresh_gradients(int micro_batch) {
  const std::span<float> leaf = status_ ? sum_->leaf() : gradients_;
  return leaf.empty() && micro_batch == share_.first ? gradients_ : leaf;
}

void BucketReducer::gradients_ready(int micro_batch, ParameterRange range) {
  if (micro_batch != share_.last - 1) return;
  const auto pending =
      std::ranges::find_if(buckets_, [&](ParameterRange bucket) { return bucket.begin < range.begin; });
  submit(static_cast<std::size_t>(pending - buckets_.begin()));
}

void BucketReducer::submit(std::size_t buckets) {
  for (; status_ && submitted_ < buckets; ++submitted_) {
    queue_->submit([this, index = submitted_] { return reduce(index); });
  }
}

void BucketReducer::micro_batch_done(int micro_batch) {
  if (micro_batch == share_.last - 1) return submit(buckets_.size());
  if (status_) sum_->micro_batch_done();
}

Result<ReduceReport> BucketReducer::finish() {
  const trace::TimedSpan waiting(trace::Zone::kWaitGradients);
  const Status reduced = queue_->wait_all();
  report_.exposed_s = waiting.end_s();
  // Without this rank's buckets the others would wait for them.
  if (!status_) collectives_.abort();
  in_step_ = false;
  BF_TRY(status_);
  BF_TRY(reduced);
  BF_TRY(sum_->end_step(report_));
  return report_;
}

/// On the queue's thread.
Status BucketReducer::reduce(std::size_t index) {
  if (index == 0) trace::name_thread(fmt::format("gradients of rank {}", collectives_.rank()));
  trace::TimedSpan span(trace::Zone::kReduceBucket);
  const std::uint64_t sent_before = collectives_.stats().bytes_sent;
  if (index == 0) BF_TRY(sum_->begin_exchange(report_));
  BF_TRY(sum_->reduce(index, buckets_[index], report_));
  const std::uint64_t sent = collectives_.stats().bytes_sent - sent_before;
  report_.bytes_sent += sent;
  span.set_work({.number = static_cast<std::uint32_t>(index), .bytes = sent});
  report_.communication_s += span.end_s();
  return {};
}

}  // namespace butterfly
