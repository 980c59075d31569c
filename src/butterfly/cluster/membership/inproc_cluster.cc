// Nodes as threads: one for each node and one for each share, inproc channels between them, weights by direct call.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>

#include "butterfly/cluster/membership/check_start.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/cluster/membership/health.h"
#include "butterfly/cluster/worker/weight_transfer.h"
#include "butterfly/wire/channel/inproc.h"
#include "butterfly/wire/exchange/inproc_exchange.h"

namespace butterfly {
namespace {

class InprocCluster final : public ClusterSession {
 public:
  explicit InprocCluster(std::vector<InprocNode> nodes) : inproc_nodes_(std::move(nodes)) {
    for (const InprocNode& one : inproc_nodes_) nodes_.push_back(one.node);
  }
  ~InprocCluster() override { stop(); }

  const std::vector<NodeDescriptor>& nodes() const override { return nodes_; }
  std::optional<Error> failed() const override { return health_->failure(); }

  Result<PipelineChannels> start(const StartRequest& request, Deadline deadline) override {
    BF_TRY(check_start(request, nodes_.size(), started_));
    started_ = true;
    provider_ = request.weights;
    std::shared_ptr<Channel> output = build(request);
    for (const auto& node : working_) node->thread = std::jthread([this, &one = *node] { run(one); });
    BF_TRY(wait_until_ready(request, deadline));
    PipelineChannels ends{.input = make_pipeline_channel(input_, health_),
                          .output = make_pipeline_channel(std::move(output), health_),
                          .shares = std::vector<ReadyShare>(shares_.size())};
    std::lock_guard lock(mutex_);
    for (const auto& node : working_) {
      for (std::size_t i = 0; i < node->shares.size(); ++i) {
        ends.shares[node->shares[i]] = {.memory_bytes = node->memory_bytes[i], .times = node->exchange_times[i]};
      }
    }
    return ends;
  }

  Result<DataTraffic> data_traffic(Deadline /*deadline*/) override {
    DataTraffic traffic;
    if (input_) traffic.add(input_->stats());
    for (const auto& share : shares_) {
      if (share->output) traffic.add(share->output->stats());
    }
    return traffic;
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    health_->retire();
    {
      std::lock_guard lock(mutex_);
      stop_.request_stop();
      changed_.notify_all();
    }
    for (const auto& channel : channels_) channel->close();
    for (const auto& share : shares_) {
      if (share->exchange) share->exchange->abort();
    }
    for (const auto& node : working_) node->thread = {};  // joins
  }

 private:
  struct Share {
    Assignment assignment;
    std::string title;
    // Also watched by the health: who leads has both, the others an input from their leader.
    std::shared_ptr<Channel> input, output;
    std::vector<std::shared_ptr<Channel>> followers;  // the leader's ends
    std::unique_ptr<Exchange> exchange;

    StageLinks links() const {
      StageLinks views{.input = input.get(), .output = output.get(), .exchange = exchange.get()};
      for (const auto& follower : followers) views.followers.push_back(follower.get());
      return views;
    }
  };

  /// A node that works.
  struct Working {
    int node = 0;
    std::vector<std::size_t> shares{};  // in pipeline order
    // For each share, guarded by mutex_: once it has loaded, and once it is ready.
    std::vector<std::uint64_t> memory_bytes{};
    std::vector<ExchangeTimes> exchange_times{};
    std::jthread thread{};
    bool loaded() const { return memory_bytes.size() == shares.size(); }
    bool ready() const { return exchange_times.size() == shares.size(); }
  };

  std::shared_ptr<Channel> watched(ChannelPtr channel) {
    std::shared_ptr<Channel> shared(std::move(channel));
    health_->watch(shared);
    channels_.push_back(shared);
    return shared;
  }

  std::pair<std::shared_ptr<Channel>, std::shared_ptr<Channel>> make_watched_pair() {
    auto [one, other] = make_inproc_pair();
    return {watched(std::move(one)), watched(std::move(other))};
  }

  /// Shares and the channels between them; gives the end of the last.
  std::shared_ptr<Channel> build(const StartRequest& request) {
    auto [first, next] = make_watched_pair();
    input_ = std::move(first);
    for (Assignment& assignment : make_assignments(request, nodes_)) {
      auto share = std::make_unique<Share>();
      const int node = request.plan.shares[shares_.size()].node;
      share->title = fmt::format("node {} ({})", node, describe(assignment));
      working(node).shares.push_back(shares_.size());
      share->assignment = std::move(assignment);
      if (share->assignment.leads()) {
        share->input = std::move(next);
        std::tie(share->output, next) = make_watched_pair();
      }
      shares_.push_back(std::move(share));
      if (shares_.back()->assignment.group.size() == static_cast<std::size_t>(shares_.back()->assignment.member) + 1) {
        connect_group(std::span(shares_).last(shares_.back()->assignment.group.size()));
      }
    }
    return next;
  }

  Working& working(int node) {
    const auto known = std::ranges::find(working_, node, [](const auto& one) { return one->node; });
    if (known != working_.end()) return **known;
    return *working_.emplace_back(std::make_unique<Working>(Working{.node = node}));
  }

