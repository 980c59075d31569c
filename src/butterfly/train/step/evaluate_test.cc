#include "butterfly/train/step/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

/// Validation windows of which the last has few targets.
class Windows final : public Dataset {
 public:
  DatasetStats stats() const override { return {}; }
  int vocab() const override { return 16; }
  void sequence(std::int64_t, int, std::span<TokenId>, std::span<TokenId>) const override {}
  std::int64_t validation_windows(int) const override { return windows; }
  void validation_window(std::int64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = TokenId(static_cast<std::int32_t>((static_cast<std::size_t>(window) + i) % 16));
      targets[i] = window + 1 == windows && i > 2 ? TokenId(-1) : tokens[i];
    }
  }
  std::int64_t windows = 7;
};

TEST(Evaluate, IsTheMeanOverEveryTarget) {
  const RunParts parts = std::move(*make_run_parts(tiny_run(), {}));
  Windows data;
  double losses = 0.0;
  const std::size_t seq = 16;
  for (std::int64_t window = 0; window < data.windows; ++window) {
    // One window at a time beside one without targets.
    std::vector<TokenId> tokens(2 * seq, TokenId(0)), targets(2 * seq, TokenId(-1));
    data.validation_window(window, std::span(tokens).first(seq), std::span(targets).first(seq));
    losses += *parts.transformer->evaluate(tokens, targets);
  }
  const auto loss = validation_loss(*parts.transformer, data, nullptr);
  ASSERT_TRUE(loss);
  EXPECT_NEAR(*loss, losses / (6 * 16 + 3), 1e-6);
}

TEST(Evaluate, IsTheSameOnEveryRankAndForAnyNumberOfThem) {
  const RunParts parts = std::move(*make_run_parts(tiny_run(), {}));
  const Windows data;
  const double alone = *validation_loss(*parts.transformer, data, nullptr);
  for (const int ranks : {2, 3, 5}) {
    const auto members = make_inproc_collectives(ranks);
    std::vector<std::jthread> threads;
    for (const auto& member : members) {
      threads.emplace_back([&, collectives = member.get()] {
        const RunParts mine = std::move(*make_run_parts(tiny_run(), {}));
        const auto loss = validation_loss(*mine.transformer, data, collectives);
        ASSERT_TRUE(loss) << loss.error().message;
        EXPECT_EQ(*loss, alone);
      });
    }
  }
}

TEST(Evaluate, IsZeroWithoutWindows) {
  const RunParts parts = std::move(*make_run_parts(tiny_run(), {}));
  Windows data;
  data.windows = 0;
  EXPECT_EQ(*validation_loss(*parts.transformer, data, nullptr), 0.0);
}

}  // namespace
}  // namespace butterfly
