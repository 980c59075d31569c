#include "butterfly/infer/scheduler/replicated_scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "butterfly/infer/scheduler/fake_pipeline_test.h"

namespace butterfly {
namespace {

/// A pipeline of which a test says when it fails; then it tells that it waits, and is back when the test says so.
class FailingPipeline final : public Pipeline {
 public:
  Status submit(Step step) override {
    rows += step.batch.rows();
    return inner.submit(std::move(step));
  }
  Result<Step> next() override {
    if (fail.exchange(false)) return make_error(ErrorCode::kUnavailable, "a node is gone");
    return inner.next();
  }
  Status recover(const Error& cause) override {
    if (waiting) waiting();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return back_; });
    if (!recovers) return tl::unexpected(cause);
    if (working) working();
    return inner.recover(cause);
  }
  int depth() const override { return 1; }

  void come_back() {
    const std::lock_guard lock(mutex_);
    back_ = true;
    changed_.notify_all();
  }

  FakePipeline inner;  // of the thread that computes
  std::atomic<std::int64_t> rows{0};
  std::atomic<bool> fail{false};
  bool recovers = true;
  std::function<void()> waiting, working;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool back_ = false;
};

/// Texts on their way, by several threads.
class Collected {
 public:
  explicit Collected(std::size_t count) : texts_(count), results_(count) {}

  RequestObserver observer(std::size_t index) {
    return {.token =
                [this, index](const TokenEvent& event) {
                  const std::lock_guard lock(mutex_);
                  texts_[index].push_back(event.sampled.token);
                  changed_.notify_all();
                },
            .done =
                [this, index](Result<Generation> generation) {
                  const std::lock_guard lock(mutex_);
                  EXPECT_FALSE(results_[index]) << "told twice";
                  results_[index] = std::move(generation);
                  changed_.notify_all();
                }};
  }

  bool wait(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }
  bool wait_for_tokens(std::size_t each) {
    return wait([&] { return std::ranges::all_of(texts_, [&](const auto& text) { return text.size() >= each; }); });
  }
  bool wait_for_all() {
    return wait([&] { return std::ranges::all_of(results_, [](const auto& result) { return result.has_value(); }); });
  }

  const std::vector<TokenId>& streamed(std::size_t index) const { return texts_[index]; }
  const Result<Generation>& result(std::size_t index) const { return *results_[index]; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TokenId>> texts_;
  std::vector<std::optional<Result<Generation>>> results_;
};

class ReplicatedSchedulerTest : public SchedulerTest {
 protected:
  void start(int replicas) {
    std::vector<ModelReplica> models;
    for (int i = 0; i < replicas; ++i) {
      pipelines.push_back(std::make_unique<FailingPipeline>());
      pipelines.back()->inner.step_time = std::chrono::microseconds(500);
      models.push_back({pipelines.back().get(), {.context = 100'000, .keep_prefixes = true}});
    }
    scheduler = std::make_unique<ReplicatedScheduler>(models, tokenizer_);
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      pipelines[i]->waiting = [this, i] { scheduler->set_up(i, false); };
      pipelines[i]->working = [this, i] { scheduler->set_up(i, true); };
    }
    thread = std::jthread([this](const std::stop_token& stop) { EXPECT_TRUE(scheduler->run(stop)); });
  }
  void TearDown() override {
    for (const auto& pipeline : pipelines) pipeline->come_back();
    thread = {};
  }
  std::vector<Request> submit(Collected& texts, int count, int tokens) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(request_of(i, 20 + i, tokens));
      const auto id = scheduler->submit({.request = requests.back()}, texts.observer(static_cast<std::size_t>(i)));
      EXPECT_TRUE(id);
      ids.push_back(id.value_or(0));
    }
    return requests;
  }

