// Packed weights of one model, part by part: what a node keeps from one epoch to the next, so that it loads only what a
// new plan adds. A part is a block or an end of the model for some slices; for other slices it is another part. Parts
// are immutable and shared with the stage that runs them. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "butterfly/base/result.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/inference/block.h"
#include "butterfly/model/inference/embedding.h"
#include "butterfly/model/packed/packed_cache.h"
#include "butterfly/plan/partition/plan.h"

namespace butterfly {

/// A packed matrix, and which part of the stored one it is.
struct KeptMatrix {
  std::shared_ptr<const PackedMatrix> matrix{};  // shares the life of its block
  WeightPart part{};
};

/// How far complete() has come.
struct LoadProgress {
  double done = 0;                 // share of what was missing, 0 to 1
  std::uint64_t packed_bytes = 0;  // of what it has loaded
};

struct LoadOptions {
  std::stop_token stop{};
  /// At the beginning, with 0, and after each part; nothing where nothing is missing. By the thread that loads.
  std::function<void(const LoadProgress& progress)> progress{};
};

/// Gives the source of the weights; asked once, and only if something is missing.
using WeightSourceFinder = std::function<Result<std::shared_ptr<const WeightSource>>()>;

class StageParts {
 public:
  /// Parts are looked for and kept in this folder, too, from one start to the next (PackedCache); empty: in memory
  /// alone.
  explicit StageParts(const std::string& packed_folder = {}) : cache_(packed_folder) {}

  /// Whose parts these are: parts of another model are dropped. `content`: a hash or stamp of its files; where it is
  /// empty, nothing is kept on disk.
  void set_model(const std::string& content, const ModelConfig& config);

  /// Drops every part, also on disk: they were not packed from what set_model() named.
  void forget_model();

  /// Loads and packs what `assignment` needs and is not here. Errors: those of the source and of the weights (missing,
  /// misshapen, unsupported); kCancelled once a stop is requested, with what was loaded kept.
  Status complete(const ModelConfig& config, const StageAssignment& assignment, const WeightSourceFinder& find_source,
                  ThreadTeam& team, const LoadOptions& options);

  /// By name: of each matrix of which `assignment` needs a part, what is here for other slices, where there are some of
  /// the same. Only the rest of the part has to be fetched.
  std::map<std::string, KeptMatrix> kept_for(const ModelConfig& config, const StageAssignment& assignment) const;

  /// About what complete() would add for all of these. Errors: those of model_cost().
  Result<std::uint64_t> missing_bytes(const ModelConfig& config, std::span<const StageAssignment> assignments) const;

  /// Drops parts that none of these needs until at most `bytes_max` are held, or none are left to drop.
  void trim(std::span<const StageAssignment> assignments, std::uint64_t bytes_max);

  /// Packed weights, a tied table counted once.
  std::uint64_t bytes() const;
  std::uint64_t bytes(const StageAssignment& assignment) const;

  // What complete() has loaded.
  std::shared_ptr<const Embedding> embedding(const HeldSlices& slices) const { return embeddings_.at(slices); }
  std::shared_ptr<const Block> block(int layer, const HeldSlices& slices) const {
    return blocks_.at({weight_layer(layer), slices});
  }
  std::shared_ptr<const Head> head(const HeldSlices& slices) const { return heads_.at(slices); }

 private:
  void drop_all();

  PackedCache cache_;
  std::string model_;
  bool tied_ = false;
  /// Blocks are kept by the layer whose weights they have: layers that share weights are one part.
  int weight_layer(int layer) const { return layer / layers_of_block_; }

  int layers_of_block_ = 1;
  std::map<HeldSlices, std::shared_ptr<const Embedding>> embeddings_;  // all three also the running stage's
  std::map<std::pair<int, HeldSlices>, std::shared_ptr<const Block>> blocks_;
  std::map<HeldSlices, std::shared_ptr<const Head>> heads_;
};

}  // namespace butterfly
