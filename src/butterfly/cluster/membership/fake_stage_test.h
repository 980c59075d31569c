// A stage without a model, for the tests of the cluster: adds one to every byte.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "butterfly/cluster/membership/membership.h"
#include "butterfly/cluster/worker/worker_server.h"

namespace butterfly {

class FakeStage final : public WorkerDelegate {
 public:
  std::vector<WeightRequest> wanted{};  // fetched by load()
  std::function<Result<std::uint64_t>()> after_load{};
  std::function<Status()> before_join{};
  std::function<Status()> before_answer{};
  std::map<std::string, NamedBytes> weights{};
  std::optional<std::string> local_path{};
  std::vector<Assignment> assignments{};
  Assignment assignment{};  // the first of them
  std::atomic<int> loads{0}, unloads{0};
  std::atomic<std::uint32_t> prepared_epoch{0};

  Result<std::vector<std::uint64_t>> load(std::span<const Assignment> assigned, WeightFetcher& fetcher,
                                          std::stop_token /*stop*/) override {
    ++loads;
    assignments.assign(assigned.begin(), assigned.end());
    assignment = assigned.front();
    BF_ASSIGN_OR_RETURN(local_path, fetcher.local_path());
    std::uint64_t bytes = 0;
    BF_TRY(fetcher.fetch(wanted, [&](const std::string& name, NamedBytes weight) -> Status {
      bytes += weight.bytes.size();
      weights[name] = std::move(weight);
      return {};
    }));
    if (after_load) {
      BF_ASSIGN_OR_RETURN(bytes, after_load());
    }
    return std::vector<std::uint64_t>(assigned.size(), bytes);
  }

  Status prepare(std::span<const Assignment> assigned, WeightFetcher& fetcher, std::stop_token /*stop*/) override {
    prepared_epoch = assigned.front().epoch.value;
    return fetcher.fetch(wanted, [](const std::string&, NamedBytes) -> Status { return {}; });
  }

  Result<ExchangeTimes> join_group(const Assignment& assigned, Exchange& exchange) override {
    if (before_join) BF_TRY(before_join());
    BF_TRY(meet(exchange, 0));
    return ExchangeTimes{.one_row_s = 1e-6 * assigned.rank.value, .many_rows = 64, .many_rows_s = 1e-3};
  }

  Status serve(const Assignment& /*assigned*/, const StageLinks& links, std::stop_token stop) override {
    while (!stop.stop_requested()) {
      auto message = links.input->receive({}, after_ms(100));
      if (!message && message.error().code == ErrorCode::kTimeout) continue;
      Status status = message ? answer(std::move(*message), links) : unexpected(message.error());
      if (!status) return status.error().code == ErrorCode::kUnavailable ? Status{} : status;
    }
    return {};
  }

  void unload() override {
    weights.clear();
    ++unloads;
  }

  static constexpr std::size_t kExchangedBytes = 100;  // between every two members of a group, for each message

