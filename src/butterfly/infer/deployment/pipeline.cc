#include "butterfly/infer/deployment/pipeline.h"

#include <deque>

namespace butterfly {
namespace {

class LocalPipeline final : public Pipeline {
 public:
  explicit LocalPipeline(std::unique_ptr<Stage> stage) : stage_(std::move(stage)) {}

  Status submit(Step step) override {
    BF_TRY(stage_->forward(step));
    done_.push_back(std::move(step));
    return {};
  }

  Result<Step> next() override {
    if (done_.empty()) return make_error(ErrorCode::kInvalidArgument, "no step was submitted");
    Step step = std::move(done_.front());
    done_.pop_front();
    return step;
  }

  Status recover(const Error& cause) override { return tl::unexpected(cause); }
  int depth() const override { return 1; }
  std::uint64_t wire_bytes() const override { return 0; }

 private:
  std::unique_ptr<Stage> stage_;
  std::deque<Step> done_;
};

class ChannelPipeline final : public Pipeline {
 public:
  ChannelPipeline(Channel& input, Channel& output, const ChannelPipelineOptions& options)
      : input_(&input), output_(&output), options_(options), pool_(Pool::create()) {}

  Status submit(Step step) override {
    pending_.push_back({step.id, step.batch});
    return input_->send(encode_step(std::move(step)), after_ms(options_.step_timeout_ms));
  }

  Result<Step> next() override {
    if (pending_.empty()) return make_error(ErrorCode::kInvalidArgument, "no step was submitted");
    const Pending expected = std::move(pending_.front());
    pending_.pop_front();
    const Shape shape{expected.batch.logit_rows(), options_.vocab};
    const auto logits = dense_bytes(DType::kF32, shape);
    const PayloadAllocator allocator = [&](std::uint64_t bytes) -> Result<Payload> {
      if (logits != bytes) {
        return make_error(ErrorCode::kProtocol, "a step came back with {} bytes of logits, expected {} x {} floats",
                          bytes, shape[0], shape[1]);
      }
      BF_ASSIGN_OR_RETURN(Storage storage, pool_->allocate(bytes));
      return Payload{std::move(storage.owner), storage.bytes};
    };
    BF_ASSIGN_OR_RETURN(Message message, output_->receive(allocator, after_ms(options_.step_timeout_ms)));
    if (message.tag != expected.id) {
      return make_error(ErrorCode::kProtocol, "step {} came back where step {} was due", message.tag, expected.id);
    }
    if (message.type == static_cast<std::uint16_t>(StepMessage::kFailed)) {
      return tl::unexpected(decode_step(message, {}).error());
    }
    Step step;
    step.id = message.tag;
    step.epoch = message.epoch;
    step.batch = expected.batch;
    if (logits != message.payload.bytes.size()) {
      return make_error(ErrorCode::kProtocol, "step {} came back with {} bytes of logits, expected {} x {} floats",
                        message.tag, message.payload.bytes.size(), shape[0], shape[1]);
    }
    if (expected.batch.logit_rows() > 0) {
      BF_ASSIGN_OR_RETURN(step.tensor, Tensor::adopt(message.payload.owner, message.payload.bytes, DType::kF32, shape));
    }
    return step;
  }

  Status recover(const Error& cause) override { return tl::unexpected(cause); }
  int depth() const override { return options_.depth; }

  std::uint64_t wire_bytes() const override {
    std::uint64_t bytes = input_->stats().bytes_sent;
    return bytes + output_->stats().bytes_received;
  }

 private:
  struct Pending {
    std::uint64_t id;
    Batch batch;
  };

  Channel* input_;
  Channel* output_;
  ChannelPipelineOptions options_;
  std::shared_ptr<Pool> pool_;
  std::deque<Pending> pending_;
};

}  // namespace

std::unique_ptr<Pipeline> make_local_pipeline(std::unique_ptr<Stage> stage) {
  return std::make_unique<LocalPipeline>(std::move(stage));
}

std::unique_ptr<Pipeline> make_channel_pipeline(Channel& input, Channel& output,
                                                const ChannelPipelineOptions& options) {
  return std::make_unique<ChannelPipeline>(input, output, options);
}

}  // namespace butterfly
