#include "butterfly/stage/run_stage.h"

#include "butterfly/kernel/inference/row_codec.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::int64_t kStopPollMs = 200;  // how soon an idle stage notices `stop`; closing its channel is immediate
constexpr std::int64_t kSendTimeoutMs = 60'000;  // a peer that takes nothing for this long is gone

/// Waits for the next message as long as it takes.
Result<Message> next_message(Channel& input, const PayloadAllocator& allocator, const std::stop_token& stop) {
  const trace::Scope scope(trace::Zone::kWaitStep);
  while (true) {
    Result<Message> message = input.receive(allocator, after_ms(kStopPollMs));
    if (message || message.error().code != ErrorCode::kTimeout) return message;
    if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "the stage was asked to stop");
  }
}

bool ends_epoch(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kCancelled;
}

std::uint64_t wire_row_bytes(const Stage& stage) {
  return row_bytes(stage.wire_type(), static_cast<std::uint64_t>(stage.config().model_dim)).value_or(0);
}

Status decode_activations(const Stage& stage, const Message& message, Step& step) {
  const std::int64_t rows = step.batch.rows();
  const std::uint64_t bytes = wire_row_bytes(stage);
  if (message.payload.bytes.size() != bytes * static_cast<std::uint64_t>(rows)) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came with {} bytes, expected {}", rows,
                      message.payload.bytes.size(), bytes * static_cast<std::uint64_t>(rows));
  }
  const auto floats = static_cast<std::uint64_t>(rows * stage.config().model_dim) * sizeof(float);
  const trace::Scope scope(trace::Zone::kDecodeActivations, {.number = static_cast<std::uint32_t>(rows),
                                                             .bytes = message.payload.bytes.size() + floats,
                                                             .type = static_cast<std::uint8_t>(stage.wire_type())});
  BF_ASSIGN_OR_RETURN(step.tensor, stage.allocate(DType::kF32, {rows, stage.config().model_dim}));
  for (std::int64_t row = 0; row < rows; ++row) {
    decode_row(stage.kernels(), stage.wire_type(),
               message.payload.bytes.subspan(static_cast<std::size_t>(row) * bytes, bytes), step.tensor.row(row));
  }
  return {};
}

/// The step's result, or the message that says why there is none. An error where the tensor group is at an end.
Result<Message> answer(PacedStage& paced, const StageLinks& links, const Message& message) {
  const Stage& stage = paced.stage();
  Result<Step> step = decode_step(message, stage.limits());
  Status status = step ? shape_input(stage, message, *step) : tl::unexpected(step.error());
  // The leader has found nothing wrong with these bytes and computes already.
  if (!status && links.output == nullptr) return tl::unexpected(status.error());
  if (status) {
    BF_TRY(links.hand_on(message));
    status = paced.forward(*step);
  }
  if (stage.broken()) return tl::unexpected(status.error());
  if (!status) return encode_failure(message.tag, message.epoch, status.error());
  Message answered = encode_step(*step);
  status = shape_output(stage, answered, *step);
  return status ? std::move(answered) : encode_failure(message.tag, message.epoch, status.error());
}

}  // namespace

Status shape_input(const Stage& stage, const Message& message, Step& step) {
  const std::int64_t rows = step.batch.rows();
  if (rows == 0) return {};
  const bool tokens = stage.assignment().embedding;
  if (!tokens && stage.wire_type() != DType::kF32) return decode_activations(stage, message, step);
  const Shape shape = tokens ? Shape{rows} : Shape{rows, stage.config().model_dim};
  const DType type = tokens ? DType::kI32 : DType::kF32;
  const auto bytes = dense_bytes(type, shape);
  if (!bytes || *bytes != message.payload.bytes.size()) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came with {} bytes, expected {}", rows,
                      message.payload.bytes.size(), bytes.value_or(0));
  }
  BF_ASSIGN_OR_RETURN(step.tensor, Tensor::adopt(message.payload.owner, message.payload.bytes, type, shape));
  return {};
}

Status shape_output(const Stage& stage, Message& message, const Step& step) {
  if (stage.wire_type() == DType::kF32 || stage.assignment().head || step.batch.rows() == 0) return {};
  const std::uint64_t bytes = wire_row_bytes(stage);
  const auto rows = static_cast<std::uint64_t>(step.batch.rows());
  const auto floats = rows * static_cast<std::uint64_t>(stage.config().model_dim) * sizeof(float);
  const trace::Scope scope(trace::Zone::kEncodeActivations, {.number = static_cast<std::uint32_t>(rows),
                                                             .bytes = bytes * rows + floats,
                                                             .type = static_cast<std::uint8_t>(stage.wire_type())});
  BF_ASSIGN_OR_RETURN(Payload payload, stage.payload_allocator()(bytes * rows));
  for (std::uint64_t row = 0; row < rows; ++row) {
    encode_row(stage.kernels(), stage.wire_type(), step.tensor.row(static_cast<std::int64_t>(row)),
               payload.bytes.subspan(row * bytes, bytes));
  }
  message.payload = std::move(payload);
  return {};
}

Status run_stage(PacedStage& paced, const StageLinks& links, std::stop_token stop) {
  const PayloadAllocator allocator = paced.stage().payload_allocator();
  Status status;
  while (status && !stop.stop_requested()) {
    const Result<Message> message = next_message(*links.input, allocator, stop);
    Result<Message> answered = message ? answer(paced, links, *message) : tl::unexpected(message.error());
    if (!answered) status = tl::unexpected(answered.error());
    if (status && links.output != nullptr) {
      status = links.output->send(std::move(*answered), after_ms(kSendTimeoutMs));
    }
  }
  return status || ends_epoch(status.error()) ? Status{} : status;
}

}  // namespace butterfly
