// The vocabulary of measurement: what a span of time was spent on, what is counted, who holds memory. Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace butterfly::trace {

/// How a zone is read: steps hold phases, phases hold layers, layers hold operations, and what is left of each is told
/// as such.
enum class ZoneKind : std::uint8_t {
  kStep,           // one turn of a thread's main loop
  kPhase,          // a part of a step
  kLayer,          // `number` is the layer
  kOperation,      // computes; has FLOPs and bytes
  kCommunication,  // bytes to or from others
  kWait,           // for others
  kOther           // before and beside the steps
};

/// What a span of time was spent on.
enum class Zone : std::uint8_t {
  // Steps. `number`: rows of a stage's step, the step of training, the texts of a turn of the scheduler.
  kStepTurn,     // the scheduler's: choose, send, wait, sample
  kStepPrefill,  // a stage's, prompts alone
  kStepDecode,   // a stage's, texts that already gave a token
  kStepMixed,    // a stage's, both
  kStepEncode,   // a stage's, encoders
  kStepTrain,
  // Phases
  kPhaseSchedule,
  kPhaseData,
  kPhaseForward,
  kPhaseBackward,
  kPhaseOptimizer,
  kPhaseCommunication,  // of training, exposed: what the backward pass does not hide
  kLayer,               // from here to kEmulation one may begin where another ended (trace.h)
  // Matmuls
  kQkv,
  kQuery,
  kKey,
  kValue,
  kLatent,
  kAttentionOutput,
  kGateUp,
  kGate,
  kUp,
  kDown,
  kRouter,
  kExperts,
  kCross,
  kHead,
  kMatmul,  // any other
  // Other operations
  kAttention,
  kSoftmaxLoss,
  kEmbedding,
  kNorm,
  kRotary,  // positions, and keys and values into the cache
  kActivation,
  kResidual,
  kQuantize,  // activations into blocks of bytes
  kCast,      // weights or gradients into another type
  kReduceSlices,
  kGradientClear,
  kGradientNorm,
  kUpdate,
  kBias,         // gradients of biases
  kDispatch,     // rows to their experts and back, and which they are
  kGradientSum,  // of micro-batches, in an order of their own
  kSample,
  kGrammar,
  kTextEncode,
  kTextDecode,
  kTell,       // those who asked of what came: standard output, HTTP
  kGather,     // rows to their experts, slices of logits into rows
  kEmulation,  // what a slower machine that is played would need longer
  // Communication
  kSend,
  kReceive,
  kEncodeActivations,
  kDecodeActivations,
  kGroupExchange,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kCompress,
  kAllToAll,
  kReduceBucket,  // a part of the gradients: codec and collectives
  // Waits
  kWaitStep,       // a stage for its next step
  kWaitAnswer,     // the scheduler for the stages
  kWaitGradients,  // a rank for the sum of gradients
  kWaitTurn,       // stages of one node for its threads
  kWaitRequest,    // the scheduler without requests
  kWaitMembers,    // for other members of a tensor group or a collective
  // Other
  kLoadModel,
  kPackWeights,
  kCheckpoint,
  kEvaluate,
  kCount
};

/// Sums that only grow.
enum class Counter : std::uint8_t {
  kKernelFlops,
  kKernelWeightBytes,
  kTeamRuns,  // times that a thread team was given something to do: a CPU's kernel launches
  kTeamWakes,
  kTensorPoolAllocations,
  kTensorPoolHits,
  kWireBytesReceived,
  kWireBytesSent,
  kWireMessagesReceived,
  kWireMessagesSent,
  kWireStaleMessages,
  kWireWaitsBlocked,
  kWireWaitsSpun,
  kWireBytesSaved,  // by packing
  kInferTokensDecoded,
  kInferTokensPrefilled,
  kTrainTokens,
  kCount
};

/// Who holds memory.
enum class Owner : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kKvCache,
  kBuffers,  // of messages, gradients on their way, scratch
  kCount
};

/// Of a training operation: what is computed.
enum class Pass : std::uint8_t { kForward, kInputGradient, kWeightGradient, kRecompute };

std::string_view to_string(Zone zone);        // "attention"
std::string_view to_string(ZoneKind kind);    // "operation"
std::string_view to_string(Counter counter);  // "wire.bytes_sent"
std::string_view to_string(Owner owner);      // "kv_cache"
std::string_view to_string(Pass pass);        // "weight_gradient"
ZoneKind kind_of(Zone zone);
bool is_matmul(Zone zone);

}  // namespace butterfly::trace