  /// From the leader to the others, and between all of them.
  void connect_group(std::span<const std::unique_ptr<Share>> group) {
    for (const auto& member : group.subspan(1)) {
      auto [leading, following] = make_watched_pair();
      group.front()->followers.push_back(std::move(leading));
      member->input = std::move(following);
    }
    auto ends = make_inproc_exchange(static_cast<int>(group.size()));
    for (std::size_t member = 0; member < group.size(); ++member) group[member]->exchange = std::move(ends[member]);
  }

  void run(Working& node) {
    WorkerDelegate& delegate = *inproc_nodes_[static_cast<std::size_t>(node.node)].delegate;
    std::vector<Assignment> assignments;
    std::vector<StageLinks> links;
    for (const std::size_t share : node.shares) {
      assignments.push_back(shares_[share]->assignment);
      links.push_back(shares_[share]->links());
    }
    DirectWeightFetcher fetcher(provider_);
    auto memory_bytes = delegate.load(assignments, fetcher, stop_.get_token());
    Status status = memory_bytes ? Status{} : tl::unexpected(memory_bytes.error());
    if (status) status = join_groups(node, std::move(*memory_bytes), assignments, links);
    if (status) {
      serve_all(
          delegate, assignments, links, stop_.get_token(),
          [&](std::size_t i, const Status& ended) { end(*shares_[node.shares[i]], ended); },
          fmt::format("node {}", node.node));
    }
    delegate.unload();
    if (!status) {
      for (const std::size_t share : node.shares) end(*shares_[share], status);
    }
  }

  /// When all nodes have loaded, so that nobody waits in an exchange for one that loads.
  Status join_groups(Working& node, std::vector<std::uint64_t> memory_bytes, std::span<const Assignment> assignments,
                     std::span<const StageLinks> links) {
    {
      std::unique_lock lock(mutex_);
      node.memory_bytes = std::move(memory_bytes);
      changed_.notify_all();
      changed_.wait(lock, [&] {
        const bool loaded = std::ranges::all_of(working_, [](const auto& one) { return one->loaded(); });
        return loaded || stop_.stop_requested() || health_->failure();
      });
    }
    if (stop_.stop_requested() || health_->failure()) {
      return make_error(ErrorCode::kCancelled, "the epoch ended before all nodes had loaded");
    }
    std::vector<ExchangeTimes> times(assignments.size());
    for (std::size_t i = 0; i < assignments.size(); ++i) {
      if (links[i].exchange == nullptr) continue;
      WorkerDelegate& delegate = *inproc_nodes_[static_cast<std::size_t>(node.node)].delegate;
      BF_ASSIGN_OR_RETURN(times[i], delegate.join_group(assignments[i], *links[i].exchange));
    }
    std::lock_guard lock(mutex_);
    node.exchange_times = std::move(times);
    changed_.notify_all();
    return {};
  }

  /// Ends the epoch: a failure closes every channel.
  void end(const Share& share, const Status& status) {
    Error error = status ? Error{.code = ErrorCode::kUnavailable, .message = "its channel closed"} : status.error();
    error.message = fmt::format("{}: {}", share.title, error.message);
    health_->fail(std::move(error));              // nothing is a failure once stop() has retired the health
    if (share.exchange) share.exchange->abort();  // after the cause is known: the others have consequences to report
  }

  Status wait_until_ready(const StartRequest& request, Deadline deadline) {
    for (;;) {
      StartProgress progress{.stages = static_cast<int>(working_.size())};
      {
        std::unique_lock lock(mutex_);
        const auto ready = [&] {
          return std::ranges::all_of(working_, [](const auto& node) { return node->ready(); });
        };
        changed_.wait_until(lock, std::min(deadline, after_ms(100)), [&] { return ready() || health_->failure(); });
        for (const auto& node : working_) progress.ready += node->ready() ? 1 : 0;
      }
      if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
      if (request.progress) request.progress(progress);
      if (progress.ready == progress.stages) return {};
      if (std::chrono::steady_clock::now() >= deadline) {
        return make_error(ErrorCode::kTimeout, "{} of {} nodes were ready in time", progress.ready, progress.stages);
      }
    }
  }

  const std::vector<InprocNode> inproc_nodes_;
  std::vector<NodeDescriptor> nodes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::shared_ptr<Health> health_ = std::make_shared<Health>([this] {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });  // also the pipeline channels'
  WeightProvider provider_;
  std::stop_source stop_;
  bool started_ = false;
  bool stopped_ = false;
  std::vector<std::shared_ptr<Channel>> channels_;  // all; also the health's
  std::shared_ptr<Channel> input_;                  // also the pipeline channel's
  std::vector<std::unique_ptr<Share>> shares_;      // of the plan, in its order
  std::vector<std::unique_ptr<Working>> working_;
};

}  // namespace

std::unique_ptr<ClusterSession> make_inproc_cluster(std::vector<InprocNode> nodes) {
  return std::make_unique<InprocCluster>(std::move(nodes));
}

}  // namespace butterfly
