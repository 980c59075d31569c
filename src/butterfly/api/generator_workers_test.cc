#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/cluster/worker/worker_server.h"
#include "butterfly/generator.h"
#include "butterfly/stage/stage_host.h"

namespace butterfly {
namespace {

const std::string kDemoModel = BUTTERFLY_SOURCE_DIR "/models/demo.gguf";

/// A worker whose server runs on a thread of the test; stop() takes it away.
class HostWorker {
 public:
  explicit HostWorker(const std::string& listen = "127.0.0.1:0") : host_({.threads = 1}) {
    WorkerOptions options{.drain_timeout = std::chrono::milliseconds(50)};
    options.listen = listen;
    server_ = WorkerServer::create(std::move(options), host_).value();
    address_ = server_->address();
    thread_ = std::jthread([this](const std::stop_token& stop) { static_cast<void>(server_->run(stop)); });
  }
  ~HostWorker() { stop(); }
  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  const std::string& address() const { return address_; }

 private:
  StageHost host_;
  std::unique_ptr<WorkerServer> server_;
  std::string address_;
  std::jthread thread_;
};

class GeneratorWorkersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kDemoModel)) GTEST_SKIP() << "no demo model at " << kDemoModel;
    auto alone = Generator::load(kDemoModel, {.threads = 1});
    ASSERT_TRUE(alone) << alone.error().message;
    expected_ = alone->generate("The king", kText)->text;
  }
  /// Records what happens; called from the generator's threads, one at a time.
  std::function<void(const GeneratorEvent&)> recorder() {
    return [this](const GeneratorEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
    };
  }
  int count(GeneratorEvent::Kind kind, const std::string& node = {}) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const GeneratorEvent& event : events_) found += event.kind == kind && event.node == node ? 1 : 0;
    return found;
  }

  static inline const TextOptions kText{.tokens_max = 60, .ignore_end = true};
  std::string expected_;
  std::mutex mutex_;
  std::vector<GeneratorEvent> events_;
};

TEST_F(GeneratorWorkersTest, AWorkerThatGoesIsReportedAndTheTextIsTheSame) {
  HostWorker a;
  HostWorker b;
  auto generator = Generator::load(kDemoModel, {.workers = {a.address(), b.address()}, .event = recorder()});
  ASSERT_TRUE(generator) << generator.error().message;
  EXPECT_EQ(generator->nodes().healthy().size(), 2u);
  EXPECT_EQ(generator->nodes().find(a.address())->address, a.address());
  bool stopped = false;
  const auto text = generator->generate("The king", kText, [&](std::string_view) {
    if (!std::exchange(stopped, true)) b.stop();
  });
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(text->text, expected_);
  EXPECT_EQ(count(GeneratorEvent::Kind::kJoined, a.address()), 1);
  EXPECT_EQ(count(GeneratorEvent::Kind::kEpoch), 2);
  EXPECT_EQ(generator->balance().shares.size(), 1u);
  EXPECT_EQ(generator->balance().shares[0].node_id, a.address());
}

// Fails when a generator that has lost all its workers cannot be used again.
TEST_F(GeneratorWorkersTest, AfterAFailureTheNextCallTriesTheWorkersThatThereAreThen) {
  std::optional<HostWorker> worker(std::in_place);
  const std::string address = worker->address();
  auto generator = Generator::load(
      kDemoModel, {.workers = {address}, .recover_within = std::chrono::milliseconds(300), .event = recorder()});
  ASSERT_TRUE(generator) << generator.error().message;
  EXPECT_EQ(generator->generate("The king", kText)->text, expected_);
  worker.reset();
  const auto lost = generator->generate("The king", kText);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(count(GeneratorEvent::Kind::kWaiting), 1);
  EXPECT_FALSE(generator->nodes().is_healthy(address));
  EXPECT_TRUE(generator->balance().shares.empty());
  EXPECT_FALSE(generator->generate("The king", kText));
  worker.emplace(address);
  Result<GeneratedText> again = generator->generate("The king", kText);
  for (int i = 0; i < 20 && !again; ++i) again = generator->generate("The king", kText);  // it is dialled meanwhile
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->text, expected_);
}

// Fails when a replica that has lost its worker ends a text that another could write.
TEST_F(GeneratorWorkersTest, ATextGoesOnAtAnotherReplicaWithoutAWordTwice) {
  HostWorker a;
  HostWorker b;
  auto generator = Generator::load(kDemoModel, {.workers = {a.address(), b.address()},
                                                .replicas = 2,
                                                .policy = BalancePolicy::kRoundRobin,
                                                .recover_within = std::chrono::milliseconds(1)});
  ASSERT_TRUE(generator) << generator.error().message;
  std::string streamed;
  bool stopped = false;
  const auto text = generator->generate("The king", kText, [&](std::string_view piece) {
    streamed += piece;
    if (!std::exchange(stopped, true)) a.stop();
  });
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(text->text, expected_);
  EXPECT_EQ(streamed, expected_);
}

}  // namespace
}  // namespace butterfly
