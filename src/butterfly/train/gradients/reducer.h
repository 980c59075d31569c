// How the gradients of a step become the sum over all its micro-batches, wherever they were computed. One step at a
// time, by the thread that trains; abort() of the collectives underneath wakes it. The sum is in
// ParameterSet::gradients() after finish(), the same on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/plan/cost/micro_batch_shares.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/wire/collective/collective_queue.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

inline constexpr std::size_t kGradientCompressions = 7;  // values of GradientCompression

struct ReduceReport {
  std::uint64_t bytes_sent = 0;     // payloads of gradients on this rank, as the collectives counted them
  std::uint64_t formula_bytes = 0;  // what the algorithm should send; the audit compares
  double communication_s = 0.0;     // inside collectives
  double exposed_s = 0.0;           // of them, not hidden behind the backward pass
  double codec_s = 0.0;
  std::uint64_t uncompressed_bytes = 0;                        // formula_bytes had nothing been packed
  std::array<std::uint32_t, kGradientCompressions> buckets{};  // by what they travelled as; kAuto's entry stays 0
};

/// What a stage of a pipeline makes at different times: its layers' gradients, the head's before them, the embedding's
/// when those of the first stage have come back. Where the embedding is the head, too, its gradients are the head's
/// until then.
enum class GradientPiece : std::uint8_t { kLayers, kHead, kEmbedding };
inline constexpr std::size_t kGradientPieces = 3;

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  virtual void begin_step(const MicroBatches& share) = 0;
  /// Where the gradients of the next pass go, alone (TrainableTransformer::clear_gradients()); nothing: they are added
  /// to those of the one before it. Those of the last go to ParameterSet::gradients(). `micro_batch`: its first.
  virtual std::span<float> fresh_gradients(int micro_batch) = 0;
  /// What is in fresh_gradients() before.
  virtual OldGradients old_gradients() const { return OldGradients::kAny; }
  /// During backward() of a pass, whose last micro-batch this is, from the end of the flat array to its beginning; with
  /// ShardedGradients also during TrainableTransformer::idle(), then of kIdle, and so is what follows.
  virtual void gradients_ready(int micro_batch, ParameterRange range) = 0;
  /// After backward() of a pass, of its last micro-batch.
  virtual void micro_batch_done(int micro_batch) = 0;
  /// The same for one piece of a stage, instead of those three; each piece's micro-batches are done in their order.
  virtual std::span<float> fresh_piece(GradientPiece /*piece*/, int /*micro_batch*/) { return {}; }
  virtual void piece_done(GradientPiece /*piece*/, int /*micro_batch*/) {}
  /// Seconds that calls above have waited for others since this was asked last; part of exposed_s.
  virtual double take_waited_s() { return 0.0; }
  /// Errors: those of the collectives, kNoMemory; the step has not happened then, and the reducer is of no use any
  /// more.
  virtual Result<ReduceReport> finish() = 0;

  /// The error-feedback residuals of this rank's lossy codecs, as long as the flat parameters; nothing without such a
  /// codec. Part of a checkpoint, one for each rank; may be read and written between steps.
  virtual std::vector<std::span<float>> residuals() { return {}; }
  /// Their size. A caller of residuals() declares that they may be other than zero.
  virtual std::uint64_t residual_bytes() const { return 0; }
};

/// Each rank keeps the sum of its part alone.
struct ShardedGradients {
  const ShardMap& map;
  std::shared_ptr<CollectiveQueue> queue;  // of everything that these ranks' collectives do during a step
  /// kStep: a rank's micro-batches add up and go to the owners once, so each rank holds all gradients. kMicroBatch:
  /// those of each pass go there at once (micro_batches_in_rounds()), and its memory is given back. kNone: a rank
  /// computes all of its part alone, piece by piece.
  enum class Exchange : std::uint8_t { kStep, kMicroBatch, kNone } exchange = Exchange::kStep;
  std::vector<MicroBatches> shares{};  // of all ranks
  int rounds = 1;                      // kMicroBatch: rounds_of()
  int open_heads = 1;                  // kNone: micro-batches whose embeddings' gradients are the head's at once
};

struct ReducerOptions {
  std::span<float> gradients{};        // ParameterSet::gradients()
  Collectives* collectives = nullptr;  // borrowed, used between begin_step() and finish() alone; null: one rank
  bool deterministic = false;
  GradientCompression compression = GradientCompression::kOff;
  std::int64_t bucket_bytes = 4 << 20;
  Isa isa = Isa::kReference;                 // of the codecs
  const ShardedGradients* shards = nullptr;  // borrowed; null: all ranks get all of the sum
  ThreadTeam* team = nullptr;                // borrowed, used by micro_batch_done() alone; null: the calling thread
};

/// Errors: kInvalidArgument (lossy or changing codecs where sums are to be deterministic or each rank keeps its part, a
/// bucket without elements),
/// kNoMemory, kIo where no thread can be started.
Result<std::unique_ptr<GradientReducer>> make_reducer(const ReducerOptions& options);

/// One rank: gradients add up where they are, or in the canonical tree where `deterministic`.
std::unique_ptr<GradientReducer> make_local_reducer(std::span<float> gradients, bool deterministic, ThreadTeam* team);
inline std::unique_ptr<GradientReducer> make_local_reducer(ParameterSet& parameters, bool deterministic) {
  return make_local_reducer(parameters.gradients(), deterministic, nullptr);
}

}  // namespace butterfly
