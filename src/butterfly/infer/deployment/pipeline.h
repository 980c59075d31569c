// The way from tokens to what the model gives (ModelConfig::output), wherever the layers are: in this process, or
// behind channels to other nodes. Steps go in and come out in order; several may be under way. Not thread-safe: one
// user.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/stage/stage.h"
#include "butterfly/stage/stage_step.h"
#include "butterfly/tensor/pool.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

class Pipeline {
 public:
  virtual ~Pipeline() = default;

  /// Sends a step of i32 tokens on its way. Errors: kUnavailable (a node is gone), kTimeout.
  virtual Status submit(Step step) = 0;

  /// The oldest submitted step, with f32 [logit_rows, output_dim] as its tensor: logits or hidden rows. Errors: as
  /// submit, and whatever the step failed with on its node.
  virtual Result<Step> next() = 0;

  /// After submit() or next() failed with `cause`: makes the pipeline ready again where that is possible, with fewer or
  /// other nodes. Every step that was under way is lost, and so is what the nodes knew of every sequence.
  /// Errors: `cause` where nothing can be done about it; why no other nodes could take over.
  virtual Status recover(const Error& cause) = 0;

  /// Stages in a row: how many steps can be computed at the same time.
  virtual int depth() const = 0;
};

/// All layers in this process, on the caller's thread.
std::unique_ptr<Pipeline> make_local_pipeline(std::unique_ptr<Stage> stage);

struct ChannelPipelineOptions {
  int output_dim = 0;                                   // of each row that comes back
  std::chrono::milliseconds step_timeout{600'000};      // a step that takes longer is an error
  std::function<Status()> before_step{};                // an error is submit()'s, and nothing is sent
  std::function<Status(const Error& cause)> recover{};  // what recover() does; empty: nothing can be done
};

/// Stages behind channels.
class ChannelPipeline final : public Pipeline {
 public:
  explicit ChannelPipeline(ChannelPipelineOptions options);

  /// `input` leads to the first of `depth` stages, `output` comes from the last; borrowed until disconnect(). Steps
  /// that were under way before are lost.
  void connect(Channel& input, Channel& output, int depth);
  void disconnect();

  /// That came back since connect().
  std::uint64_t steps_done() const { return steps_done_; }

  Status submit(Step step) override;
  Result<Step> next() override;
  Status recover(const Error& cause) override;
  int depth() const override { return depth_; }

 private:
  struct Pending {
    std::uint64_t id = 0;
    Batch batch{};
  };

  const ChannelPipelineOptions options_;
  Channel* input_ = nullptr;
  Channel* output_ = nullptr;
  int depth_ = 1;
  std::uint64_t steps_done_ = 0;
  std::shared_ptr<Pool> pool_;  // also of the logits that it gave out
  std::deque<Pending> pending_;
};

}  // namespace butterfly
