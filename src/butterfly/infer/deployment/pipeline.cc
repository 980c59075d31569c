#include "butterfly/infer/deployment/pipeline.h"

#include "butterfly/trace/trace.h"

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

 private:
  std::unique_ptr<Stage> stage_;
  std::deque<Step> done_;
};

}  // namespace

std::unique_ptr<Pipeline> make_local_pipeline(std::unique_ptr<Stage> stage) {
  return std::make_unique<LocalPipeline>(std::move(stage));
}

ChannelPipeline::ChannelPipeline(ChannelPipelineOptions options)
    : options_(std::move(options)), pool_(Pool::create()) {}

void ChannelPipeline::connect(Channel& input, Channel& output, int depth) {
  input_ = &input;
  output_ = &output;
  depth_ = depth;
  steps_done_ = 0;
  pending_.clear();
}

void ChannelPipeline::disconnect() {
  input_ = output_ = nullptr;
  steps_done_ = 0;
  pending_.clear();
}

Status ChannelPipeline::recover(const Error& cause) {
  return options_.recover ? options_.recover(cause) : tl::unexpected(cause);
}

Status ChannelPipeline::submit(Step step) {
  if (options_.before_step) BF_TRY(options_.before_step());
  if (input_ == nullptr) return make_error(ErrorCode::kUnavailable, "no stage is connected: too few workers were left");
  pending_.push_back({step.id, step.batch});
  return input_->send(encode_step(std::move(step)), after_ms(options_.step_timeout.count()));
}

Result<Step> ChannelPipeline::next() {
  if (pending_.empty()) return make_error(ErrorCode::kInvalidArgument, "no step was submitted");
  const Pending expected = std::move(pending_.front());
  pending_.pop_front();
  const Shape shape{expected.batch.logit_rows(), options_.output_dim};
  const auto output_bytes = dense_bytes(DType::kF32, shape);
  const PayloadAllocator allocator = [&](std::uint64_t bytes) -> Result<Payload> {
    if (output_bytes != bytes) {
      return make_error(ErrorCode::kProtocol, "a step came back with {} bytes of output, expected {} x {} floats",
                        bytes, shape[0], shape[1]);
    }
    BF_ASSIGN_OR_RETURN(Storage storage, pool_->allocate(bytes));
    return Payload{std::move(storage.owner), storage.bytes};
  };
  trace::Scope waiting(trace::Zone::kWaitAnswer);
  BF_ASSIGN_OR_RETURN(Message message, output_->receive(allocator, after_ms(options_.step_timeout.count())));
  waiting.end();
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
  if (output_bytes != message.payload.bytes.size()) {
    return make_error(ErrorCode::kProtocol, "step {} came back with {} bytes of output, expected {} x {} floats",
                      message.tag, message.payload.bytes.size(), shape[0], shape[1]);
  }
  if (expected.batch.logit_rows() > 0) {
    BF_ASSIGN_OR_RETURN(step.tensor, Tensor::adopt(message.payload.owner, message.payload.bytes, DType::kF32, shape));
  }
  ++steps_done_;
  return step;
}

}  // namespace butterfly