  std::vector<std::unique_ptr<FailingPipeline>> pipelines;
  std::unique_ptr<ReplicatedScheduler> scheduler;
  std::vector<ReplicatedScheduler::Id> ids;
  std::jthread thread;  // last
};

TEST_F(ReplicatedSchedulerTest, EachReplicaHasItsShare) {
  start(3);
  Collected texts(9);
  const auto requests = submit(texts, 9, 30);
  ASSERT_TRUE(texts.wait_for_all());
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(texts.result(i)->tokens, alone(requests[i]));
  for (const auto& pipeline : pipelines) EXPECT_GT(pipeline->rows, 3 * 40);
  EXPECT_EQ(scheduler->stats().finished, 9u);
  EXPECT_EQ(scheduler->stats().generated_tokens, 9u * 30);
}

TEST_F(ReplicatedSchedulerTest, TextsOfALostReplicaGoOnWhereTheyWere) {
  start(2);
  Collected texts(6);
  const auto requests = submit(texts, 6, 300);
  ASSERT_TRUE(texts.wait_for_tokens(20));
  const std::int64_t before = pipelines[1]->rows;
  pipelines[0]->fail = true;  // and stays away
  ASSERT_TRUE(texts.wait_for_all());
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(texts.result(i)->tokens, alone(requests[i]));
    EXPECT_EQ(texts.streamed(i), texts.result(i)->tokens) << "each token is told once";
  }
  // Prompts and what was written are read again, in long steps; nothing is drawn again.
  EXPECT_GT(pipelines[1]->rows, before);
  EXPECT_EQ(scheduler->stats().generated_tokens, 6u * 300);
  EXPECT_TRUE(scheduler->any_up());
  // What comes now goes to the one that is left.
  Collected later(2);
  submit(later, 2, 10);
  ASSERT_TRUE(later.wait_for_all());
}

TEST_F(ReplicatedSchedulerTest, AReplicaThatComesBackComputesAgain) {
  start(2);
  Collected texts(2);
  submit(texts, 2, 100);
  ASSERT_TRUE(texts.wait_for_tokens(5));
  pipelines[0]->fail = true;
  ASSERT_TRUE(texts.wait_for_all());
  const std::int64_t before = pipelines[0]->rows;
  pipelines[0]->come_back();
  // Of two that are up, the one with less to do: soon each has some.
  for (int i = 0; i < 200 && pipelines[0]->rows == before; ++i) {
    Collected few(4);
    submit(few, 4, 5);
    ASSERT_TRUE(few.wait_for_all());
  }
  EXPECT_GT(pipelines[0]->rows, before);
}

TEST_F(ReplicatedSchedulerTest, WithNoReplicaLeftTextsEndWithTheError) {
  start(2);
  for (const auto& pipeline : pipelines) {
    pipeline->recovers = false;
    pipeline->come_back();
  }
  Collected texts(4);
  submit(texts, 4, 100'000);
  ASSERT_TRUE(texts.wait_for_tokens(5));
  for (const auto& pipeline : pipelines) pipeline->fail = true;
  ASSERT_TRUE(texts.wait_for_all());
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_FALSE(texts.result(i));
    EXPECT_EQ(texts.result(i).error().code, ErrorCode::kUnavailable);
  }
  EXPECT_FALSE(scheduler->any_up());
  // Counted by the next turn of those that compute.
  for (int i = 0; i < 1000 && scheduler->stats().running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(scheduler->stats().running, 0u);
}

TEST_F(ReplicatedSchedulerTest, TheSameBeginningGoesWhereItIsCached) {
  start(2);
  const Request request = request_of(1, 6 * kKvPageTokens, 2);
  for (int i = 0; i < 4; ++i) {
    Collected text(1);
    ASSERT_TRUE(scheduler->submit({.request = request}, text.observer(0)));
    ASSERT_TRUE(text.wait_for_all());
    EXPECT_EQ(text.result(0)->cached_tokens > 0, i > 0) << i;
  }
}

TEST_F(ReplicatedSchedulerTest, ATextIsCancelledWhereverItIs) {
  start(2);
  Collected texts(2);
  submit(texts, 2, 100'000);
  ASSERT_TRUE(texts.wait_for_tokens(5));
  pipelines[0]->fail = true;
  ASSERT_TRUE(texts.wait_for_tokens(500));
  for (const auto id : ids) scheduler->cancel(id);
  ASSERT_TRUE(texts.wait_for_all());
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(texts.result(i)->reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace butterfly
