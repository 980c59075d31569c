// Ranks as threads of a test, each with gradients of its own and a reducer.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "butterfly/plan/cost/micro_batch_shares.h"
#include "butterfly/train/gradients/reducer.h"

namespace butterfly {

using Floats = std::vector<float>;

/// What the backward pass of one micro-batch adds: of very different sizes, so that the order of sums shows.
inline Floats leaf_gradients(std::size_t elements, int step, int micro_batch) {
  std::mt19937 random(static_cast<unsigned>(step * 1000 + micro_batch));
  std::normal_distribution<float> normal;
  Floats values(elements);
  for (float& value : values) value = normal(random) * static_cast<float>(1 << (random() % 12));
  return values;
}

struct TestReplica {
  Floats gradients;
  std::unique_ptr<GradientReducer> reducer;
  std::span<float> place{};  // where its backward passes add
};

class Replicas {
 public:
  Replicas(int ranks, std::size_t elements, ReducerOptions options) : collectives(make_inproc_collectives(ranks)) {
    for (auto& member : collectives) {
      TestReplica replica{.gradients = Floats(elements, 0.0F), .reducer = {}};
      options.gradients = replica.gradients;
      options.collectives = member.get();
      auto made = make_reducer(options);
      EXPECT_TRUE(made) << made.error().message;
      replica.reducer = std::move(*made);
      replicas.push_back(std::move(replica));
    }
  }

  /// Each rank takes a step over its micro-batches, its gradients final from the end to the beginning in pieces of 100;
  /// what they end as. Fails the test where a rank fails.
  std::vector<ReduceReport> step(int number, int total, const std::vector<double>& speeds = {}) {
    const auto shares = divide_micro_batches(total, static_cast<int>(replicas.size()), speeds).value();
    std::vector<ReduceReport> reports(replicas.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
      threads.emplace_back([&, rank] {
        auto report = take_step(replicas[rank], number, shares[rank]);
        ASSERT_TRUE(report) << "rank " << rank << ": " << report.error().message;
        reports[rank] = *report;
      });
    }
    return threads.clear(), reports;
  }

  static Result<ReduceReport> take_step(TestReplica& replica, int number, const MicroBatches& share) {
    std::ranges::fill(replica.gradients, std::numeric_limits<float>::quiet_NaN());  // of the step before
    replica.reducer->begin_step(share);
    for (int micro_batch = share.first; micro_batch < share.last; ++micro_batch) {
      backward(replica, number, micro_batch);
      replica.reducer->micro_batch_done(micro_batch);
    }
    return replica.reducer->finish();
  }

  static void backward(TestReplica& replica, int number, int micro_batch) {
    const std::span<float> fresh = replica.reducer->fresh_gradients(micro_batch);
    std::ranges::fill(fresh, 0.0F);
    if (!fresh.empty()) replica.place = fresh;
    const Floats leaf = leaf_gradients(replica.gradients.size(), number, micro_batch);
    for (auto end = static_cast<std::int64_t>(leaf.size()); end > 0;) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - 100);
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        replica.place[i] += leaf[i];
      }
      replica.reducer->gradients_ready(micro_batch, {.begin = begin, .end = end});
      end = begin;
    }
  }

  std::vector<std::unique_ptr<Collectives>> collectives;
  std::vector<TestReplica> replicas;
};

}  // namespace butterfly
