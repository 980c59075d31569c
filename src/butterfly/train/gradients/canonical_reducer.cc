#include "butterfly/train/gradients/canonical_reducer.h"

#include <algorithm>
#include <cstring>

#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/sharded_reducer.h"

namespace butterfly {
namespace {

std::uint64_t bytes_of(std::size_t elements) {
  return elements * sizeof(float);
}

class CanonicalSum final : public BucketSum {
 public:
  CanonicalSum(Collectives& collectives, std::span<float> gradients, const CanonicalSumOptions& options)
      : collectives_(collectives),
        members_(static_cast<std::size_t>(collectives.size())),
        me_(static_cast<std::size_t>(collectives.rank())),
        gradients_(gradients),
        shards_(options.shards),
        tree_(gradients, options.team) {}

  Status begin_step(const MicroBatches& share) override {
    share_ = share;
    return tree_.begin(share);
  }
  std::span<float> leaf() override { return tree_.leaf(); }
  void micro_batch_done() override { tree_.take(); }
  Status begin_exchange(ReduceReport& report) override;
  Status reduce(std::size_t index, ParameterRange bucket, ReduceReport& report) override;

 private:
  struct Bucket {
    std::size_t index = 0;  // in the order of the backward pass
    ParameterRange range{};
  };
  std::span<float> part(const Bucket& bucket, std::size_t member) const {
    const auto rank = static_cast<int>(member);
    const ParameterRange range = shards_ == nullptr ? part_of(bucket.range, rank, collectives_.size())
                                                    : shards_->part(shards_->buckets().size() - 1 - bucket.index, rank);
    return gradients_.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }
  Status exchange(const Bucket& bucket, const std::vector<SubtreeSum>& own);

  Collectives& collectives_;
  const std::size_t members_, me_;
  std::span<float> gradients_;
  const ShardMap* shards_;
  GradientTree tree_;
  MicroBatches share_{};
  std::vector<std::vector<Subtree>> subtrees_;  // of each member
  std::vector<float> received_;                 // my part of each other member's subtrees, in this order
};

/// Who holds which leaves; every rank finds the same. Errors: kProtocol where they do not make up the step.
Status CanonicalSum::begin_exchange(ReduceReport& report) {
  std::vector<MicroBatches> shares(members_);
  shares[me_] = share_;
  std::vector<MutableByteSpan> parts;
  for (MicroBatches& share : shares) parts.push_back(std::as_writable_bytes(std::span(&share, 1)));
  BF_TRY(collectives_.all_gather(parts));
  report.formula_bytes += (members_ - 1) * sizeof(MicroBatches);
  subtrees_.clear();
  int next = 0;
  for (std::size_t member = 0; member < members_; ++member) {
    const MicroBatches& share = shares[member];
    if (share.first != next || share.last <= share.first || share.last > share_.total || share.total != share_.total) {
      return make_error(ErrorCode::kProtocol,
                        "rank {} computes micro-batches [{}, {}) of {} where [{}, ...) of {} was due", member,
                        share.first, share.last, share.total, next, share_.total);
    }
    next = share.last;
    subtrees_.push_back(maximal_subtrees(share.first, share.last));
  }
  if (next == share_.total) return {};
  return make_error(ErrorCode::kProtocol, "all ranks compute {} micro-batches of a step of {}", next, share_.total);
}

Status CanonicalSum::exchange(const Bucket& bucket, const std::vector<SubtreeSum>& own) {
  std::size_t rounds = 0;
  for (const auto& subtrees : subtrees_) rounds = std::max(rounds, subtrees.size());
  const std::size_t mine = part(bucket, me_).size();
  std::size_t others = 0;
  for (const auto& subtrees : subtrees_) others += subtrees.size();
  received_.resize(std::max(received_.size(), (others - own.size()) * mine));
  std::vector<std::size_t> begin(members_);  // of a member's subtrees in received_
  for (std::size_t member = 1; member < members_; ++member) {
    const std::size_t before = member - 1;
    begin[member] = begin[before] + (before == me_ ? 0 : subtrees_[before].size() * mine);
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<ByteSpan> to(members_);
    std::vector<MutableByteSpan> from(members_);
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == me_) continue;
      if (round < own.size()) {
        const std::span<const float> wanted = part(bucket, member);
        const auto offset =
            static_cast<std::size_t>(wanted.data() - gradients_.data()) - static_cast<std::size_t>(bucket.range.begin);
        to[member] = std::as_bytes(own[round].values.subspan(offset, wanted.size()));
      }
      if (round < subtrees_[member].size()) {
        from[member] = std::as_writable_bytes(std::span(received_).subspan(begin[member] + round * mine, mine));
      }
    }
    BF_TRY(collectives_.all_to_all(to, from));
  }
  return {};
}

Status CanonicalSum::reduce(std::size_t index, ParameterRange range, ReduceReport& report) {
  const Bucket bucket{.index = index, .range = range};
  const std::vector<SubtreeSum> own = tree_.complete(range);
  BF_TRY(exchange(bucket, own));
  const std::span<float> mine = part(bucket, me_);
  const auto offset = static_cast<std::size_t>(mine.data() - gradients_.data()) - static_cast<std::size_t>(range.begin);
  std::vector<SubtreeSum> sums;
  std::size_t next = 0;
  for (std::size_t member = 0; member < members_; ++member) {
    for (std::size_t i = 0; i < subtrees_[member].size(); ++i) {
      const std::span<float> values =
          member == me_ ? own[i].values.subspan(offset, mine.size()) : std::span(received_).subspan(next, mine.size());
      if (member != me_) next += mine.size();
      sums.push_back({.subtree = subtrees_[member][i], .values = values});
    }
  }
  {
    const trace::Scope scope(trace::Zone::kGradientSum, sum_work(mine.size() * sums.size()));
    const std::span<float> sum = fold_subtrees(sums);
    if (sum.data() != mine.data()) std::ranges::copy(sum, mine.begin());
  }

  std::vector<MutableByteSpan> parts;
  std::uint64_t others = 0;
  for (std::size_t member = 0; member < members_; ++member) {
    parts.push_back(std::as_writable_bytes(part(bucket, member)));
    if (member != me_) others += parts.back().size();
  }
  const std::uint64_t gathered = shards_ == nullptr ? (members_ - 1) * bytes_of(mine.size()) : 0;
  const std::uint64_t bytes = own.size() * others + gathered;
  report.formula_bytes += bytes;
  report.uncompressed_bytes += bytes;
  ++report.buckets[static_cast<std::size_t>(GradientCompression::kOff)];
  if (shards_ == nullptr) return collectives_.all_gather(parts);
  return send_to_mirrors(*shards_, collectives_, shards_->buckets().size() - 1 - index, gradients_, report);
}

}  // namespace

std::unique_ptr<BucketSum> make_canonical_sum(Collectives& collectives, std::span<float> gradients,
                                              const CanonicalSumOptions& options) {
  return std::make_unique<CanonicalSum>(collectives, gradients, options);
}

}  // namespace butterfly
