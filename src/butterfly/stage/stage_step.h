// One step of a pipeline: which rows of which sequences, and their tokens, activations or logits. Steps travel as
// messages: the batch as checked little-endian numbers in `meta`, the tensor as payload. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/batch.h"
#include "butterfly/tensor/tensor.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// Message types on data channels.
enum class StepMessage : std::uint16_t { kStep = 1, kFailed = 2 };

/// The first `tokens` positions of a sequence, whole cache pages, become the beginning of a new one.
struct SharedPrefix {
  SequenceId from{};
  SequenceId to{};
  std::int32_t tokens = 0;
};

struct Step {
  std::uint64_t id = 0;
  Epoch epoch;
  Batch batch;
  std::vector<SharedPrefix> share{};  // before this step runs; these first,
  std::vector<SequenceId> release;    // then sequences that ended: their cache pages are free
  Tensor tensor;  // i32 tokens [rows], f32 activations [rows, model_dim] or f32 output [logit_rows, output_dim]
};

/// Limits on what a step may say; a worker checks them before it believes a peer.
struct StepLimits {
  std::int64_t rows_max = 1 << 16;
  std::int64_t context = 0;  // positions
};

/// The tensor is handed over, not copied.
Message encode_step(Step step);

/// A failed step in place of a result, so that the receiver learns why.
Message encode_failure(std::uint64_t id, Epoch epoch, const Error& error);

/// Everything but the tensor's shape, which only the receiver knows. Errors: kProtocol naming the values that disagree;
/// for a failure message the error that it carries.
Result<Step> decode_step(const Message& message, const StepLimits& limits);

}  // namespace butterfly