 private:
  Status answer(Message message, const StageLinks& links) const {
    if (before_answer) BF_TRY(before_answer());
    BF_TRY(links.hand_on(message));
    if (links.exchange != nullptr) BF_TRY(meet(*links.exchange, message.tag));
    if (links.output == nullptr) return {};
    for (std::byte& byte : message.payload.bytes) byte = std::byte(std::to_integer<int>(byte) + 1);
    return links.output->send(std::move(message), after_ms(10'000));
  }

  /// Each member tells each other which message it works on, and who it is.
  static Status meet(Exchange& exchange, std::uint64_t tag) {
    const auto word = [&](int member) { return std::vector<std::byte>(kExchangedBytes, std::byte(tag * 8 + member)); };
    const std::vector<std::byte> mine = word(exchange.rank());
    std::vector<std::vector<std::byte>> heard(static_cast<std::size_t>(exchange.size()));
    std::vector<ByteSpan> to(heard.size(), mine);
    std::vector<MutableByteSpan> from;
    for (auto& one : heard) {
      one.resize(kExchangedBytes);
      from.emplace_back(one);
    }
    BF_TRY(exchange.exchange(to, from));
    for (int member = 0; member < exchange.size(); ++member) {
      if (member == exchange.rank() || heard[static_cast<std::size_t>(member)] == word(member)) continue;
      return make_error(ErrorCode::kBadData, "member {} works on something else", member);
    }
    return {};
  }

  static Status unexpected(const Error& error) { return tl::unexpected(error); }
};

/// A worker whose server runs on a thread of the test.
class ThreadWorker {
 public:
  explicit ThreadWorker(WorkerOptions options = {.drain_timeout = std::chrono::milliseconds(50)}) {
    server_ = WorkerServer::create(std::move(options), stage).value();
    thread_ = std::jthread([this](const std::stop_token& stop) { status = server_->run(stop); });
  }
  ~ThreadWorker() { stop(); }
  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  std::string address() const { return server_->address(); }

  FakeStage stage;
  Status status;

 private:
  std::unique_ptr<WorkerServer> server_;
  std::jthread thread_;
};

/// A membership and its first epoch as one session, which lets the workers go when it stops.
class OneEpoch final : public ClusterSession {
 public:
  explicit OneEpoch(std::unique_ptr<Membership> membership)
      : membership_(std::move(membership)), session_(membership_->next_epoch(membership_->members())) {}
  ~OneEpoch() override { stop(); }

  const std::vector<NodeDescriptor>& nodes() const override { return session_->nodes(); }
  Result<PipelineChannels> start(const StartRequest& request, Deadline deadline) override {
    return session_->start(request, deadline);
  }
  std::optional<Error> failed() const override { return session_->failed(); }
  Result<DataTraffic> data_traffic(Deadline deadline) override { return session_->data_traffic(deadline); }
  void stop() override {
    session_->stop();
    membership_.reset();
  }

 private:
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ClusterSession> session_;  // gone before the membership
};

inline Result<std::unique_ptr<ClusterSession>> connect_cluster(const std::vector<std::string>& addresses,
                                                               Deadline deadline, const ClusterOptions& options = {}) {
  BF_ASSIGN_OR_RETURN(auto membership, Membership::create({.workers = addresses, .cluster = options}, deadline));
  return std::make_unique<OneEpoch>(std::move(membership));
}

/// One layer for each of `stages` nodes, in order; the rest stand by.
inline Plan fake_plan(int stages) {
  Plan plan;
  for (int i = 0; i < stages; ++i) {
    const StageAssignment work{.first_layer = i, .last_layer = i + 1, .embedding = i == 0, .head = i + 1 == stages};
    plan.shares.push_back({.node = i, .work = work});
  }
  return plan;
}

/// One layer for each of these nodes, which may be named again: a plan of scattered layers.
inline Plan fake_scattered_plan(const std::vector<int>& nodes) {
  Plan plan = fake_plan(static_cast<int>(nodes.size()));
  for (std::size_t i = 0; i < nodes.size(); ++i) plan.shares[i].node = nodes[i];
  return plan;
}

/// One layer for each group of the given size, in order, the slices of each divided as unevenly as they can be.
inline Plan fake_group_plan(const std::vector<int>& groups) {
  Plan plan;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const int layer = static_cast<int>(g);
    for (int member = 0; member < groups[g]; ++member) {
      const int last = member + 1 == groups[g] ? kReductionSlices : member + 1;
      plan.shares.push_back({.node = static_cast<int>(plan.shares.size()),
                             .work = {.first_layer = layer,
                                      .last_layer = layer + 1,
                                      .embedding = g == 0,
                                      .head = g + 1 == groups.size(),
                                      .slices = {member, last}}});
    }
  }
  return plan;
}

/// `bytes` bytes that depend on the name.
inline NamedBytes fake_weight(const std::string& name, std::size_t bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  for (std::size_t i = 0; i < bytes; ++i) (*owner)[i] = std::byte(name.size() + 31 * i);
  return {.type = 3, .rows = 1, .cols = static_cast<std::int64_t>(bytes), .bytes = *owner, .owner = owner};
}

inline StartRequest fake_request(Plan plan) {
  return {.plan = std::move(plan),
          .model = {.hash = std::string(64, '0'), .bytes = 1, .name = "fake"},
          .config = *named_config("butterfly-demo"),
          .settings = {.kv_type = DType::kF32, .wire_type = DType::kQ8_0, .compression = Compression::kLz4},
          .weights = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
            return fake_weight(name, 1000);
          }};
}

inline StartRequest fake_request(int stages) {
  return fake_request(fake_plan(stages));
}

/// Sends `count` messages of growing size and checks that every stage added one, in order.
inline Status pump(PipelineChannels& ends, int stages, int count) {
  for (int i = 0; i < count; ++i) {
    BF_ASSIGN_OR_RETURN(Payload payload, allocate_payload(static_cast<std::uint64_t>(1 + 100 * i)));
    for (std::byte& byte : payload.bytes) byte = std::byte(i);
    BF_TRY(ends.input->send({.tag = static_cast<std::uint64_t>(i), .payload = payload}, after_ms(10'000)));
    BF_ASSIGN_OR_RETURN(const Message answer, ends.output->receive({}, after_ms(10'000)));
    if (answer.tag != static_cast<std::uint64_t>(i) ||
        answer.payload.bytes.size() != 1 + 100u * static_cast<unsigned>(i)) {
      return make_error(ErrorCode::kBadData, "answer {} came with {} bytes where {} was due", answer.tag,
                        answer.payload.bytes.size(), i);
    }
    for (const std::byte byte : answer.payload.bytes) {
      if (byte != std::byte(i + stages)) return make_error(ErrorCode::kBadData, "a byte was not raised by {}", stages);
    }
  }
  return {};
}

inline constexpr std::int64_t kLongMs = 20'000;  // what a slow machine may need

inline std::unique_ptr<Membership> membership_of(const std::vector<std::string>& workers,
                                                 const std::string& join_at = {}) {
  auto made = Membership::create({.workers = workers, .join_at = join_at}, after_ms(kLongMs));
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

/// Waits until this many members can be given work.
inline testing::AssertionResult has_members(const Membership& membership, std::size_t count) {
  const Deadline deadline = after_ms(kLongMs);
  for (;;) {
    const Members members = membership.members();
    if (members.nodes.size() == count) return testing::AssertionSuccess();
    if (!membership.wait_for_change(members.version, deadline, {})) {
      return testing::AssertionFailure() << members.nodes.size() << " members, expected " << count;
    }
  }
}

}  // namespace butterfly
