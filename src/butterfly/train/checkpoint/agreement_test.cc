#include "butterfly/train/checkpoint/agreement.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace butterfly {
namespace {

/// Runs work(rank, its collectives) on a thread for each rank.
void on_ranks(int ranks, const std::function<void(std::size_t, Collectives*)>& work) {
  const auto members = make_inproc_collectives(ranks);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] { work(rank, members[rank].get()); });
  }
}

/// A rank's state after `step` steps.
struct Held {
  explicit Held(std::int64_t step)
      : weights(100, static_cast<float>(step)),
        moment(40, static_cast<float>(10 * step)),
        state{.step = step,
              .updates = step,
              .guard = std::vector<double>(static_cast<std::size_t>(step) % 4, 1.0 / 3.0)} {}
  std::vector<RunArray> arrays() { return {{"weights", weights}, {"moment", moment}}; }
  std::vector<float> weights, moment;
  RunState state;
};

TEST(Agreement, ThoseBehindReceiveTheLastStep) {
  on_ranks(3, [](std::size_t rank, Collectives* collectives) {
    Held held(rank == 1 ? 7 : 6);
    ASSERT_TRUE(agree_on_last_step(collectives, held.state, held.arrays()));
    const Held newest(7);
    EXPECT_EQ(held.state.step, 7);
    EXPECT_EQ(held.state.updates, 7);
    EXPECT_EQ(held.state.guard, newest.state.guard);
    EXPECT_EQ(held.weights, newest.weights);
    EXPECT_EQ(held.moment, newest.moment);
  });
}

TEST(Agreement, RanksOfOneStepStayAsTheyAre) {
  on_ranks(2, [](std::size_t, Collectives* collectives) {
    Held held(5);
    const std::uint64_t sent = collectives->stats().bytes_sent;
    ASSERT_TRUE(agree_on_last_step(collectives, held.state, held.arrays()));
    EXPECT_LT(collectives->stats().bytes_sent - sent, 100u) << "weights need not travel";
  });
  Held alone(5);
  EXPECT_TRUE(agree_on_last_step(nullptr, alone.state, {}));
}

TEST(Agreement, ARankOfAnotherRunIsRefusedEverywhere) {
  on_ranks(3, [](std::size_t rank, Collectives* collectives) {
    const Status status = check_same_configuration(collectives, std::string(64, rank == 2 ? 'b' : 'a'));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find("rank 2"), std::string::npos) << status.error().message;
  });
  on_ranks(2, [](std::size_t, Collectives* collectives) {
    EXPECT_TRUE(check_same_configuration(collectives, std::string(64, 'a')));
  });
}

/// Two arrays, as codecs of two buckets have them.
using Residual = std::vector<std::vector<float>>;

Residual residual(float value) {
  return {std::vector<float>(50, value), std::vector<float>(30, 10 * value)};
}
Residual residual_of(std::size_t rank) {
  return residual(static_cast<float>(rank + 1));
}
std::vector<std::span<float>> spans_of(Residual& arrays) {
  return {arrays.begin(), arrays.end()};
}

/// The residuals of `ranks` ranks, as rank 0 saves them.
Residuals gathered(int ranks) {
  Residuals all;
  on_ranks(ranks, [&](std::size_t rank, Collectives* collectives) {
    Residual mine = residual_of(rank);
    auto residuals = gather_residuals(collectives, spans_of(mine));
    ASSERT_TRUE(residuals);
    EXPECT_EQ(residuals->size(), rank == 0 ? static_cast<std::size_t>(collectives->size()) : 0u);
    if (rank == 0) all = std::move(*residuals);
  });
  return all;
}

/// The residuals of `ranks` ranks after rank 0 gave out `saved`.
std::vector<Residual> scattered(int ranks, Residuals saved) {
  std::vector<Residual> all(static_cast<std::size_t>(ranks), residual(0));
  on_ranks(ranks, [&](std::size_t rank, Collectives* collectives) {
    const Status status =
        scatter_residuals(collectives, rank == 0 ? std::move(saved) : Residuals(), spans_of(all[rank]));
    EXPECT_TRUE(status) << status.error().message;
  });
  return all;
}

TEST(Agreement, ResidualsReturnToTheirRanks) {
  const auto all = scattered(3, gathered(3));
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank], residual_of(rank));
}

TEST(Agreement, WithAnotherNumberOfRanksNothingResidualIsLost) {
  for (const int ranks : {1, 2, 4}) {
    const auto all = scattered(ranks, gathered(3));
    EXPECT_EQ(all[0], residual(1.0f + 2.0f + 3.0f));
    for (std::size_t rank = 1; rank < all.size(); ++rank) EXPECT_EQ(all[rank], residual(0));
  }
}

// Fails when a checkpoint's residuals are copied into arrays that they do not fit.
TEST(Agreement, ResidualsOfOtherCodecsAreRefused) {
  const auto give_out = [](Residual mine) { return scatter_residuals(nullptr, gathered(1), spans_of(mine)); };
  EXPECT_TRUE(give_out(residual(0)));
  for (const Residual& other :
       {Residual{std::vector<float>(50)}, Residual{std::vector<float>(50), std::vector<float>(29)}}) {
    const Status status = give_out(other);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kBadData);
  }
}

TEST(Agreement, TextsComeInRankOrder) {
  on_ranks(4, [](std::size_t rank, Collectives* collectives) {
    const auto texts = gather_texts(collectives, std::string(3, static_cast<char>('a' + rank)));
    ASSERT_TRUE(texts);
    EXPECT_EQ(*texts, (std::vector<std::string>{"aaa", "bbb", "ccc", "ddd"}));
  });
  EXPECT_EQ(*gather_texts(nullptr, "x"), std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace butterfly
