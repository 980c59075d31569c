#include "butterfly/train/gradients/reducer.h"

#include <algorithm>

#include "butterfly/train/gradients/bucket_reducer.h"
#include "butterfly/train/gradients/canonical_reducer.h"
#include "butterfly/train/gradients/compressed_sum.h"
#include "butterfly/train/gradients/gradient_codec.h"
#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/sharded_reducer.h"

namespace butterfly {
namespace {

/// The backward passes of one rank add up already.
class AccumulatingReducer final : public GradientReducer {
 public:
  explicit AccumulatingReducer(std::span<float> gradients) : gradients_(gradients) {}

  void begin_step(const MicroBatches& share) override { first_ = share.first; }
  std::span<float> fresh_gradients(int micro_batch) override {
    return micro_batch == first_ ? gradients_ : std::span<float>();
  }
  void gradients_ready(int /*micro_batch*/, ParameterRange /*range*/) override {}
  void micro_batch_done(int /*micro_batch*/) override {}
  Result<ReduceReport> finish() override { return ReduceReport{}; }

 private:
  std::span<float> gradients_;
  int first_ = 0;
};

/// The canonical tree on one rank.
class LocalTreeReducer final : public GradientReducer {
 public:
  LocalTreeReducer(std::span<float> gradients, ThreadTeam* team)
      : gradients_(gradients), team_(team), tree_(gradients, team) {}

  void begin_step(const MicroBatches& share) override {
    share_ = share;
    begun_ = tree_.begin(share);
  }
  std::span<float> fresh_gradients(int /*micro_batch*/) override { return begun_ ? tree_.leaf() : gradients_; }
  void gradients_ready(int /*micro_batch*/, ParameterRange /*range*/) override {}
  void micro_batch_done(int micro_batch) override {
    if (begun_ && micro_batch != share_.last - 1) tree_.take();
  }
  Result<ReduceReport> finish() override {
    BF_TRY(begun_);
    const trace::Scope scope(trace::Zone::kGradientSum, sum_work(gradients_.size()));
    const auto count = static_cast<long>(gradients_.size());
    if (team_ == nullptr) {
      fold({.begin = 0, .end = count});
    } else {
      team_->run([&](int member) { fold(split_work(count, member, team_->size())); });
    }
    return ReduceReport{};
  }

 private:
  void fold(WorkRange range) {
    in_blocks(range, [&](WorkRange block) {
      const std::span<float> sum = fold_subtrees(tree_.complete({.begin = block.begin, .end = block.end}));
      const std::span<float> to = gradients_.subspan(static_cast<std::size_t>(block.begin), sum.size());
      if (sum.data() != to.data()) std::ranges::copy(sum, to.begin());
    });
  }

  std::span<float> gradients_;
  ThreadTeam* team_;
  GradientTree tree_;
  MicroBatches share_{};
  Status begun_{};
};

}  // namespace

std::unique_ptr<GradientReducer> make_local_reducer(std::span<float> gradients, bool deterministic, ThreadTeam* team) {
  if (!deterministic) return std::make_unique<AccumulatingReducer>(gradients);
  return std::make_unique<LocalTreeReducer>(gradients, team);
}

Result<std::unique_ptr<GradientReducer>> make_reducer(const ReducerOptions& options) {
  const bool packs = options.compression != GradientCompression::kOff;
  if (options.deterministic && packs) {
    return make_error(ErrorCode::kInvalidArgument,
                      "compression = {} and deterministic = true: packed sums depend on the number of ranks",
                      gradient_compression_name(options.compression));
  }
  if (options.shards != nullptr && packs) {
    return make_error(ErrorCode::kInvalidArgument,
                      "compression = {}: gradients whose sums stay with their owners travel as they are",
                      gradient_compression_name(options.compression));
  }
  if (options.bucket_bytes < 64) {
    return make_error(ErrorCode::kInvalidArgument, "bucket_bytes = {}, the smallest bucket has 64",
                      options.bucket_bytes);
  }
  if (options.collectives == nullptr || options.collectives->size() == 1) {
    return make_local_reducer(options.gradients, options.deterministic, options.team);
  }
  if (options.shards != nullptr) return make_sharded_reducer(options);
  std::unique_ptr<BucketSum> sum;
  if (options.deterministic) {
    sum = make_canonical_sum(*options.collectives, options.gradients, {.team = options.team});
  } else if (packs) {
    BF_ASSIGN_OR_RETURN(
        sum,
        make_compressed_sum(*options.collectives, options.gradients,
                            {.method = options.compression, .bucket_bytes = options.bucket_bytes, .isa = options.isa}));
  } else {
    sum = make_plain_sum(*options.collectives, options.gradients);
  }
  BF_ASSIGN_OR_RETURN(auto queue, CollectiveQueue::create());
  return std::make_unique<BucketReducer>(
      *options.collectives, options.gradients,
      backward_buckets(static_cast<std::int64_t>(options.gradients.size()), options.bucket_bytes), std::move(sum),
      std::move(queue));
}

}  // namespace butterfly
