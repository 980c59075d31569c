#include "butterfly/train/gradients/gradient_tree.h"

#include <algorithm>
#include <bit>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

bool are_siblings(const Subtree& left, const Subtree& right) {
  return left.count == right.count && left.first % (2 * left.count) == 0 && right.first == left.first + left.count;
}

Subtree parent(const Subtree& left) {
  return {.first = left.first, .count = 2 * left.count};
}

/// The left one's sum and the right one's, into the right one: the last is where it is wanted.
void merge_last(std::vector<SubtreeSum>& stack, Subtree subtree) {
  add_to(stack.back().values, stack.end()[-2].values);
  stack.erase(stack.end() - 2);
  stack.back().subtree = subtree;
}

}  // namespace

std::vector<Subtree> maximal_subtrees(int first, int last) {
  std::vector<Subtree> subtrees;
  while (first < last) {
    const auto room = static_cast<int>(std::bit_floor(static_cast<unsigned>(last - first)));
    const int aligned = first == 0 ? room : first & -first;
    subtrees.push_back({.first = first, .count = std::min(room, aligned)});
    first += subtrees.back().count;
  }
  return subtrees;
}

std::size_t held_at_most(int first, int last) {
  std::size_t most = 0;
  for (int end = first + 1; end <= last; ++end) most = std::max(most, maximal_subtrees(first, end).size());
  return most;
}

trace::Work sum_work(std::size_t elements) {
  return {.number = 1, .bytes = 3 * elements * sizeof(float), .pass = trace::Pass::kWeightGradient};
}

void in_blocks(WorkRange range, const std::function<void(WorkRange)>& work) {
  constexpr long kBlockElements = 32 * 1024;
  for (; range.begin < range.end; range.begin += kBlockElements) {
    work({.begin = range.begin, .end = std::min(range.end, range.begin + kBlockElements)});
  }
}

void add_to(std::span<float> into, std::span<const float> from) {
  BF_CHECK(into.size() == from.size());
  float* __restrict sum = into.data();
  const float* __restrict add = from.data();
  for (std::size_t i = 0; i < from.size(); ++i) sum[i] += add[i];
}

std::span<float> fold_subtrees(const std::vector<SubtreeSum>& sums) {
  BF_CHECK(!sums.empty());
  std::vector<SubtreeSum> stack;
  for (const SubtreeSum& sum : sums) push_leaf(stack, sum);
  return fold_stack(stack);
}

void push_leaf(std::vector<SubtreeSum>& stack, const SubtreeSum& leaf) {
  stack.push_back(leaf);
  while (stack.size() > 1 && are_siblings(stack.end()[-2].subtree, stack.back().subtree)) {
    merge_last(stack, parent(stack.end()[-2].subtree));
  }
}

std::span<float> fold_stack(std::vector<SubtreeSum>& stack) {
  // The halves beyond the last leaf are empty.
  while (stack.size() > 1) merge_last(stack, stack.end()[-2].subtree);
  return stack.back().values;
}

void add_leaves(const std::vector<AlignedBuffer>& held, std::span<float> gradients, ParameterRange range,
                const std::vector<std::span<float>>& leaves, int first, LeavesLeft left) {
  const auto place_of = [&](std::size_t level) {
    auto* begin = reinterpret_cast<float*>(held[level].data()) + range.begin;
    return std::span(begin, static_cast<std::size_t>(range.size()));
  };
  std::vector<SubtreeSum> stack;
  for (const Subtree& subtree : maximal_subtrees(0, first)) {
    stack.push_back({.subtree = subtree, .values = place_of(stack.size())});
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    push_leaf(stack, {.subtree = {.first = first + static_cast<int>(i), .count = 1}, .values = leaves[i]});
  }
  if (left == LeavesLeft::kNone) {
    std::ranges::copy(fold_stack(stack), gradients.begin() + range.begin);
    return;
  }
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const std::span<float> place = place_of(i);
    if (stack[i].values.data() != place.data()) std::ranges::copy(stack[i].values, place.begin());
  }
}

Status GradientTree::begin(const MicroBatches& share) {
  BF_CHECK(share.first < share.last && share.last <= share.total, "a rank computes at least one micro-batch");
  if (share.first != share_.first || share.last != share_.last || subtrees_.empty()) {
    subtrees_ = maximal_subtrees(share.first, share.last);
    const std::size_t needed = held_at_most(share.first, share.last - 1);
    while (buffers_.size() < needed) {
      BF_ASSIGN_OR_RETURN(AlignedBuffer made, AlignedBuffer::create(gradients_.size_bytes()));
      buffers_.push_back(std::move(made));
      held_memory_.emplace_back(trace::Owner::kGradients, gradients_.size_bytes());
      parallel([&](WorkRange range) {  // what is of no parameter is added, too
        const std::span<float> zeros = buffer(buffers_.size() - 1);
        std::fill(zeros.begin() + range.begin, zeros.begin() + range.end, 0.0F);
      });
    }
    held_.reserve(needed);
  }
  share_ = share;
  next_ = share.first;
  held_.clear();
  return {};
}

std::span<float> GradientTree::buffer(std::size_t index) const {
  return {reinterpret_cast<float*>(buffers_[index].data()), gradients_.size()};
}

void GradientTree::parallel(const std::function<void(WorkRange)>& work) const {
  const auto count = static_cast<long>(gradients_.size());
  if (team_ == nullptr) return work({.begin = 0, .end = count});
  team_->run([&](int member) { work(split_work(count, member, team_->size())); });
}

bool GradientTree::completes_a_subtree() const {
  return !held_.empty() && are_siblings(held_.back(), {.first = next_, .count = 1});
}

std::span<float> GradientTree::leaf() const {
  return next_ == share_.last - 1 || completes_a_subtree() ? gradients_ : buffer(held_.size());
}

void GradientTree::take() {
  BF_CHECK(next_ < share_.last - 1, "the last micro-batch stays in the gradients");
  const bool completes = completes_a_subtree();
  Subtree subtree{.first = next_++, .count = 1};
  if (!completes) return held_.push_back(subtree);
  const trace::Scope scope(trace::Zone::kGradientSum, sum_work(gradients_.size()));
  // Into the held subtrees that it completes, each into the one before it.
  std::size_t end = held_.size();
  for (; end > 0 && are_siblings(held_[end - 1], subtree); --end) subtree = parent(held_[end - 1]);
  parallel([&](WorkRange range) {
    in_blocks(range, [&](WorkRange block) {
      const auto begin = static_cast<std::size_t>(block.begin);
      const auto size = static_cast<std::size_t>(block.end - block.begin);
      add_to(buffer(held_.size() - 1).subspan(begin, size), gradients_.subspan(begin, size));
      for (std::size_t i = held_.size() - 1; i > end; --i) {
        add_to(buffer(i - 1).subspan(begin, size), buffer(i).subspan(begin, size));
      }
    });
  });
  held_.resize(end + 1);
  held_.back() = subtree;
}

std::vector<SubtreeSum> GradientTree::complete(ParameterRange range) {
  BF_CHECK(next_ == share_.last - 1, "micro-batches are missing from the sum");
  const auto part = [&](std::span<float> all) {
    return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  };
  const std::span<float> last = part(gradients_);
  std::size_t end = held_.size();
  for (; end + 1 > subtrees_.size(); --end) add_to(last, part(buffer(end - 1)));
  std::vector<SubtreeSum> sums;
  for (std::size_t i = 0; i < end; ++i) sums.push_back({.subtree = held_[i], .values = part(buffer(i))});
  sums.push_back({.subtree = subtrees_.back(), .values = last});
  return sums;
}

}  // namespace butterfly
