// Nodes as threads: one thread for each stage, inproc channels between them, weights by direct call.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "butterfly/cluster/check_start.h"
#include "butterfly/cluster/cluster_session.h"
#include "butterfly/cluster/health.h"
#include "butterfly/cluster/weight_transfer.h"
#include "butterfly/wire/inproc.h"

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

  Result<PipelineEnds> start(const StartRequest& request, Deadline deadline) override {
    BF_TRY(check_start(request, nodes_.size(), started_));
    started_ = true;
    provider_ = request.weights;
    std::shared_ptr<Channel> output = build(request);
    for (const auto& stage : stages_) stage->thread = std::jthread([this, &one = *stage] { run(one); });
    BF_TRY(wait_until_ready(request, deadline));
    PipelineEnds ends{.input = make_pipeline_channel(input_, health_),
                      .output = make_pipeline_channel(std::move(output), health_),
                      .memory_bytes = {}};
    std::lock_guard lock(mutex_);
    for (const auto& stage : stages_) ends.memory_bytes.push_back(*stage->memory_bytes);
    return ends;
  }

  Result<DataTraffic> data_traffic(Deadline /*deadline*/) override {
    DataTraffic traffic;
    if (input_) traffic.add(input_->stats());
    for (const auto& stage : stages_) traffic.add(stage->output->stats());
    return traffic;
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    health_->retire();
    stop_.request_stop();
    if (input_) input_->close();
    for (const auto& stage : stages_) {
      stage->input->close();
      stage->output->close();
    }
    for (const auto& stage : stages_) stage->thread = {};  // joins
  }

 private:
  struct Stage {
    Assignment assignment;
    std::string title;
    WorkerDelegate* delegate = nullptr;
    std::shared_ptr<Channel> input, output;     // also watched by the health
    std::optional<std::uint64_t> memory_bytes;  // once ready, guarded by mutex_
    std::jthread thread;
  };

  /// Stages and the channels between them; gives the end of the last.
  std::shared_ptr<Channel> build(const StartRequest& request) {
    const auto watched = [this](ChannelPtr channel) {
      std::shared_ptr<Channel> shared(std::move(channel));
      health_->watch(shared);
      return shared;
    };
    auto [first, next] = make_inproc_pair();
    input_ = watched(std::move(first));
    const int count = static_cast<int>(request.plan.stages.size());
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      auto stage = std::make_unique<Stage>();
      stage->assignment = {.epoch = request.epoch,
                           .model = request.model,
                           .config = request.config,
                           .options = request.options,
                           .stage = request.plan.stages[index],
                           .rank = Rank(i),
                           .stages = count};
      stage->title = fmt::format("node {} (stage {} of {})", request.plan.node_of_stage[index], i + 1, count);
      stage->delegate = inproc_nodes_[static_cast<std::size_t>(request.plan.node_of_stage[index])].delegate;
      stage->input = watched(std::move(next));
      auto [out, after] = make_inproc_pair();
      stage->output = watched(std::move(out));
      next = std::move(after);
      stages_.push_back(std::move(stage));
    }
    return watched(std::move(next));
  }

  void run(Stage& stage) {
    DirectWeightFetcher fetcher(provider_);
    auto memory_bytes = stage.delegate->load(stage.assignment, fetcher, stop_.get_token());
    Status status;
    if (memory_bytes) {
      {
        std::lock_guard lock(mutex_);
        stage.memory_bytes = *memory_bytes;
        changed_.notify_all();
      }
      status = stage.delegate->serve(stage.assignment, *stage.input, *stage.output, stop_.get_token());
    } else {
      status = tl::unexpected(memory_bytes.error());
    }
    stage.delegate->unload();
    Error error = status ? Error{.code = ErrorCode::kUnavailable, .message = "its channel closed"} : status.error();
    error.message = fmt::format("{}: {}", stage.title, error.message);
    health_->fail(std::move(error));  // nothing is a failure once stop() has retired the health
  }

  Status wait_until_ready(const StartRequest& request, Deadline deadline) {
    for (;;) {
      StartProgress progress{.stages = static_cast<int>(stages_.size())};
      {
        std::unique_lock lock(mutex_);
        const auto ready = [&] {
          return std::ranges::all_of(stages_, [](const auto& stage) { return stage->memory_bytes.has_value(); });
        };
        changed_.wait_until(lock, std::min(deadline, after_ms(100)), [&] { return ready() || health_->failure(); });
        for (const auto& stage : stages_) progress.ready += stage->memory_bytes ? 1 : 0;
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
  std::shared_ptr<Channel> input_;  // also the pipeline channel's
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace

std::unique_ptr<ClusterSession> make_inproc_cluster(std::vector<InprocNode> nodes) {
  return std::make_unique<InprocCluster>(std::move(nodes));
}

}  // namespace butterfly
